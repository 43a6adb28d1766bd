"""Clipped gradients of a fully connected network, without the gradient of any single row.

Under local reparameterisation a layer draws ``a = h W_m + b_m + √(h² W_v + b_v) ξ``. With
``δ = ∂ log p / ∂a`` and ``κ = δ ξ / (2 sd)``, a row's gradient is an outer product in each layer:
``h ⊗ δ`` by the means, and ``2 W_v ⊙ (h² ⊗ κ)`` by the logarithms of standard deviations. So the
norm needs h, δ and κ alone (Goodfellow 2015; Lee & Kifer 2021, for weights that are not random),
and the clipped sum is one product of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streaming_gp.pvi.privacy.gradients import shares


@dataclass(frozen=True, eq=False)
class LayerPass:
    """One layer at work on N rows, of one network.

    :param inputs: The inputs h [N, I].
    :param variances: The variances W_v of the weights [I, O], and b_v of the biases [O].
    :param sd: The standard deviations of the outputs [N, O].
    :param noise: The standard normal numbers ξ [N, O].
    :param drawn: The outputs a [N, O].
    """

    inputs: tf.Tensor
    variances: tuple[tf.Tensor, tf.Tensor]
    sd: tf.Tensor
    noise: tf.Tensor
    drawn: tf.Tensor


@dataclass(frozen=True, eq=False)
class LayerGradient:
    """The gradients of N rows by one layer's numbers.

    :param inputs: The inputs h [N, I].
    :param variances: Those of weights [I, O] and biases [O].
    :param by_mean: δ [N, O].
    :param by_variance: κ [N, O].
    """

    inputs: tf.Tensor
    variances: tuple[tf.Tensor, tf.Tensor]
    by_mean: tf.Tensor
    by_variance: tf.Tensor

    @classmethod
    def of(cls, one: LayerPass, delta: tf.Tensor, by_spread: tf.Tensor) -> LayerGradient:
        kappa = by_spread * tf.math.divide_no_nan(0.5 * delta * one.noise, one.sd)
        return cls(one.inputs, one.variances, delta, kappa)

    def squared_norms(self) -> tf.Tensor:
        """[N]."""
        weights, biases = self.variances
        square = tf.square(self.inputs)
        of_means = (tf.reduce_sum(square, 1) + 1.0) * tf.reduce_sum(tf.square(self.by_mean), 1)
        spread = tf.square(square) @ tf.square(weights) + tf.square(biases)
        return of_means + 4.0 * tf.reduce_sum(spread * tf.square(self.by_variance), axis=1)

    def total(self, share: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sums over rows by means, and by logarithms of standard deviations: weights and biases.

        :param share: What each row is multiplied by [N]; 0 keeps it out whatever it holds.
        """
        weights, biases = self.variances
        inputs = tf.where(share[:, None] > 0.0, self.inputs, 0.0)
        delta = tf.math.multiply_no_nan(self.by_mean, share[:, None])
        kappa = tf.math.multiply_no_nan(self.by_variance, share[:, None])
        means = [tf.matmul(inputs, delta, transpose_a=True), tf.reduce_sum(delta, axis=0)]
        spreads = [
            2.0 * weights * tf.matmul(tf.square(inputs), kappa, transpose_a=True),
            2.0 * biases * tf.reduce_sum(kappa, axis=0),
        ]
        return means, spreads


def clipped_total(
    passes: list[LayerPass], deltas: list[tf.Tensor], weights: Any, clip: Any, by_spread: Any
) -> tf.Tensor:
    """``Σ_n w_n g_n min(1, C / ‖g_n‖)`` by means and logarithms of standard deviations: [2, D].

    :param passes: The layers at work, from the inputs to the outputs.
    :param deltas: δ of each layer.
    """
    layers = [LayerGradient.of(*pair, by_spread) for pair in zip(passes, deltas, strict=True)]
    share = shares(tf.add_n([layer.squared_norms() for layer in layers]), weights, clip)
    sums = [layer.total(share) for layer in layers]
    means = [tf.reshape(part, [-1]) for pair, _ in sums for part in pair]
    spreads = [tf.reshape(part, [-1]) for _, pair in sums for part in pair]
    return tf.stack([tf.concat(means, 0), tf.concat(spreads, 0)])
