"""Outputs that mix latent functions, as one function of pairs (x, p): input and output.

Outputs ``f_p(x) = m_p(x) + Σ_l W_pl g_l(x)`` of independent latent functions g_l (the linear model
of coregionalisation: Álvarez, Rosasco & Lawrence 2012, section 4) have the covariance

    ``k((x, p), (x', p')) = Σ_l W_pl W_p'l k_l(x, x')``.

They are one Gaussian process over pairs, and P outputs at each of N inputs are P N observations of
it. A pair is a row of D + 1 columns, of which the last one numbers the output; nothing moves that,
as all here is piecewise constant in it.
"""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf

from streaming_gp.numerics.shapes import check_shapes


@check_shapes("X: [N, D]", "return: [Q, E]")
def pairs(X: tf.Tensor, num_outputs: int) -> tf.Tensor:
    """All pairs [P N, D + 1] of inputs [N, D] and P outputs, one output after another."""
    index = tf.repeat(tf.range(num_outputs, dtype=X.dtype), tf.shape(X)[0])
    return tf.concat([tf.tile(X, [num_outputs, 1]), index[:, None]], axis=1)


def split(X: tf.Tensor, num_outputs: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs [N, D] of pairs [N, D + 1], and rows [N, P] of zeros with a 1 at the output."""
    return X[:, :-1], tf.one_hot(tf.cast(X[:, -1], tf.int32), num_outputs, dtype=X.dtype)


class PairKernel(gpflow.kernels.Kernel):
    """The covariance between single outputs.

    :param mixing: The kernel that mixes; its parameters are this one's.
    """

    def __init__(self, mixing: gpflow.kernels.LinearCoregionalization) -> None:
        super().__init__()
        self.mixing = mixing

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        """Covariance [N, N2] between pairs [N, D + 1] and [N2, D + 1]."""
        x, weights = self._weighted(X)
        x2, weights2 = (None, weights) if X2 is None else self._weighted(X2)
        mixed = zip(self.mixing.kernels, weights, weights2, strict=True)
        return tf.add_n([w[:, None] * kernel(x, x2) * w2 for kernel, w, w2 in mixed])

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        """Variance [N] at pairs [N, D + 1]."""
        x, weights = self._weighted(X)
        mixed = zip(self.mixing.kernels, weights, strict=True)
        return tf.add_n([tf.square(w) * kernel(x, full_cov=False) for kernel, w in mixed])

    def _weighted(self, X: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Inputs [N, D], and for each latent function its weights [N] in the outputs."""
        W = tf.convert_to_tensor(self.mixing.W)
        x, chosen = split(X, W.shape[0])
        return x, tf.unstack(tf.matmul(W, chosen, transpose_a=True, transpose_b=True))


class _OfOneOutput(gpflow.functions.Function):
    """A function that has a value for each output, as a function of pairs.

    :param owner: The module that it reads its parameters from.
    :param num_outputs: The number P of outputs.
    """

    def __init__(self, owner: Any, num_outputs: int) -> None:
        super().__init__()
        self.owner = owner
        self.num_outputs = num_outputs

    def at(self, x: tf.Tensor) -> tf.Tensor:
        """Values [N, P] (or [N, 1]) at inputs [N, D]."""
        return self.owner(x)

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        x, chosen = split(X, self.num_outputs)
        return tf.reduce_sum(self.at(x) * chosen, axis=1, keepdims=True)


class PairMean(_OfOneOutput):
    """The mean function ``m_p(x)`` [N, 1]; its owner is the outputs' mean function."""


class PairNoise(_OfOneOutput):
    """The noise variance ``σ²_p(x)`` [N, 1]; its owner is the outputs' Gaussian likelihood."""

    def at(self, x: tf.Tensor) -> tf.Tensor:
        shape = [tf.shape(x)[0], self.num_outputs]
        return self.owner.conditional_variance(x, tf.zeros(shape, x.dtype))
