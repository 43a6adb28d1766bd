"""Hyperparameters learned across clients (PVI 2018, eq. 5 and appendix B).

Trainable parameters of a likelihood are one vector of unconstrained numbers [H]. Factors of them
are Gaussian in form, perhaps improper, so quadratic in logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.inputs import Fraction, Positive, as_groups, typed
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.model import (
    Data,
    HyperparameterModel,
    SecondOrder,
    TrainableModel,
    compiled_for,
    require,
    tensors,
)

if TYPE_CHECKING:
    from streaming_gp.pvi.server import Server

MAX_HALVINGS = 12
ROUNDING = 1e-6  # of 32-bit sums, relative


@runtime_checkable
class HyperparameterRule(Protocol):
    """How hyperparameters change before and after the rounds of a run."""

    def begin(self, server: Server) -> None:
        """Make ready, before the first round."""
        ...

    def learn(self, server: Server) -> dict[str, float]:
        """Take one step, after a round; returns metrics of the round."""
        ...


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
        """Nothing: the server's prior is where it starts."""

    def learn(self, server: Server) -> dict[str, float]:
        """Replace the server's prior, keep all factors.

        :returns: the mean variance of each group: as ``prior_variance`` if it is the only one, else
            as ``prior_variance_0`` and so on.
        :raises InvalidDataError: if the prior is no Gaussian with independent coordinates, or there
            is not one group for each.
        :raises ImproperError: if the new posterior is no distribution; nothing has changed then.
        """
        prior, q = server.prior, server.posterior
        mean, variance = _independent(prior)
        groups = self._groups_of(prior)
        excess = (np.square(q.mean - mean) + np.asarray(q.variance)) / variance
        sizes = np.bincount(groups)
        growth = (np.bincount(groups, excess) / sizes) ** self.rate
        changed = _scaled(prior, growth[groups])
        server.adopt(Ledger(changed, server.factors))
        means = np.bincount(groups, np.asarray(changed.variance)) / sizes
        if len(means) == 1:
            return {"prior_variance": float(means[0])}
        return {f"prior_variance_{g}": float(one) for g, one in enumerate(means)}

    def _groups_of(self, prior: Gaussian) -> np.ndarray:
        groups = as_groups(self.groups, len(prior.precision_mean))
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


def _scaled(prior: Gaussian, growth: np.ndarray) -> Gaussian:
    """The same mean, and variances that are so many times as large: [D]."""
    mean, covariance = (np.asarray(part) for part in prior.moments())
    by = {0: growth[0], 1: growth, 2: growth[:, None]}[covariance.ndim]
    changed = (covariance * by).astype(covariance.dtype)
    return type(prior).from_moments(mean, changed).as_arrays()


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
    max_step: Positive = 1.0

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
            terms.append(prior_factor(model, server.posterior))
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


# ---- the parameters of a model as one vector ----


def values(model: Any) -> np.ndarray:
    """All of them, in the order of ``model.trainable_variables``: [H]."""
    trainable: TrainableModel = require(model, TrainableModel, "learning the likelihood")
    variables = trainable.trainable_variables
    if not variables:
        raise InvalidDataError(f"{type(model).__name__} has no trainable_variables to learn")
    return np.concatenate([np.ravel(variable.numpy()) for variable in variables])


def set_values(model: Any, numbers: np.ndarray) -> None:
    """Assign them.

    :param numbers: The unconstrained values [H], in the order of :func:`values`.
    """
    start = 0
    for variable in model.trainable_variables:
        size = int(tf.size(variable))
        variable.assign(np.reshape(numbers[start : start + size], variable.shape))
        start += size


