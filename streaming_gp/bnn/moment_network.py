"""A fully connected network through which means and variances are passed on, not draws.

Probabilistic back-propagation (Hernández-Lobato & Adams 2015): the units of a layer are taken for
independent Gaussians, so that the output at an input x is ``N(m, v)`` in closed form under
independent Gaussian weights, and the likelihood of a datum has the expectation
``N(y; m, v + σ²)``. Its gradients by the moments of the weights are what expectation propagation
asks for: ``PowerEPUpdate``, ``StochasticEPUpdate`` and ``AssumedDensityUpdate`` do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import (
    require_count,
    require_positive_finite,
    require_positive_integer,
    require_sizes,
)
from streaming_gp.losses import log_gaussian_power
from streaming_gp.numerics.quadrature import gauss_hermite
from streaming_gp.validation import Data, as_data, as_matrix, require_posterior

Moments = tuple[tf.Tensor, tf.Tensor]
NUM_NODES = 20


class MomentNetwork:
    """ReLU layers, one output, Gaussian noise; float64.

    A layer of m inputs h computes ``(Wᵀh + b) / √(m + 1)``, so that all weights and biases can have
    one prior. Its means are small random numbers instead of zero, without which all hidden units
    would stay alike; PBP starts at the same ones.

    :param num_inputs: The number of inputs D.
    :param hidden: The number of units of each hidden layer; without any the model is linear, and
        exact.
    :param noise_variance: The variance σ² of the noise, which stays fixed unless
        ``pvi.LikelihoodParameters`` learns it.
    :param prior_variance: The prior variance of each weight and bias.
    :param seed: The seed of the prior's means.
    :raises InvalidDataError: if a size is not a positive integer, or a variance not positive.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int] = (50,),
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
        seed: int = 0,
    ) -> None:
        require_positive_integer("num_inputs", num_inputs)
        require_sizes("hidden", hidden)
        self.sizes = (num_inputs, *hidden, 1)
        require_positive_finite("noise_variance", noise_variance)
        require_positive_finite("prior_variance", prior_variance)
        require_count("seed", seed)
        self.likelihood = gpflow.likelihoods.Gaussian(noise_variance)
        self.prior_variance = prior_variance
        self.seed = seed

    @property
    def num_parameters(self) -> int:
        """Of all weights and biases."""
        return sum((m + 1) * n for m, n in pairwise(self.sizes))

    def prior(self) -> MeanFieldNormal:
        """``N(θ; m_0, prior_variance I)``, each m_0 drawn from N(0, 1 / (m + 1)) in its layer."""
        return MeanFieldNormal.from_mean_variance(*self._weight_prior())

    def _weight_prior(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        drawn = [rng.standard_normal((m + 1) * n) / np.sqrt(m + 1) for m, n in pairwise(self.sizes)]
        mean = np.concatenate(drawn)
        return mean, np.full_like(mean, self.prior_variance)

    def initial(self, seed: int) -> MeanFieldNormal:
        """The prior."""
        return self.prior()

    def as_data(self, X: Any, Y: Any) -> Data:
        """Arrays X [N, D] and Y [N, 1], float64.

        :raises InvalidDataError: if shapes or entries are not what the network can take.
        """
        return as_data((X, Y), self.likelihood, self.sizes[0], 1)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The likelihood's, unconstrained, which only ``pvi.LikelihoodParameters`` learns."""
        return self.likelihood.trainable_variables

    def predictor(self, q: MeanFieldNormal, X: Any) -> Moments:
        """Mean and variance of the output at X [N, D], [N, 1] each (PBP, eqs. 13 to 17)."""
        weights, start = q.moments(), 0
        mean, variance = tf.convert_to_tensor(X), tf.zeros_like(X)
        for m, n in pairwise(self.sizes):
            if start > 0:
                mean, variance = relu_moments(mean, variance)
            of_layer = slice(start, start + (m + 1) * n)
            shaped = (tf.reshape(moment[of_layer], [m + 1, n]) for moment in weights)
            mean, variance = _affine(mean, variance, *shaped)
            start += (m + 1) * n
        return mean, variance

    def log_tilted(
        self, cavity: MeanFieldNormal, x: tf.Tensor, y: tf.Tensor, alpha: float
    ) -> tf.Tensor:
        """``log ∫ N(f; m, v) N(y; f, σ²)^α df`` with the output's moments under the cavity: [].

        :param x: The input of the datum [D].
        :param y: The output of the datum [1].
        :param alpha: The power α > 0 of the likelihood.
        """
        return self._log_power(cavity, y[None], *self.predictor(cavity, x[None]), alpha)[0]

    def _log_power(
        self, q: MeanFieldNormal, Y: Any, mean: tf.Tensor, variance: tf.Tensor, alpha: float
    ) -> tf.Tensor:
        """``log ∫ N(f; m, v) N(y; f, σ²)^α df`` for each row of Y, m and v [N, 1]: [N]."""
        noise = tf.convert_to_tensor(self.likelihood.variance)
        return log_gaussian_power(Y, mean, variance, noise, alpha)[:, 0]

    def expected_log_likelihood(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> tf.Tensor:
        """``Σ_n E[log N(y_n; f_n, σ²)]`` with the outputs' moments under q: []."""
        mean, variance = self.predictor(q, X)
        return tf.reduce_sum(self.likelihood.variational_expectations(X, mean, variance, Y))

    # ---- predictions ----

    def predict(self, q: MeanFieldNormal, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y at X [N, D], [N, 1] each.

        :raises InvalidDataError: if q or X is not what the network takes.
        """
        require_posterior(q, self.prior())
        X = as_matrix("X", X, self.sizes[0])
        mean, variance = self.likelihood.predict_mean_and_var(X, *self.predictor(q, X))
        return mean.numpy(), variance.numpy()

    def predict_log_density(self, q: MeanFieldNormal, data: tuple[Any, Any]) -> np.ndarray:
        """``log N(y; m, v + σ²)`` for each row of (X, Y): [N], in nats.

        :raises InvalidDataError: if q or the data are not what the network takes.
        """
        require_posterior(q, self.prior())
        X, Y = self.as_data(*data)
        return self._log_power(q, Y, *self.predictor(q, X), 1.0).numpy()


class NoisyMomentNetwork(MomentNetwork):
    """A :class:`MomentNetwork` whose last parameter is log σ², with a Gaussian prior.

    The logarithm of the noise's variance has factors like every weight, where probabilistic
    back-propagation has a gamma distribution with rules of its own. Expectations over it are by
    Gauss–Hermite quadrature.

    :param num_inputs: As for :class:`MomentNetwork`, like ``hidden``, ``prior_variance`` and
        ``seed``.
    :param noise_variance: The variance whose logarithm is the prior's mean.
    :param noise_spread: The prior's standard deviation of log σ².
    :raises InvalidDataError: if a size is not a positive integer, or a variance or spread not
        positive.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int] = (50,),
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
        seed: int = 0,
        noise_spread: float = 1.0,
    ) -> None:
        super().__init__(num_inputs, hidden, noise_variance, prior_variance, seed)
        require_positive_finite("noise_spread", noise_spread)
        self.noise_mean, self.noise_spread = float(np.log(noise_variance)), noise_spread

    @property
    def num_parameters(self) -> int:
        """Of all weights and biases, and log σ²."""
        return super().num_parameters + 1

    def prior(self) -> MeanFieldNormal:
        """That of the weights, and ``N(log σ²; log noise_variance, noise_spread²)``."""
        mean, variance = self._weight_prior()
        return MeanFieldNormal.from_mean_variance(
            np.append(mean, self.noise_mean), np.append(variance, self.noise_spread**2)
        )

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """None: the noise is a parameter of q."""
        return ()

    def expected_log_likelihood(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> tf.Tensor:
        """``Σ_n E[log N(y_n; f_n, σ²)]`` with the moments under q of outputs and of log σ²: []."""
        mean, variance = self.predictor(q, X)
        log_noise, spread = _last(q)
        precision = tf.exp(0.5 * spread - log_noise)
        squared = tf.reduce_sum(tf.square(Y - mean) + variance)
        number = tf.cast(tf.size(Y), tf.float64)
        return -0.5 * (number * (np.log(2.0 * np.pi) + log_noise) + precision * squared)

    def predict(self, q: MeanFieldNormal, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y at X [N, D], [N, 1] each; the noise has the mean of σ² under q.

        :raises InvalidDataError: if q or X is not what the network takes.
        """
        require_posterior(q, self.prior())
        mean, variance = self.predictor(q, as_matrix("X", X, self.sizes[0]))
        log_noise, spread = _last(q)
        return mean.numpy(), (variance + tf.exp(log_noise + 0.5 * spread)).numpy()

    def _log_power(
        self, q: MeanFieldNormal, Y: Any, mean: tf.Tensor, variance: tf.Tensor, alpha: float
    ) -> tf.Tensor:
        """``log E[∫ N(f; m, v) N(y; f, σ²)^α df]`` over log σ²: [N]."""
        nodes, weights = gauss_hermite(NUM_NODES)
        log_noise, spread = _last(q)
        noise = tf.exp(log_noise + tf.sqrt(spread) * nodes[:, 0])
        at_nodes = log_gaussian_power(Y, mean, variance, noise, alpha)
        return tf.reduce_logsumexp(np.log(weights) + at_nodes, axis=1)


def _affine(mean: Any, variance: Any, weight_mean: Any, weight_variance: Any) -> Moments:
    """Moments of ``(Wᵀh + b) / √(m + 1)`` for h of these moments; biases are the last row."""
    size = weight_mean.shape[0]
    second = tf.square(mean) + variance
    squared = tf.square(weight_mean[:-1])
    mean = mean @ weight_mean[:-1] + weight_mean[-1]
    variance = second @ weight_variance[:-1] + variance @ squared + weight_variance[-1]
    return mean / np.sqrt(size), variance / size


def relu_moments(mean: tf.Tensor, variance: tf.Tensor) -> Moments:
    """Mean and variance of ``max(a, 0)`` for Gaussian a.

    With r = mean / sd and ``g(r) = φ(r) + r Φ(r)`` they are ``sd g(r)`` and
    ``variance (Φ(r) − g(r) g(−r))``: for large r the second moment is never subtracted.
    """
    sd = tf.sqrt(variance)
    r = mean / sd
    density = tf.exp(-0.5 * tf.square(r)) / np.sqrt(2.0 * np.pi)
    below, above = (0.5 * tf.math.erfc(sign * r / np.sqrt(2.0)) for sign in (-1.0, 1.0))
    active, idle = density + r * below, density - r * above
    return sd * active, variance * (below - active * idle)


def _last(q: MeanFieldNormal) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of log σ²."""
    mean, variance = q.moments()
    return mean[-1], variance[-1]
