"""Hyperparameters learned across clients (PVI 2018, eq. 5 and appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Gaussian
from streaming_gp.pvi.server import Server


@dataclass(frozen=True)
class PriorVariance:
    """Learns the variance s² of a prior ``N(0, s² I)`` from the server's posterior alone.

    Of eq. 5 only ``E_q[∂ log p(θ | s²)/∂s²]`` depends on a prior's hyperparameter, and no client
    needs to be asked. It vanishes at ``s² = E_q[θ²]``, the mean over coordinates; each call goes
    there by a share of the way in log s².

    :param rate: that share, in (0, 1].
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise InvalidDataError(f"rate must lie in (0, 1], got {self.rate}")

    def learn(self, server: Server) -> float:
        """Replace the server's prior, keep all factors; returns s².

        :raises InvalidDataError: if the prior is not a Gaussian with mean zero and one variance.
        :raises ImproperError: if the new posterior is no distribution; nothing has changed then.
        """
        old = _variance(server.prior)
        q = server.posterior
        best = float(np.mean(np.square(q.mean) + np.asarray(q.variance)))
        new = old ** (1.0 - self.rate) * best**self.rate
        precision_mean, precision = server.prior.natural
        scaled = (precision * (old / new)).astype(precision.dtype)
        server.learn_prior(type(server.prior)(precision_mean, scaled))
        return new


def _variance(prior: Gaussian) -> float:
    """The one variance of all coordinates."""
    variance = np.asarray(prior.variance)
    if np.any(prior.precision_mean) or not np.allclose(variance, variance[0]):
        raise InvalidDataError("wanted a prior with mean zero and one variance for all coordinates")
    return float(variance[0])
