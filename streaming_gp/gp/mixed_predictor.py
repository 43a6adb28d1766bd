"""Predictions of outputs that mix latent functions, from those of one function of pairs (x, p)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp.gp.predictor import Inputs, Predictor
from streaming_gp.gp.process.mixing import pairs

AT_ONCE = 16
"""Covariances among outputs are taken from joint covariances at so many inputs."""


class MixedPredictor:
    """Predictions of P outputs, which are dependent given ε.

    :param single: The predictions of single outputs, at pairs.
    :param num_outputs: The number P of outputs.
    """

    def __init__(self, single: Predictor, num_outputs: int) -> None:
        self.single = single
        self.num_outputs = num_outputs

    def f(
        self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [S, N, P] and (co)variance for each ε, as :meth:`Predictor.f` has them."""
        if full_cov and full_output_cov:
            return self._joint(X)
        if full_cov:
            return self._by_output(X)
        if full_output_cov:
            return self._by_input(X)
        mean, variance = self.single.f(self._pairs(X))
        return self._outputs(mean), self._outputs(variance)

    def y(self, X: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [S, N, P] of the observations for each ε."""
        mean, variance = self.single.y(self._pairs(X))
        return self._outputs(mean), self._outputs(variance)

    def log_densities(self, X: Inputs, Y: np.ndarray) -> tf.Tensor:
        """``Σ_p log p(y_np | ε)`` [S, N] for each ε: outputs one by one, as in GPflow."""
        stacked = tf.reshape(tf.transpose(Y), [-1, 1])
        scores = self.single.log_densities(self._pairs(X), stacked)
        return tf.reduce_sum(self._outputs(scores), axis=2)

    # ---- pairs and outputs ----

    def _pairs(self, X: Inputs) -> Inputs:
        found = pairs(tf.convert_to_tensor(X), self.num_outputs)
        return found if tf.is_tensor(X) else found.numpy()

    def _outputs(self, values: tf.Tensor) -> tf.Tensor:
        """Values at all pairs [S, P N] or [S, P N, 1] as [S, N, P]."""
        by_output = tf.reshape(values, [tf.shape(values)[0], self.num_outputs, -1])
        return tf.transpose(by_output, [0, 2, 1])

    # ---- covariances ----

    def _joint(self, X: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Covariance [S, N, P, N, P]."""
        mean, covariance = self.single.f(self._pairs(X), full_cov=True)
        N, P = tf.shape(X)[0], self.num_outputs
        split = tf.reshape(covariance, [-1, P, N, P, N])
        return self._outputs(mean), tf.transpose(split, [0, 2, 1, 4, 3])

    def _by_output(self, X: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Covariance [S, P, N, N] among the inputs."""
        split = tf.split if tf.is_tensor(X) else np.split
        each = split(self._pairs(X), self.num_outputs)
        found = [self.single.f(one, full_cov=True) for one in each]
        mean, covariance = zip(*found, strict=True)
        return tf.concat(mean, axis=2), tf.concat(covariance, axis=1)

    def _by_input(self, X: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Covariance [S, N, P, P] among the outputs."""
        number = X.shape[0]
        starts = [0] if number is None else range(0, number, AT_ONCE)
        found = [self._joint(X[i : i + AT_ONCE] if number else X) for i in starts]
        mean, joint = zip(*found, strict=True)
        covariance = [tf.einsum("snpnq->snpq", part) for part in joint]
        return tf.concat(mean, axis=1), tf.concat(covariance, axis=1)