def hyperparameter_factor(model: Any, candidates: Sequence[Any], data: Data, seed: int) -> Factor:
    """``E_q[log p(y | θ, ε)]`` to second order about the ε that the model has, as a factor of ε.

    Its gradient there is one client's part of PVI 2018, eq. 5, and the product of all clients'
    factors is the whole data term. Its curvature is raised, as in a trust region, as far as it
    takes for its maximum to be uphill indeed.

    :param candidates: Distributions q; the one that makes the data likeliest is taken.
    :param data: Inputs X [N, D] and observations Y [N, P].
    :param seed: The seed of the estimate, if it is one.
    """
    terms = [_data_term(model, q, data, seed) for q in candidates]
    best = int(np.argmax([np.nan_to_num(one.value, nan=-np.inf) for one in terms]))
    value, gradient, hessian = terms[best]
    numbers, precision = values(model), -hessian()
    if np.isfinite(gradient).all() and np.isfinite(precision).all():  # else the server refuses it
        precision = bounded_precision(numbers, gradient, precision, bound=1.0)
        step = newton_step(gradient, precision)
        try:
            for halvings in range(MAX_HALVINGS):
                share = 0.5**halvings
                set_values(model, numbers + share * step)
                gain = _data_term(model, candidates[best], data, seed).value - value
                promise = 0.5 * share * float(gradient @ step)
                if gain >= 0.5 * promise - ROUNDING * abs(value):
                    break
        finally:
            set_values(model, numbers)
        precision = precision / share
    return Factor(Normal, (gradient + precision @ numbers, precision))


def prior_factor(model: HyperparameterModel, q: Any) -> Factor:
    """The prior's term of ε, to second order about the ε that the model has (PVI 2018, eq. 5).

    :param model: It says ``−KL(q ‖ p(θ | ε))``, and log p(ε) where ε has a prior.
    :param q: The server's posterior.
    """
    _, gradient, hessian = model.prior_term_by_hyperparameters(q)
    precision = -hessian()
    return Factor(Normal, (gradient + precision @ values(model), precision))


def _data_term(model: Any, q: Any, data: Data, seed: int) -> SecondOrder:
    """By the model's own formula if it has one."""
    if isinstance(model, HyperparameterModel):
        return model.data_term_by_hyperparameters(q, data)
    derivatives = compiled_for(model, "by hyperparameters", _derivatives)
    seeds = np.array([seed, 0], np.int32)
    value, gradient, hessian = derivatives(type(q), tensors(q.natural), *data, seeds)
    return SecondOrder(float(value), gradient.numpy(), hessian.numpy)


def _derivatives(model: Any) -> Callable[..., Any]:
    """Value, gradient [H] and Hessian [H, H] of the expected log-likelihood by hyperparameters."""

    @tf.function(autograph=False, reduce_retracing=True)
    def derivatives(family: Any, natural: Any, X: Any, Y: Any, seed: Any) -> Any:
        variables = model.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                expected = model.expected_log_likelihood(family(*natural), X, Y, seed)
            parts = inner.gradient(expected, variables, unconnected_gradients="zero")
            gradient = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        columns = outer.jacobian(
            gradient, variables, unconnected_gradients="zero", experimental_use_pfor=False
        )
        size = tf.size(gradient)
        hessian = tf.concat([tf.reshape(part, [size, -1]) for part in columns], 1)
        # the second derivative of TFP's softplus is NaN beyond 709, and should be zero
        hessian = tf.where(tf.math.is_nan(hessian), tf.zeros_like(hessian), hessian)
        return expected, gradient, hessian

    return derivatives


# ---- quadratic functions of them ----


def slope_and_precision(factor: Factor, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient [H] of a factor's logarithm at these hyperparameters [H], and minus its Hessian
    [H, H].
    """
    precision_mean, precision = factor.natural
    return precision_mean - precision @ numbers, precision


def bounded_precision(
    numbers: np.ndarray, gradient: np.ndarray, precision: np.ndarray, bound: float
) -> np.ndarray:
    """The positive curvature [H, H] under which a Newton step goes uphill and is bounded.

    Along each eigenvector of the precision its sign is dropped, and it is raised where the step
    would be longer than the bound.

    :param numbers: Hyperparameters [H]; one beyond 2 is measured in units of its half.
    """
    unit = np.maximum(1.0, 0.5 * numbers)
    curvature, directions = np.linalg.eigh(unit[:, None] * precision * unit)
    slope = directions.T @ (unit * gradient)
    steepest = np.maximum(np.abs(curvature), np.abs(slope) / bound)
    return (directions * steepest) @ directions.T / (unit[:, None] * unit)


def newton_step(gradient: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The shortest step [H] to the maximum; none in directions without curvature."""
    step: np.ndarray = np.linalg.lstsq(precision, gradient, rcond=None)[0]
    return step
