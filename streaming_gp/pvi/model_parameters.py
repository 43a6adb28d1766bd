"""Trainable parameters of a model's likelihood, as one vector of unconstrained numbers.

Factors of them are Gaussian in form, perhaps improper, so quadratic in logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Normal
from streaming_gp.pvi.compiled import compiled_for, tensors
from streaming_gp.pvi.model import (
    Data,
    HyperparameterModel,
    SecondOrder,
    TrainableModel,
    require,
)

MAX_HALVINGS = 12
ROUNDING = 1e-6  # of 32-bit sums, relative


def values(model: Any) -> np.ndarray:
    """All of them, in the order of ``model.trainable_variables``: [H].

    :raises InvalidDataError: if the model has none.
    """
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

    @tf.function(reduce_retracing=True)
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
