"""Sums of the gradients of single rows, each of them clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from streaming_gp.pvi.model import Model
from streaming_gp.pvi.updates.variational import expected_log_likelihood_of

ClippedSum = Callable[..., tf.Tensor]
"""Of (family, numbers, X, Y, weights, seed, clip, by_spread): shaped as the numbers."""


@runtime_checkable
class ClippedGradientModel(Protocol):
    """A model that knows its clipped gradients better than differentiation row by row does."""

    def clipped_gradient(
        self, q: Any, X: Any, Y: Any, weights: Any, seed: Any, clip: Any, by_spread: Any, loss: Any
    ) -> tf.Tensor:
        """``Σ_n w_n g_n min(1, C / ‖g_n‖)``, shaped as ``q.unconstrained()``.

        Here ``g_n`` is the gradient of ``E_q[log p(y_n | θ)]``, or of an estimate of it whose
        random numbers are independent among rows, by the unconstrained numbers of q. A row whose
        gradient is not finite counts as zero.

        :param q: A member of the prior's family.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        :param weights: The weights w, 0 or 1: [N].
        :param seed: Two integers [2] that determine the estimate.
        :param clip: The bound C on the norm; infinity for none.
        :param by_spread: 1 for the whole gradient; 0 to leave what it says of q's spread at zero.
        :param loss: A loss in the place of ``−log p(y | θ)``; None for that.
        """
        ...


def clipped_sum_of(model: Model, loss: Any) -> ClippedSum:
    """The model's own formula if it has one; else gradients row by row."""
    if isinstance(model, ClippedGradientModel):
        own: ClippedGradientModel = model

        @tf.function(reduce_retracing=True)
        def by_formula(
            family: Any, numbers: Any, X: Any, Y: Any, w: Any, seed: Any, clip: Any, spread: Any
        ) -> tf.Tensor:
            q = family.from_unconstrained(numbers)
            return own.clipped_gradient(q, X, Y, w, seed, clip, spread, loss)

        return by_formula
    return _row_by_row(model, loss)


def _row_by_row(model: Model, loss: Any) -> ClippedSum:
    expected = expected_log_likelihood_of(model, loss)

    @tf.function(reduce_retracing=True)
    def total(
        family: Any, numbers: Any, X: Any, Y: Any, w: Any, seed: Any, clip: Any, spread: Any
    ) -> tf.Tensor:
        def gradient(row: Any) -> tf.Tensor:
            x, y, number = row
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            with tf.GradientTape() as tape:
                tape.watch(numbers)
                value = expected(family.from_unconstrained(numbers), x[None], y[None], own_seed)
            return tape.gradient(value, numbers)

        rows = tf.vectorized_map(gradient, (X, Y, tf.range(tf.shape(X)[0])))
        if numbers.shape.rank == 2 and numbers.shape[0] == 2:  # means before spreads
            rows *= tf.stack([tf.ones_like(spread), spread])[:, None]
        flat = tf.reshape(rows, [tf.shape(X)[0], -1])
        kept = shares(tf.reduce_sum(tf.square(flat), axis=1), w, clip)
        clipped = tf.math.multiply_no_nan(flat, kept[:, None])
        return tf.reshape(tf.reduce_sum(clipped, axis=0), tf.shape(numbers))

    return total


def shares(squared_norms: tf.Tensor, weights: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
    """What each row's gradient is multiplied by: ``w_n min(1, C / ‖g_n‖)``, 0 if not finite: [N].

    :param squared_norms: ``‖g_n‖²`` [N].
    :param weights: The weights w, 0 or 1: [N].
    :param clip: The bound C.
    """
    share = weights / tf.maximum(tf.ones_like(clip), tf.sqrt(squared_norms) / clip)
    return tf.where(tf.math.is_finite(squared_norms), share, tf.zeros_like(share))
