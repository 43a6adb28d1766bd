"""A fully connected network, whose functions are drawn by local reparameterisation.

Given a layer's inputs h its pre-activations are independent Gaussians with mean ``h W_m + b_m`` and
variance ``h² W_v + b_v``, and are drawn instead of the weights (Kingma, Salimans & Welling 2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gpflow
import tensorflow as tf

from streaming_gp.bnn.clipping import LayerPass, clipped_total
from streaming_gp.bnn.layers import Dense
from streaming_gp.bnn.network import ACTIVATIONS, Network
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import is_positive_integer
from streaming_gp.losses import NegativeLogLikelihood
from streaming_gp.numerics.draws import standard_normal


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
    :param activation: What is between layers: ``"relu"`` or ``"tanh"``, whose bounded values keep
        the gradients of single rows small, for private learning.
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
        """What the first layer takes of X [N, D]."""
        return X

    def read_out(self, F: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Outputs at X [N, D] of what the last layer gives, F [S, N, O]: [S, N, L]."""
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
            yield LayerPass(h, (W_v, b_v), sd, noise, drawn)
            h = ACTIVATIONS[self.activation](drawn)

    def clipped_gradient(
        self, q: Any, X: Any, Y: Any, weights: Any, seed: Any, clip: Any, by_spread: Any, loss: Any
    ) -> tf.Tensor:
        """``Σ_n w_n g_n min(1, C / ‖g_n‖)`` of one network drawn: [2, D].

        As :class:`~streaming_gp.pvi.privacy.ClippedGradientModel` says.
        """
        with tf.GradientTape() as tape:
            passes = []
            for one in self._passes(q, self.rows(X), seed, 1):
                tape.watch(one.drawn)
                passes.append(one)
            F = self.read_out(passes[-1].drawn, X)
            value = -tf.reduce_sum(self._losses(F, Y, loss or NegativeLogLikelihood()))
        deltas = tape.gradient(value, [one.drawn for one in passes])
        alone = [
            LayerPass(one.inputs[0], one.variances, one.sd[0], one.noise[0], one.drawn[0])
            for one in passes
        ]
        return clipped_total(alone, [delta[0] for delta in deltas], weights, clip, by_spread)
