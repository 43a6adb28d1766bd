"""Trainable parameters of a model's likelihood, as one vector of unconstrained numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Normal
from streaming_gp.pvi.compiled import compiled_for, tensors
from streaming_gp.pvi.model import Data, TrainableModel, require


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
    factors is the whole data term. It has no constant, and is improper where the expectation is
    convex.

    :param candidates: Distributions q; the one that makes the data likeliest is taken.
    :param data: Inputs X [N, D] and observations Y [N, P].
    :param seed: The seed of the estimate, if it is one.
    """
    compiled = compiled_for(model, "by hyperparameters", _derivatives)
    seeds = np.array([seed, 0], np.int32)
    found = [compiled(type(q), tensors(q.natural), *data, seeds) for q in candidates]
    _, gradient, hessian = max(found, key=lambda one: np.nan_to_num(float(one[0]), nan=-np.inf))
    precision = -hessian.numpy()
    return Factor(Normal, (gradient.numpy() + precision @ values(model), precision))


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
        # TFP's softplus says NaN beyond 709, where its curvature is none
        return (
            expected,
            gradient,
            tf.where(tf.math.is_nan(hessian), tf.zeros_like(hessian), hessian),
        )

    return derivatives
