"""What is learned about the hyperparameters ε: the protocol of all strategies.

Every strategy turns a few optimiser variables into values of ε and a penalty on the bound. The
variables are offsets whitened under the cavity q_cav(ε), so that zero means "no change".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.gp.hyperparameters.parameters import ParameterVector

Limits = tuple[float | None, float | None]
"""The least and the largest value of one optimiser variable; None where there is none."""


@runtime_checkable
class HyperparameterStrategy(Protocol):
    """How ε takes part in a local update: a frozen dataclass of plain fields."""

    def prior(self, parameters: ParameterVector) -> expfam.Gaussian | None:
        """p(ε), or None where ε is a point."""
        ...

    def location_scale(
        self, cavity: expfam.Gaussian | None, parameters: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the whitened variables are zero: [E], and their unit: lower factor [E, E]."""
        ...

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        """Optimiser variables [V] at the start: at the centre of the cavity or prior.

        :param has_seen_data: Whether the cavity is more than the prior.
        """
        ...

    def unmoved(self, size: int) -> np.ndarray:
        """Optimiser variables [V] at which q(ε) is the cavity's, or the point stays."""
        ...

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        """The limits of each of the V optimiser variables."""
        ...

    @property
    def num_draws(self) -> int | None:
        """S where it never changes, else None."""
        ...

    def noise(
        self, size: int, seed: int, full: bool = True, num_uncertain: float = 0.0
    ) -> np.ndarray:
        """Common random numbers [S, E]: the bound is averaged over S values of ε.

        :param size: The number E of hyperparameters.
        :param seed: The seed of the numbers.
        :param full: Whether to give as many as the strategy has; otherwise half of them may do.
        :param num_uncertain: How many hyperparameters a fit has left little known of, which then
            may have fitted q(ε) to too few values.
        """
        ...

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        """Values of ε [S, E] for noise [S, E]."""
        ...

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        """What is subtracted from the expected bound: KL(q(ε) ‖ q_cav(ε)) or −log p(ε)."""
        ...

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian | None:
        """q(ε), or None where ε is a point."""
        ...

    def memory(self, log_evidence: Callable[[], Any], divergence: Callable[[], Any]) -> Any:
        """What the objective adds to the batch's bound for what is known of f, in nats.

        Each term is computed when it is called. Conditional points give the second for both, and
        count it in the free energy that they report; that of others has neither.

        :param log_evidence: That of earlier pseudo-observations (PVI 2018, appendix C.1).
        :param divergence: What ``−KL(q(a) ‖ p(a | ε))`` gains over its value at the ε before, where
            q(a) is what was known of all earlier points then (appendix C.2, eq. 93).
        """
        ...

    def forget(self, ledger: Any) -> Any:
        """The ledger of Gaussian-process factors that a new batch finds."""
        ...

    def check_round(self) -> None:
        """Refuse that several batches are fitted under one ledger, where that makes no sense.

        :raises InvalidDataError: if it makes none.
        """
        ...
