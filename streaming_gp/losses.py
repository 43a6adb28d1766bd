"""Losses of a likelihood, robust to data that it does not describe (PGVI, definitions 22 and 23).

Each maps function values and observations to a loss for each row; models average it over draws of
the function exactly as they average the log likelihood. Constants are such that every robust loss
tends to the negative log likelihood as its parameter tends to its limit, and is it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gpflow.likelihoods as gl
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import PositiveFinite, Probability, typed
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.validation import number_of_classes, observations

_SERIES = 1e-7


class Loss(Protocol):
    """The cost of a function value, given an observation."""

    def __call__(self, likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor, /) -> tf.Tensor:
        """The loss of each row [M], float64.

        :param likelihood: The likelihood that the loss replaces.
        :param F: Function values [M, L].
        :param Y: Observations [M, P].
        """


@runtime_checkable
class HasPowerIntegral(Protocol):
    """A likelihood that knows the integral of powers of its density, which β and γ losses need.

    Gaussian likelihoods and classifiers need not have it.
    """

    def log_power_integral(self, F: tf.Tensor, power: float, /) -> tf.Tensor:
        """``log ∫ p(y | f)^power dy`` of each row of function values F [M, L]: [M].

        :raises InvalidDataError: if the integral has no closed form.
        """


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """``−log p(y | f)``."""

    def __call__(self, likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        return -log_density(likelihood, F, Y)


@typed
@dataclass(frozen=True)
class BetaLoss:
    """``−(p^(β−1) − 1)/(β−1) + ∫ p^β dy/β − 1``: bounded, as a density is.

    :param beta: The power β > 0; above 1 the loss is robust, at 1 the negative log likelihood.
    """

    beta: PositiveFinite

    def __call__(self, likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        power = box_cox(log_density(likelihood, F, Y), self.beta - 1.0)
        integral = tf.exp(log_power_integral(likelihood, F, self.beta))
        return -power + integral / self.beta - 1.0


@typed
@dataclass(frozen=True)
class GammaLoss:
    """``−γ (u − 1)/(γ−1)`` with ``u = p^(γ−1) / (∫ p^γ dy)^((γ−1)/γ)``.

    :param gamma: The power γ > 0; above 1 the loss is robust, at 1 the negative log likelihood.
    """

    gamma: PositiveFinite

    def __call__(self, likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        g = self.gamma
        scaled = log_density(likelihood, F, Y) - log_power_integral(likelihood, F, g) / g
        return -g * box_cox(scaled, g - 1.0)


@typed
@dataclass(frozen=True)
class GeneralisedCrossEntropy:
    """``(1 − p^q)/q`` of a label's probability (Zhang & Sabuncu 2018).

    :param q: The power q in [0, 1]; 0 is the negative log likelihood, 1 the mean absolute error.
    """

    q: Probability = 0.7

    def __call__(self, likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        return -box_cox(log_density(likelihood, F, Y), self.q)


class GeneralisedLikelihood(gl.ScalarLikelihood):
    """``exp(−loss)`` in the place of ``p(y | f)``: a GP with it has a generalised posterior.

    Give it to ``StreamingGP`` as its likelihood. Predictions of observations are those of the
    likelihood itself. A robust loss is not log-concave: sites that would be negative are cut off,
    and counted in ``UpdateInfo``.

    :param likelihood: A GPflow likelihood of one latent function.
    :param loss: The loss that takes the place of its negative logarithm.
    """

    def __init__(self, likelihood: gl.ScalarLikelihood, loss: Loss) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.loss = loss

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        shape = tf.broadcast_dynamic_shape(tf.shape(F), tf.shape(Y))
        flat = (tf.reshape(tf.broadcast_to(values, shape), [-1, 1]) for values in (F, Y))
        return tf.reshape(-self.loss(self.likelihood, *flat), shape)

    def _conditional_mean(self, X: Any, F: Any) -> tf.Tensor:
        return self.likelihood._conditional_mean(X, F)

    def _conditional_variance(self, X: Any, F: Any) -> tf.Tensor:
        return self.likelihood._conditional_variance(X, F)

    def _predict_mean_and_var(self, X: Any, Fmu: Any, Fvar: Any) -> Any:
        return self.likelihood._predict_mean_and_var(X, Fmu, Fvar)

    def _predict_log_density(self, X: Any, Fmu: Any, Fvar: Any, Y: Any) -> tf.Tensor:
        return self.likelihood._predict_log_density(X, Fmu, Fvar, Y)


def box_cox(log_value: tf.Tensor, power: float) -> tf.Tensor:
    """``(exp(power · x) − 1)/power``, and x where the power is zero."""
    if abs(power) < _SERIES:
        return log_value + 0.5 * power * tf.square(log_value)
    return tf.math.expm1(power * log_value) / power


def log_gaussian_power(
    Y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, noise: tf.Tensor, alpha: float
) -> tf.Tensor:
    """``log E[N(y; f, σ²)^α]`` for Gaussian f, entry by entry.

    The power is a Gaussian of variance σ²/α, and a constant.
    """
    constant = 0.5 * ((1.0 - alpha) * (LOG_TWO_PI + tf.math.log(noise)) - np.log(alpha))
    total = variance + noise / alpha
    return constant - 0.5 * (LOG_TWO_PI + tf.math.log(total) + tf.square(Y - mean) / total)


def log_density(likelihood: gl.Likelihood, F: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
    """``log p(y | f)`` of each row: [M]."""
    unused = tf.zeros([tf.shape(F)[0], 0], tf.float64)  # for X, which no such likelihood reads
    return likelihood.log_prob(unused, F, observations(likelihood, Y))


def log_power_integral(likelihood: gl.Likelihood, F: tf.Tensor, power: float) -> tf.Tensor:
    """``log ∫ p(y | f)^power dy`` over all observations, a sum over labels for classifiers: [M].

    :param likelihood: A Gaussian, a classifier, or one that :class:`HasPowerIntegral`.
    :param F: Function values [M, L].
    :param power: The power of the density, positive.
    :raises InvalidDataError: if the likelihood is none of these.
    """
    if isinstance(likelihood, HasPowerIntegral):
        return likelihood.log_power_integral(F, power)
    if isinstance(likelihood, gl.Gaussian):
        log_scale = LOG_TWO_PI + tf.math.log(likelihood.variance)
        one = -0.5 * ((power - 1.0) * log_scale + np.log(power))
        return tf.reduce_sum(one + tf.zeros_like(F), axis=1)
    labels = _number_of_labels(likelihood)
    rows = [tf.fill([tf.shape(F)[0], 1], tf.constant(k, tf.float64)) for k in range(labels)]
    log_p = tf.stack([log_density(likelihood, F, label) for label in rows])
    return tf.reduce_logsumexp(power * log_p, axis=0)


def _number_of_labels(likelihood: gl.Likelihood) -> int:
    number = number_of_classes(likelihood)
    if number is None:
        raise InvalidDataError(
            f"no closed integral of powers of {type(likelihood).__name__}: robust losses are for "
            "Gaussian likelihoods and classifiers"
        )
    return number
