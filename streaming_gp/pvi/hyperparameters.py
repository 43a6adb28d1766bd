"""Hyperparameters learned across clients (PVI 2018, eq. 5 and appendix B).

Trainable parameters of a likelihood are one vector of unconstrained numbers [H]. Factors of them
are Gaussian in form, perhaps improper, so quadratic in logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.inputs import Fraction, PositiveFinite, as_groups, typed
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.model import (
    HyperparameterModel,
    bounded_precision,
    newton_step,
    set_values,
    slope_and_precision,
    values,
)
from streaming_gp.pvi.server import Server


@runtime_checkable
class HyperparameterRule(Protocol):
    """How hyperparameters change before and after the rounds of a run."""

    def begin(self, server: Server) -> None:
        """Make ready, before the first round."""

    def learn(self, server: Server) -> dict[str, float]:
        """Take one step, after a round; returns metrics of the round."""


@typed
@dataclass(frozen=True)
class PriorVariance:
    """Learns the variances of a prior ``N(m, diag(v))`` from the server's posterior alone.

    Of eq. 5 only ``E_q[∂ log p(θ | v)/∂v]`` depends on a prior's hyperparameters, and no client
    needs to be asked. Each group of coordinates has one number c by which its v are multiplied: the
    expectation vanishes at ``c = E_q[(θ − m)² / v]``, the mean over the group, and each call goes
    there by a share of the way in log c.

    :param rate: The share of that way, in (0, 1].
    :param groups: The group of each coordinate [D], from 0: ``net.layer_of_weights`` for one
        variance a layer, ``range(D)`` for relevances. One group if None.
    :raises InvalidDataError: if the share is not in (0, 1].
    """

    rate: Fraction = 1.0
    groups: Sequence[int] | None = None

    def begin(self, server: Server) -> None:
        """The server's prior is where it starts.

        :raises InvalidDataError: if it is no Gaussian with independent coordinates, or there is not
            one group for each.
        """
        self._groups_of(server.prior)

    def learn(self, server: Server) -> dict[str, float]:
        """Replace the server's prior, keep all factors.

        :returns: the mean variance of each group: as ``prior_variance`` if it is the only one, else
            as ``prior_variance_0`` and so on.
        :raises InvalidDataError: if the prior is no Gaussian with independent coordinates, or there
            is not one group for each.
        :raises ImproperError: if the new posterior is no distribution; nothing has changed then.
        """
        prior, q = server.prior, server.posterior
        groups, mean, variance = self._groups_of(prior), *_independent(prior)
        excess = (np.square(q.mean - mean) + np.asarray(q.variance)) / variance
        sizes = np.bincount(groups)
        growth = ((np.bincount(groups, excess) / sizes) ** self.rate)[groups]
        covariance = np.asarray(prior.moments()[1])
        growth = {0: growth[0], 1: growth, 2: growth[:, None]}[covariance.ndim]
        covariance = (covariance * growth).astype(covariance.dtype)
        changed = type(prior).from_moments(mean, covariance).as_arrays()
        server.adopt(Ledger(changed, server.factors))
        means = np.bincount(groups, np.asarray(changed.variance)) / sizes
        if len(means) == 1:
            return {"prior_variance": float(means[0])}
        return {f"prior_variance_{g}": float(one) for g, one in enumerate(means)}

    def _groups_of(self, prior: Any) -> np.ndarray:
        """The group of each coordinate [D]."""
        groups = as_groups(self.groups, len(_independent(prior)[0]))
        if groups.any() and np.ndim(prior.precision) == 0:
            raise InvalidDataError(f"a {type(prior).__name__} has one variance, got {groups}")
        return groups


def _independent(prior: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean [D] and variances [D] of a Gaussian with independent coordinates."""
    precision = np.asarray(prior.precision) if isinstance(prior, Gaussian) else None
    if precision is None or (
        precision.ndim == 2 and np.any(precision - np.diag(np.diag(precision)))
    ):
        raise InvalidDataError("wanted a Gaussian prior with independent coordinates")
    return np.asarray(prior.mean), np.asarray(prior.variance)


@typed
@dataclass(frozen=True)
class LikelihoodParameters:
    """Learns a model's trainable parameters ε: maximum likelihood by the free energy (eq. 5).

    Every answer says how its client's expected log-likelihood depends on ε under q after the
    client's fit: to second order, with a curvature that was tried out. The newest of these of all
    clients add up, each about the ε that it was asked under, as late ones want it; after a round ε
    takes one Newton step on their sum. The step is bounded: in one round GPflow's positive
    parameters change by a factor of about e at most.

    Of a Gaussian process with fixed hyperparameters all trainable parameters are learned, those of
    kernel and mean function as well: the server adds the prior's term of eq. 5 to what clients say.

    :param learning_rate: The share of that step, in (0, 1].
    :param max_step: The bound, in unconstrained numbers u. GPflow's positive numbers are
        ``log(1 + e^u)``, nearly ``e^u`` below zero and u above, so that it holds for u up to 2 and
        is ``max_step · u / 2`` beyond.
    :raises InvalidDataError: if the share is not in (0, 1] or the bound not positive.
    """

    learning_rate: Fraction = 1.0
    max_step: PositiveFinite = 1.0

    def begin(self, server: Server) -> None:
        """The server takes the values that the clients' model has now.

        :raises InvalidDataError: if the model has no ``trainable_variables``.
        """
        if server.hyperparameters is None:
            server.hyperparameters = values(_model(server))

    def learn(self, server: Server) -> dict[str, float]:
        """One step on what the newest answers of all clients add up to, for the server and for the
        clients' model in this process.

        :returns: the norm of the gradient before the step, per data point, as ``gradient_norm``.
        """
        factors = server.hyperparameter_factors
        if server.hyperparameters is None or not factors:
            return {"gradient_norm": float("nan")}
        numbers, model = server.hyperparameters, _model(server)
        terms: list[Any] = [*factors.values()]
        if isinstance(model, HyperparameterModel):
            _, gradient, hessian = model.prior_term_by_hyperparameters(server.posterior)
            precision = -hessian()
            terms.append(Factor(Normal, (gradient + precision @ values(model), precision)))
        gradient, precision = slope_and_precision(reduce(mul, terms), numbers)
        precision = bounded_precision(numbers, gradient, precision, self.max_step)
        step = newton_step(gradient, precision)
        server.hyperparameters = numbers + self.learning_rate * step
        set_values(model, server.hyperparameters)
        num_data = sum(server.clients[n].num_data for n in factors if n in server.clients) or 1
        return {"gradient_norm": float(np.linalg.norm(gradient)) / num_data}


def _model(server: Server) -> Any:
    """The clients' model, which they share in this process."""
    return next(iter(server.clients.values())).model
