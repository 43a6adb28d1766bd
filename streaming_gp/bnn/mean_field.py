"""A fully connected network whose weights have independent Gaussian posteriors.

All weights and biases are one flat vector θ [D]; q has a mean and a variance for each. Functions
are drawn by local reparameterisation (Kingma, Salimans & Welling 2015): given a layer's inputs h
its pre-activations are independent Gaussians with mean ``h W_m + b_m`` and variance
``h² W_v + b_v``, and are drawn instead of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.losses import Loss, NegativeLogLikelihood
from streaming_gp.validation import as_data, as_matrix

Data = tuple[np.ndarray, np.ndarray]
_ROWS_AT_ONCE = 1000


class MeanFieldBNN:
    """ReLU layers, and any GPflow likelihood on the outputs; float32.

    :param sizes: inputs, hidden layers, outputs (latent functions of the likelihood).
    :param likelihood: such as ``gpflow.likelihoods.Softmax(10)``; its parameters stay fixed
        unless ``pvi.LikelihoodParameters`` learns them.
    :param prior_variance: of each weight and bias; the prior mean is zero.
    :param initial_scale: standard deviation of each weight where fits start.
    :param num_samples: of the network in each estimate of the expected log likelihood.
    :raises InvalidDataError: if there are fewer than two sizes, or anything is not positive.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        initial_scale: float = 0.03,
        num_samples: int = 1,
    ) -> None:
        if len(sizes) < 2 or min(*sizes, num_samples) < 1:
            raise InvalidDataError(
                f"wanted two or more positive sizes and num_samples, got {list(sizes)} and "
                f"{num_samples}"
            )
        if not (prior_variance > 0.0 and initial_scale > 0.0):
            raise InvalidDataError(
                f"prior_variance and initial_scale must be positive, got {prior_variance} and "
                f"{initial_scale}"
            )
        self.sizes = tuple(sizes)
        self.likelihood = likelihood
        self.prior_variance = prior_variance
        self.initial_scale = initial_scale
        self.num_samples = num_samples

    @property
    def num_parameters(self) -> int:
        """D: of all weights and biases."""
        return sum((m + 1) * n for m, n in self._layers())

    def _layers(self) -> Iterator[tuple[int, int]]:
        return zip(self.sizes[:-1], self.sizes[1:], strict=True)

    def prior(self) -> MeanFieldNormal:
        """``N(θ; 0, prior_variance I)``."""
        precision = np.full(self.num_parameters, 1.0 / self.prior_variance, np.float32)
        return MeanFieldNormal(np.zeros_like(precision), precision)

    def initial(self, seed: int) -> MeanFieldNormal:
        """Where fits start: means after Glorot & Bengio (2010), biases zero, a small variance."""
        rng = np.random.default_rng(seed)
        parts = []
        for m, n in self._layers():
            limit = np.sqrt(6.0 / (m + n))
            parts += [rng.uniform(-limit, limit, m * n), np.zeros(n)]
        mean = np.concatenate(parts).astype(np.float32)
        return MeanFieldNormal.from_mean_variance(
            mean, np.full_like(mean, self.initial_scale**2)
        ).as_arrays()

    def as_data(self, X: Any, Y: Any) -> Data:
        """Arrays X [N, D] and Y [N, P], float32.

        :raises InvalidDataError: if shapes or entries are not what the network can take.
        """
        X, Y = as_data((X, Y), self.likelihood, self.sizes[0], None)
        return X.astype(np.float32), Y.astype(np.float32)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """Of the likelihood, unconstrained; learned only where a run is told to."""
        return self.likelihood.trainable_variables

    def functions(self, q: MeanFieldNormal, X: tf.Tensor, seed: tf.Tensor, num: int) -> tf.Tensor:
        """Draws of the outputs at X [N, D], [S, N, L]: right for each row, not jointly for rows.

        :param seed: [2], integers.
        """
        mean, variance = q.moments()
        h, start = X[None], 0
        for number, (m, n) in enumerate(self._layers()):
            weights, biases = slice(start, start + m * n), slice(start + m * n, start + (m + 1) * n)
            mean_a = h @ tf.reshape(mean[weights], [m, n]) + mean[biases]
            variance_a = tf.square(h) @ tf.reshape(variance[weights], [m, n]) + variance[biases]
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            shape = [num, tf.shape(X)[0], n]
            noise = tf.random.stateless_normal(shape, own_seed, dtype=mean_a.dtype)
            a = mean_a + tf.sqrt(variance_a) * noise
            h, start = tf.nn.relu(a), start + (m + 1) * n
        return a

    def log_densities(self, q: MeanFieldNormal, X: Any, Y: Any, seed: Any, num: int) -> tf.Tensor:
        """``log p(y_n | f_s(x_n))`` of drawn functions: [S, N], float64."""
        return -self._drawn_losses(q, X, Y, seed, num, NegativeLogLikelihood())

    def _drawn_losses(
        self, q: MeanFieldNormal, X: Any, Y: Any, seed: Any, num: int, loss: Loss
    ) -> tf.Tensor:
        """``loss(f_s(x_n), y_n)`` of drawn functions: [S, N], float64."""
        F = tf.cast(self.functions(q, X, seed, num), tf.float64)
        many = tf.tile(tf.cast(Y, tf.float64), [num, 1])
        flat = loss(self.likelihood, tf.reshape(F, [-1, self.sizes[-1]]), many)
        return tf.reshape(flat, tf.shape(F)[:2])

    def expected_loss(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor, loss: Loss
    ) -> tf.Tensor:
        """An unbiased estimate of ``Σ_n E_q[loss(f(x_n), y_n)]``, float32: []."""
        losses = self._drawn_losses(q, X, Y, seed, self.num_samples, loss)
        return tf.cast(tf.reduce_sum(losses) / self.num_samples, tf.float32)

    def expected_log_likelihood(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """An unbiased estimate of ``Σ_n E_q[log p(y_n | f(x_n))]``, float32: []."""
        return -self.expected_loss(q, X, Y, seed, NegativeLogLikelihood())

    # ---- predictions ----

    def predict(
        self, q: MeanFieldNormal, X: Any, num_samples: int = 100, seed: int = 0
    ) -> np.ndarray:
        """Mean of y at X [N, D], over the posterior: [N, P]; class probabilities for ``Softmax``.

        :param num_samples: of the network, for each row.
        :raises InvalidDataError: if X is not what the network takes.
        """
        parts = [
            self._mean_of_y(q, rows, np.array([seed, number], np.int32), num_samples)
            for number, rows in enumerate(self._in_parts(X))
        ]
        return np.concatenate(parts)

    def predict_log_density(
        self, q: MeanFieldNormal, data: tuple[Any, Any], num_samples: int = 100, seed: int = 0
    ) -> np.ndarray:
        """``log E_q[p(y | f(x))]`` for each row of (X, Y): [N], in nats.

        :raises InvalidDataError: if the data are not what the network takes.
        """
        X, Y = self.as_data(*data)
        parts = []
        for number, start in enumerate(range(0, len(X), _ROWS_AT_ONCE)):
            rows = slice(start, start + _ROWS_AT_ONCE)
            seeds = np.array([seed, number], np.int32)
            parts.append(self._log_mean_density(q, X[rows], Y[rows], seeds, num_samples))
        return np.concatenate(parts)

    def _in_parts(self, X: Any) -> Iterator[np.ndarray]:
        X = as_matrix("X", X, self.sizes[0]).astype(np.float32)
        return (X[i : i + _ROWS_AT_ONCE] for i in range(0, len(X), _ROWS_AT_ONCE))

    def _mean_of_y(self, q: Any, X: np.ndarray, seed: np.ndarray, num: int) -> np.ndarray:
        F = tf.cast(self.functions(q, tf.constant(X), tf.constant(seed), num), tf.float64)
        mean = self.likelihood.conditional_mean(
            tf.zeros([num * len(X), 0], tf.float64), tf.reshape(F, [num * len(X), -1])
        )
        found: np.ndarray = tf.reduce_mean(tf.reshape(mean, [num, len(X), -1]), axis=0).numpy()
        return found

    def _log_mean_density(
        self, q: Any, X: np.ndarray, Y: np.ndarray, seed: np.ndarray, num: int
    ) -> np.ndarray:
        drawn = self.log_densities(q, tf.constant(X), tf.constant(Y), tf.constant(seed), num)
        mean: np.ndarray = (tf.reduce_logsumexp(drawn, axis=0) - np.log(num)).numpy()
        return mean
