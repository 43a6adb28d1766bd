"""The expected log-likelihood of a local free energy, or the loss that takes its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from streaming_gp.pvi.model import LikelihoodModel, LossModel, Model, require

ExpectedLogLikelihood = Callable[..., tf.Tensor]
"""``E_q[log p(Y | θ, X)]`` as a function of (q, X, Y, seed), in nats: a scalar."""


def expected_log_likelihood_of(model: Model, loss: Any) -> ExpectedLogLikelihood:
    """The model's expected log-likelihood, or minus the expected loss.

    :param loss: A loss of :mod:`streaming_gp.losses`; None for ``−log p(y | θ)``.
    :raises InvalidDataError: if there is a loss, and the model has no ``expected_loss``.
    """
    if loss is None:
        own: LikelihoodModel = require(model, LikelihoodModel, "this update")
        return lambda q, X, Y, seed: own.expected_log_likelihood(q, X, Y, seed)
    expected: LossModel = require(model, LossModel, "a loss other than its own")
    return lambda q, X, Y, seed: -expected.expected_loss(q, X, Y, seed, loss)
