"""What an answer must be before it may touch the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import ImproperError
from streaming_gp.expfam import ExponentialFamily, Factor, Gaussian
from streaming_gp.pvi.ledger import Ledger


@dataclass(frozen=True)
class Checks:
    """Limits of a sane answer. An answer beyond them is refused and reported; the round goes on.

    A broken or hostile client is stopped where its factor is malformed or implausible; one that
    lies within these limits is not noticed.

    :param max_shift: the posterior mean may move by so many standard deviations at most, as root
        mean square over coordinates, measured by the wider of the old and the new posterior.
    :param max_precision_per_datum: no coordinate may gain more precision for each of the client's
        data points than so many times its prior precision.
    :param max_precision_loss: a factor may be worth minus this share of the posterior's precision
        at most, as a mean over coordinates. Single coordinates of an honest factor may be negative,
        and all of them a little, where a minibatch is noisy or a start surer than it should be.
    """

    max_shift: float = 100.0
    max_precision_per_datum: float = 1e3
    max_precision_loss: float = 0.05

    def objection(self, ledger: Ledger[Any], factor: Any, num_data: int) -> str | None:
        """Why a factor is refused whatever it would do to the posterior, or None.

        :param num_data: the client's data points.
        """
        malformed = _malformed(factor, ledger.prior) or _not_finite(factor)
        if malformed or not isinstance(ledger.prior, Gaussian):
            return malformed
        precision = _diagonal(factor.natural[1])
        gain = np.max(precision / _diagonal(ledger.prior.precision)) / num_data
        share = np.mean(precision / _diagonal(ledger.posterior.precision))
        return self._too_sure(float(gain)) or self._too_vague(float(share))

    def objection_to_step(self, before: Ledger[Any], after: Ledger[Any]) -> str | None:
        """Why a change of the ledger is refused, or None."""
        try:
            old, new = before.posterior, after.posterior
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

    def _too_sure(self, gain: float) -> str | None:
        if gain <= self.max_precision_per_datum:
            return None
        return (
            f"it is worth {gain:.3g} prior precisions for each data point, at most "
            f"{self.max_precision_per_datum:g}"
        )

    def _too_vague(self, share: float) -> str | None:
        if share >= -self.max_precision_loss:
            return None
        return (
            f"it takes away {-share:.3g} of the posterior's precision in the mean over "
            f"coordinates, at most {self.max_precision_loss:g}"
        )


def _malformed(factor: Any, prior: ExponentialFamily) -> str | None:
    if not isinstance(factor, Factor) or factor.family is not type(prior):
        return f"it is no factor of the family {type(prior).__name__}"
    wanted = [np.shape(eta) for eta in prior.natural]
    got = [np.shape(eta) for eta in factor.natural]
    if got != wanted:
        return f"its natural parameters have shapes {got}, wanted {wanted}"
    if any(np.asarray(eta).dtype.kind != "f" for eta in factor.natural):
        return "its natural parameters are not floating-point numbers"
    return None


def _not_finite(factor: Factor) -> str | None:
    finite = all(np.isfinite(eta).all() for eta in factor.natural)
    return None if finite else "its natural parameters are not finite"


def _diagonal(precision: Any) -> np.ndarray:
    precision = np.asarray(precision)
    return np.diagonal(precision) if precision.ndim == 2 else np.atleast_1d(precision)
