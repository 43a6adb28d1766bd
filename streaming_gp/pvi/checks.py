"""What an answer must be before it may touch the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import ImproperError
from streaming_gp.expfam import Gaussian
from streaming_gp.pvi.ledger import Ledger


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
    """

    max_shift: float = 100.0
    max_precision_per_datum: float = 1e3
    max_precision_loss: float = 0.05

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

    def objection_to_gradient(self, gradient: Any, hyperparameters: np.ndarray) -> str | None:
        """Why an answer's gradient by hyperparameters is refused, or None."""
        if gradient is None or np.shape(gradient) != hyperparameters.shape:
            shape = None if gradient is None else np.shape(gradient)
            return f"its gradient has shape {shape}, wanted {hyperparameters.shape}"
        return None if np.isfinite(gradient).all() else "its gradient is not finite"

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
            f"{self.max_precision_per_datum:g}"
        )

    def _too_vague(self, fraction: float) -> str | None:
        if fraction >= -self.max_precision_loss:
            return None
        return (
            f"it takes away {-fraction:.3g} of the posterior's precision in the mean over "
            f"coordinates, at most {self.max_precision_loss:g}"
        )


def _diagonal(precision: Any) -> np.ndarray:
    precision = np.asarray(precision)
    return np.diagonal(precision) if precision.ndim == 2 else np.atleast_1d(precision)
