"""Trainable parameters of a model's likelihood, as one vector of unconstrained numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
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


def gradient_by_hyperparameters(model: Any, q: Any, data: Data, seed: int) -> np.ndarray:
    """``E_q[∂ log p(y | θ, ε)/∂ε]``, one client's part of PVI 2018, eq. 5: [H]."""
    compiled = compiled_for(model, "by hyperparameters", _gradient)
    found = compiled(type(q), tensors(q.natural), *data, np.array([seed, 0], np.int32))
    return np.concatenate([np.ravel(part.numpy()) for part in found])


def _gradient(model: Any) -> Callable[..., Any]:
    @tf.function(reduce_retracing=True)
    def gradient(family: Any, natural: Any, X: Any, Y: Any, seed: Any) -> Any:
        with tf.GradientTape() as tape:
            expected = model.expected_log_likelihood(family(*natural), X, Y, seed)
        return tape.gradient(expected, model.trainable_variables)

    return gradient
