"""Hyperparameters learned across clients (PVI 2018, eq. 5 and appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.arguments import require_fraction, require_positive
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Gaussian
from streaming_gp.pvi import model_parameters
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.quadratic import bounded_precision, newton_step, slope_and_precision
from streaming_gp.pvi.server import Server


@runtime_checkable
class HyperparameterRule(Protocol):
    """What happens to hyperparameters before and after the rounds of a run."""

    def begin(self, server: Server) -> None:
        """Make ready, before the first round."""
        ...

    def learn(self, server: Server) -> dict[str, float]:
        """Take one step, after a round; returns what joins the round's metrics."""
        ...


@dataclass(frozen=True)
class PriorVariance:
    """Learns the variance s² of a prior ``N(0, s² I)`` from the server's posterior alone.

    Of eq. 5 only ``E_q[∂ log p(θ | s²)/∂s²]`` depends on a prior's hyperparameter, and no client
    needs to be asked. It vanishes at ``s² = E_q[θ²]``, the mean over coordinates; each call goes
    there by a share of the way in log s².

    :param rate: The share of that way, in (0, 1].
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise InvalidDataError(f"rate must lie in (0, 1], got {self.rate}")

    def begin(self, server: Server) -> None:
        """Nothing: the server's prior is where it starts."""

    def learn(self, server: Server) -> dict[str, float]:
        """Replace the server's prior, keep all factors; returns s² as ``prior_variance``.

        :raises InvalidDataError: if the prior is not a Gaussian with mean zero and one variance.
        :raises ImproperError: if the new posterior is no distribution; nothing has changed then.
        """
        old = _variance(server.prior)
        q = server.posterior
        best = float(np.mean(np.square(q.mean) + np.asarray(q.variance)))
        new = old ** (1.0 - self.rate) * best**self.rate
        precision_mean, precision = server.prior.natural
        scaled = (precision * (old / new)).astype(precision.dtype)
        prior = type(server.prior)(precision_mean, scaled).as_arrays()
        server.adopt(Ledger(prior, server.factors))
        return {"prior_variance": new}


def _variance(prior: Gaussian) -> float:
    """The one variance of all coordinates."""
    variance = np.asarray(prior.variance)
    if np.any(prior.precision_mean) or not np.allclose(variance, variance[0]):
        raise InvalidDataError("wanted a prior with mean zero and one variance for all coordinates")
    return float(variance[0])


@dataclass(frozen=True)
class LikelihoodParameters:
    """Learns a likelihood's trainable parameters ε: maximum likelihood by the free energy (eq. 5).

    Every answer says how its client's expected log-likelihood depends on ε under q after the
    client's fit: to second order, with a curvature that was tried out. The newest of these of all
    clients add up, each about the ε that it was asked under, as late ones want it; after a round ε
    takes one Newton step on their sum. The step is bounded: in one round GPflow's positive
    parameters change by a factor of about e at most.

    :param learning_rate: The share of that step, in (0, 1].
    :param max_step: The bound, in unconstrained numbers u. GPflow's positive numbers are
        ``log(1 + e^u)``, nearly ``e^u`` below zero and u above, so that it holds for u up to 2 and
        is ``max_step · u / 2`` beyond.
    :raises InvalidDataError: if the share is not in (0, 1] or the bound not positive.
    """

    learning_rate: float = 1.0
    max_step: float = 1.0

    def __post_init__(self) -> None:
        require_fraction("learning_rate", self.learning_rate)
        require_positive("max_step", self.max_step)

    def begin(self, server: Server) -> None:
        """The server takes the values that the clients' model has now.

        :raises InvalidDataError: if the model has no ``trainable_variables``.
        """
        if server.hyperparameters is None:
            server.hyperparameters = model_parameters.values(_model(server))

    def learn(self, server: Server) -> dict[str, float]:
        """One step on what the newest answers of all clients add up to, for the server and for the
        clients' model in this process.

        :returns: the norm of the gradient before the step, per data point, as ``gradient_norm``.
        """
        factors = server.hyperparameter_factors
        if server.hyperparameters is None or not factors:
            return {"gradient_norm": float("nan")}
        numbers = server.hyperparameters
        said: Any = reduce(mul, factors.values())
        gradient, precision = slope_and_precision(said, numbers)
        precision = bounded_precision(numbers, gradient, precision, self.max_step)
        step = newton_step(gradient, precision)
        server.hyperparameters = numbers + self.learning_rate * step
        model_parameters.set_values(_model(server), server.hyperparameters)
        num_data = sum(server.clients[name].num_data for name in factors)
        return {"gradient_norm": float(np.linalg.norm(gradient)) / num_data}


def _model(server: Server) -> Any:
    """The clients' model, which they share in this process."""
    return next(iter(server.clients.values())).model
