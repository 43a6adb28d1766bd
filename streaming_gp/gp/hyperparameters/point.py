"""Hyperparameters that are one value: fixed, or learned as a point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.hyperparameters.parameters import ParameterVector
from streaming_gp.gp.hyperparameters.protocol import Limits
from streaming_gp.inputs import typed
from streaming_gp.serialization import storable

EVIDENCE, DIVERGENCE = "evidence", "divergence"
"""What a point can remember by: PVI 2018, appendix C.1 and eq. 93."""


@dataclass(frozen=True)
class _Point:
    """A single value of ε."""

    def prior(self, parameters: ParameterVector) -> None:
        return None

    def location_scale(
        self, cavity: expfam.Gaussian | None, parameters: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        return parameters.value(), np.diag(parameters.unit_log_widths())

    @property
    def num_draws(self) -> int:
        return 1

    def noise(
        self, size: int, seed: int, full: bool = True, num_uncertain: float = 0.0
    ) -> np.ndarray:
        return np.zeros((1, size))

    def posterior(self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray) -> None:
        return None

    def memory(self, log_evidence: Callable[[], Any], divergence: Callable[[], Any]) -> Any:
        return 0.0

    def forget(self, ledger: Any) -> Any:
        return ledger

    def check_round(self) -> None:
        """One value serves all batches of a round."""


@storable
@dataclass(frozen=True)
class FixedHyperparameters(_Point):
    """ε stays at the values that the GPflow parameters hold."""

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        return np.zeros(0)

    def unmoved(self, size: int) -> np.ndarray:
        return np.zeros(0)

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        return []

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return location[None]

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        return tf.zeros([], tf.float64)


@storable
@typed
@dataclass(frozen=True)
class PointHyperparameters(_Point):
    """ε maximises the local free energy of the newest batch (PVI 2018, appendix C.2).

    Parameters that carry a GPflow prior contribute its log density (MAP); without priors this is
    maximum likelihood. Priors are densities in the space that the parameter's ``prior_on`` names.

    :param max_log_decrease: The logarithm of a constrained parameter falls in one update by at most
        so much, to first order. A batch of one point has its maximum likelihood at no noise at all,
        and from there no gradient leads back.
    :param remember: By which term what is known of f has a say. ``"evidence"`` adds the log
        evidence that ε gives to all earlier pseudo-observations, as in appendix C.1; conditional
        points refuse it, as they keep no factor that is free of ε. ``"divergence"`` adds
        ``−KL(q(a) ‖ p(a | ε))``, as in appendix C.2 (eq. 93), where q(a) is what was known of all
        earlier points at the ε before; a point at every input refuses it, as these have no white
        noise of their own. True, the default, is the first, or with conditional points the second.
        With False the newest batch alone decides.
    :raises InvalidDataError: if ``max_log_decrease`` is not positive, or ``remember`` is none of
        these.
    """

    max_log_decrease: float = 5.0
    remember: bool | Literal["evidence", "divergence"] = True

    def __post_init__(self) -> None:
        is_name = type(self.remember) is str and self.remember in (EVIDENCE, DIVERGENCE)
        if not (is_name or isinstance(self.remember, (bool, np.bool_))):
            raise InvalidDataError(
                f"PointHyperparameters.remember must be true, false, {EVIDENCE!r} or "
                f"{DIVERGENCE!r}, got {self.remember!r:.100}"
            )
        if not self.max_log_decrease > 0.0:
            raise InvalidDataError(
                f"max_log_decrease must be positive, got {self.max_log_decrease}"
            )

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        return np.zeros(parameters.size)

    def unmoved(self, size: int) -> np.ndarray:
        return np.zeros(size)

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        lowest = {True: -self.max_log_decrease, False: None}
        return [(lowest[bool(constrained)], None) for constrained in parameters.is_constrained()]

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return (location + tf.linalg.matvec(scale, variables))[None]

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        return -parameters.log_prior_density()

    def memory(self, log_evidence: Callable[[], Any], divergence: Callable[[], Any]) -> Any:
        if self.remember == DIVERGENCE:
            return divergence()
        return log_evidence() if self.remember else 0.0

    def check_round(self) -> None:
        """:raises InvalidDataError: always, as the batches would end at different values of ε."""
        raise InvalidDataError(
            "batches that are fitted under one ledger would differ in point hyperparameters; "
            f"wanted fixed or variational ones, got {self}"
        )
