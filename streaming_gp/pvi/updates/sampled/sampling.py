"""What rules that draw from a tilted distribution ask of samplers and of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian
from streaming_gp.pvi.model import SampledModel, require
from streaming_gp.pvi.task import LocalTask

Chain = tuple[tf.Tensor, ...]
"""State of a Markov chain; its first entry is the position [D]."""


@dataclass(frozen=True, eq=False)
class Target:
    """A tilted distribution (Hasenclever et al. 2017, eq. 20).

    :param log_density: The function ``log_density(theta [S, D], seed [2])``: the logarithm of the
        density up to a constant [S], differentiable; on the minibatch that ``seed`` draws, if the
        sampler wants minibatches.
    :param approximation: A Gaussian that is near the tilted distribution.
    """

    log_density: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    approximation: Any


class Sampler(Protocol):
    """A Markov chain kernel, hashable and made of TensorFlow operations: a rule compiles it."""

    @property
    def batch_size(self) -> int | None:
        """Random rows that a gradient sees; all if None."""
        ...

    def begin(self, theta: tf.Tensor) -> Chain:
        """A chain at ``theta`` [D]."""
        ...

    def step(self, chain: Chain, target: Target, seed: tf.Tensor) -> tuple[Chain, tf.Tensor]:
        """Go on, and give S draws [S, D].

        :param chain: The state of the chain.
        :param target: The tilted distribution.
        :param seed: Two integers [2] that determine the draws.
        """
        ...


def log_likelihood_of(model: Any) -> Callable[[tf.Tensor, Any, Any], tf.Tensor]:
    """The model's own.

    :raises InvalidDataError: if it has none.
    """
    sampled: SampledModel = require(model, SampledModel, "sampling")
    return sampled.log_likelihood


def require_gaussian(task: LocalTask) -> type[Gaussian]:
    """The family of a task.

    :raises InvalidDataError: if it is not of Gaussians.
    """
    family = type(task.posterior)
    if not issubclass(family, Gaussian):
        raise InvalidDataError(f"wanted a Gaussian posterior, got a {family.__name__}")
    return family


def log_density(
    model: Any, base: Factor, power: float, X: tf.Tensor, Y: tf.Tensor, batch_size: int | None
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """``log base(θ) + power · Σ_n log p(y_n | θ)`` as a target has it.

    :param batch_size: The number of rows that are drawn with replacement, and scaled to all; None
        for all rows as they are.
    """
    if batch_size is None:
        return lambda theta, _: (
            base.log_value(theta) + power * log_likelihood_of(model)(theta, X, Y)
        )
    number, scale = tf.shape(X)[0], power / batch_size

    def estimated(theta: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        rows = tf.random.stateless_uniform([batch_size], seed, 0, number, tf.int32)
        value = log_likelihood_of(model)(theta, tf.gather(X, rows), tf.gather(Y, rows))
        weight = scale * tf.cast(number, theta.dtype)
        return base.log_value(theta) + weight * tf.cast(value, theta.dtype)

    return estimated
