"""A network that learns the variance of its noise along with its weights.

The logarithm of the variance is one more Gaussian parameter, with factors like every weight, where
probabilistic back-propagation has a gamma distribution with rules of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.bnn.moment_network import MomentNetwork
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import require_positive
from streaming_gp.losses import log_gaussian_power
from streaming_gp.numerics.quadrature import gauss_hermite
from streaming_gp.validation import as_matrix, require_posterior

NUM_NODES = 20


class NoisyMomentNetwork(MomentNetwork):
    """A :class:`MomentNetwork` whose last parameter is log σ², with a Gaussian prior.

    Expectations over log σ² are by Gauss–Hermite quadrature.

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
        require_positive("noise_spread", noise_spread)
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


def _last(q: MeanFieldNormal) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of log σ²."""
    mean, variance = q.moments()
    return mean[-1], variance[-1]
