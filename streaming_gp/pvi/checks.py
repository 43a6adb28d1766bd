"""What an answer must be before it may touch the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import ImproperError
from streaming_gp.expfam import Gaussian, Normal
from streaming_gp.inputs import typed
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.quadratic import slope_and_precision


@typed
@dataclass(frozen=True)
class Checks:
    """Limits of a sane answer. An answer beyond them is refused and reported; the round goes on.

    A broken or hostile client is stopped where its factor is malformed or implausible; one that
    lies within these limits is not noticed. For posteriors that are not Gaussians, only what is
    malformed or improper is refused.

    :param max_shift: The number of standard deviations by which the posterior mean may move at
        most, as root mean square over coordinates, measured by the wider of the old and the new
        posterior.
    :param max_precision_per_datum: No coordinate may gain more precision for each of the client's
        data points than so many times its prior precision.
    :param max_precision_loss: The fraction of the posterior's precision that a factor may take away
        at most, as a mean over coordinates. Single coordinates of an honest factor may be negative,
        and all of them a little, where a minibatch is noisy or a start surer than it should be.
    :param max_slope_per_datum: Where hyperparameters are learned: the expected log-likelihood of
        one data point may change by at most so many nats for one unit of an unconstrained
        hyperparameter, and so may its slope. How far a round goes is bounded anyway.
    """

    max_shift: float = 100.0
    max_precision_per_datum: float = 1e6
    max_precision_loss: float = 0.05
    max_slope_per_datum: float = 1e9

    def objection(self, ledger: Ledger[Any], factor: Any, num_data: int) -> str | None:
        """Why a factor is refused whatever it would do to the posterior, or None.

        :param num_data: The number of the client's data points.
        """
        malformed = ledger.posterior.objection_to(factor)
        if malformed or not isinstance(ledger.prior, Gaussian):
            return malformed
        precision = _diagonal(factor.natural[1])
        certainty = np.max(precision / _diagonal(ledger.prior.precision)) / num_data
        fraction = np.mean(precision / _diagonal(ledger.posterior.precision))
        return self._too_sure(float(certainty)) or self._too_vague(float(fraction))

    def objection_to_step(self, ledger: Ledger[Any], changes: Mapping[str, Any]) -> str | None:
        """Why the ledger may not take over these factors, or None.

        :param changes: New factors by client, as they would stand in the ledger.
        """
        try:
            old, new = ledger.posterior, ledger.posterior_with(changes)
        except ImproperError:
            return "the posterior with it would be improper"
        return self._too_far(old, new) if isinstance(old, Gaussian) else None

    def objection_to_hyperparameters(
        self, factor: Any, hyperparameters: np.ndarray, num_data: int
    ) -> str | None:
        """Why an answer's factor of hyperparameters is refused, or None.

        :param hyperparameters: Where they are now [H].
        :param num_data: The number of the client's data points.
        """
        size = len(hyperparameters)
        malformed = Normal(np.zeros(size), np.eye(size)).objection_to(factor)
        if malformed:
            return f"its factor of hyperparameters: {malformed}"
        slope, precision = slope_and_precision(factor, hyperparameters)
        steepest = max(np.max(np.abs(slope)), np.max(np.abs(precision))) / num_data
        if steepest <= self.max_slope_per_datum:
            return None
        return (
            f"its factor of hyperparameters has a slope or curvature of {steepest:.3g} for each "
            f"data point, at most {self.max_slope_per_datum:g}"
        )

    def _too_far(self, before: Gaussian, after: Any) -> str | None:
        variance = np.maximum(np.asarray(before.variance), np.asarray(after.variance))
        shift = np.asarray(after.mean) - np.asarray(before.mean)
        size = float(np.sqrt(np.mean(np.square(shift) / variance)))
        if size <= self.max_shift:
            return None
        return f"it moves the mean by {size:.3g} standard deviations, at most {self.max_shift:g}"

    def _too_sure(self, certainty: float) -> str | None:
        if certainty <= self.max_precision_per_datum:
            return None
        return (
            f"it holds {certainty:.3g} prior precisions for each data point, at most "
            f"{self.max_precision_per_datum:g}; honest answers are so sure where inputs have large "
            "units or the prior is vague: scale the inputs, or raise the limit of pvi.Checks"
        )

    def _too_vague(self, fraction: float) -> str | None:
        if fraction >= -self.max_precision_loss:
            return None
        return (
            f"it takes away {-fraction:.3g} of the posterior's precision in the mean over "
            f"coordinates, at most {self.max_precision_loss:g}"
        )


NO_LIMITS = Checks(max_shift=np.inf, max_precision_per_datum=np.inf, max_precision_loss=np.inf)
"""For point estimates, which are surer than any posterior: only what is malformed or improper is
refused. Rules of federated averaging and of distributed optimisers bring it."""


def _diagonal(precision: Any) -> np.ndarray:
    precision = np.asarray(precision)
    return np.diagonal(precision) if precision.ndim == 2 else np.atleast_1d(precision)
