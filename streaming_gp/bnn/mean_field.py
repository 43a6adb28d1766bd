"""A fully connected network, whose functions are drawn by local reparameterisation.

Given a layer's inputs h its pre-activations are independent Gaussians with mean ``h W_m + b_m`` and
variance ``h² W_v + b_v``, and are drawn instead of the weights (Kingma, Salimans & Welling 2015):
``a = h W_m + b_m + √(h² W_v + b_v) ξ``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gpflow
import tensorflow as tf

from streaming_gp.bnn.network import ACTIVATIONS, Dense, Network
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import is_positive_integer
from streaming_gp.losses import NegativeLogLikelihood
from streaming_gp.numerics.draws import standard_normal
from streaming_gp.pvi.privacy.gradients import shares


class MeanFieldBNN(Network):
    """Dense layers, and any GPflow likelihood on the outputs; float32.

    :param sizes: The numbers of inputs, of units of each hidden layer, and of outputs (latent
        functions of the likelihood).
    :param likelihood: A GPflow likelihood, such as ``gpflow.likelihoods.Softmax(10)``; its
        parameters stay fixed unless ``pvi.LikelihoodParameters`` learns them.
    :param prior_variance: The prior variance of each weight and bias; the prior mean is zero.
    :param initial_scale: The standard deviation of each weight where fits start.
    :param num_samples: The number of networks drawn for each estimate of the expected log
        likelihood.
    :param activation: The function between layers: ``"relu"`` or ``"tanh"``, whose bounded values
        keep the gradients of single rows small, for private learning.
    :raises InvalidDataError: if there are fewer than two sizes, or anything is not positive.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        initial_scale: float = 0.03,
        num_samples: int = 1,
        activation: str = "relu",
    ) -> None:
        if len(sizes) < 2 or not all(map(is_positive_integer, sizes)):
            raise InvalidDataError(f"wanted two or more positive integers as sizes, got {sizes!r}")
        layers = [Dense(size) for size in sizes[1:]]
        super().__init__(
            sizes[:1], layers, likelihood, prior_variance, initial_scale, num_samples, activation
        )
        self.sizes = tuple(sizes)

    def functions(self, q: MeanFieldNormal, X: tf.Tensor, seed: tf.Tensor, num: int) -> tf.Tensor:
        """Draws of the outputs at X [N, D], [S, N, L]: right for each row, not jointly for rows.

        :param seed: The seed of the draws, two integers [2].
        """
        *_, last = self._passes(q, self.rows(X), seed, num)
        return self.read_out(last.drawn, X)

    def rows(self, X: tf.Tensor) -> tf.Tensor:
        """The inputs of the first layer, of X [N, D]."""
        return X

    def read_out(self, F: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Outputs at X [N, D] of those of the last layer, F [S, N, O]: [S, N, L]."""
        return F

    def _passes(self, q: Any, rows: tf.Tensor, seed: tf.Tensor, num: int) -> Iterator[LayerPass]:
        """Each layer at work on rows [N, I], of S networks: all arrays are [S or 1, N, ...]."""
        h = rows[None]
        means, variances = map(self.split, q.moments())
        for number, ((_, W_m, b_m), (_, W_v, b_v)) in enumerate(zip(means, variances, strict=True)):
            mean, sd = h @ W_m + b_m, tf.sqrt(tf.square(h) @ W_v + b_v)
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            shape = [num, tf.shape(rows)[0], self.sizes[number + 1]]
            noise = standard_normal(shape, own_seed, mean.dtype)
            drawn = mean + sd * noise
            yield LayerPass(h, W_v, b_v, sd, noise, drawn)
            h = ACTIVATIONS[self.activation](drawn)

    def clipped_gradient(
        self, q: Any, X: Any, Y: Any, weights: Any, seed: Any, clip: Any, by_spread: Any, loss: Any
    ) -> tf.Tensor:
        """``Σ_n w_n g_n min(1, C / ‖g_n‖)`` of one network drawn, by means and log standard
        deviations: [2, D]. As :class:`~streaming_gp.pvi.privacy.ClippedGradientModel` says.

        With ``δ = ∂ log p / ∂a`` and ``κ = δ ξ / (2 sd)``, a row's gradient is an outer product in
        each layer: ``h ⊗ δ`` by the means, and ``2 W_v ⊙ (h² ⊗ κ)`` by the logarithms. So the norm
        needs h, δ and κ alone (Goodfellow 2015; Lee & Kifer 2021, for weights that are not random),
        and the clipped sum is one product of matrices.
        """
        passes = []
        with tf.GradientTape() as tape:
            for one in self._passes(q, self.rows(X), seed, 1):
                tape.watch(one.drawn)
                passes.append(one)
            F = self.read_out(passes[-1].drawn, X)
            value = -tf.reduce_sum(self._losses(F, Y, loss or NegativeLogLikelihood()))
        gradients = tape.gradient(value, [one.drawn for one in passes])
        layers = []
        for one, delta in zip(passes, gradients, strict=True):
            kappa = by_spread * tf.math.divide_no_nan(0.5 * delta * one.noise, one.sd)
            layers.append((one.inputs[0], one.weights, one.biases, delta[0], kappa[0]))

        squared_norms = []
        for h, W_v, b_v, delta, kappa in layers:
            square = tf.square(h)
            of_means = (tf.reduce_sum(square, 1) + 1.0) * tf.reduce_sum(tf.square(delta), 1)
            spread = tf.square(square) @ tf.square(W_v) + tf.square(b_v)
            squared_norms.append(of_means + 4.0 * tf.reduce_sum(spread * tf.square(kappa), axis=1))
        share = shares(tf.add_n(squared_norms), weights, clip)[:, None]

        means, spreads = [], []
        for h, W_v, b_v, delta, kappa in layers:
            h = tf.where(share > 0.0, h, 0.0)  # a share of 0 keeps a row out whatever it holds
            delta = tf.math.multiply_no_nan(delta, share)
            kappa = tf.math.multiply_no_nan(kappa, share)
            of_weights = 2.0 * W_v * tf.matmul(tf.square(h), kappa, transpose_a=True)
            means += [tf.matmul(h, delta, transpose_a=True), tf.reduce_sum(delta, axis=0)]
            spreads += [of_weights, 2.0 * b_v * tf.reduce_sum(kappa, axis=0)]
        flat = ([tf.reshape(part, [-1]) for part in parts] for parts in (means, spreads))
        return tf.stack([tf.concat(parts, 0) for parts in flat])


@dataclass(frozen=True, eq=False)
class LayerPass:
    """One layer at work on N rows, of S networks.

    :param inputs: The inputs h [S or 1, N, I].
    :param weights: The variances W_v of the weights [I, O].
    :param biases: The variances b_v of the biases [O].
    :param sd: The standard deviations of the outputs [S, N, O].
    :param noise: The standard normal numbers ξ [S, N, O].
    :param drawn: The outputs a [S, N, O].
    """

    inputs: tf.Tensor
    weights: tf.Tensor
    biases: tf.Tensor
    sd: tf.Tensor
    noise: tf.Tensor
    drawn: tf.Tensor
