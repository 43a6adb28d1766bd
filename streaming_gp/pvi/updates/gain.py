"""What data are worth to q: the part of a local free energy that a loss decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.updates.task import Model

Gain = Callable[..., tf.Tensor]
"""What the data are worth to q, by (q, X, Y, seed)."""


def gain_of(model: Model, loss: Any) -> Gain:
    """Expected log likelihood, or minus the expected loss.

    :raises InvalidDataError: if there is a loss, and the model has no ``expected_loss``.
    """
    if loss is None:
        return lambda q, X, Y, seed: model.expected_log_likelihood(q, X, Y, seed)
    if not hasattr(model, "expected_loss"):
        raise InvalidDataError("this model has no expected_loss: it takes no loss but its own")
    expected: Any = model
    return lambda q, X, Y, seed: -expected.expected_loss(q, X, Y, seed, loss)
