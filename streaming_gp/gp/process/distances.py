"""Squares of distances that keep their digits where a lengthscale is very short.

As ``‖x‖² + ‖x'‖² − 2 xᵀx'`` they lose ``10⁻¹⁶ ‖x‖²``. Where inputs are equal in one column, and lie
thousands of its lengthscales from the origin, that is more than the noise of a function that is
known well: and the prior of a lengthscale reaches to next to nothing.

In more than three columns the careful way takes several times as long as the quick one, and is
seldom wanted. So a graph may take the quick one, if it says NaN where that loses digits, and what
runs the graph then runs a careful one: see :class:`.Compiled`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce

import numpy as np
import tensorflow as tf
from gpflow.utilities.ops import square_distance

FAR = 1e3
"""In lengthscales: 10⁻¹⁰ of the square of a distance is less than any noise that is learned."""
FARTHEST = 3
"""So many columns are subtracted before they are squared, so that derivatives, too, keep their
digits: each costs as much as a covariance."""


class Shortcuts:
    """Whether covariances that are traced now take the quick way where it matters.

    :param taken: Set to True once one does.
    """

    def __init__(self) -> None:
        self.taken = False


_allowed: ContextVar[Shortcuts | None] = ContextVar("allowed", default=None)


@contextmanager
def shortcuts_allowed() -> Iterator[Shortcuts]:
    """Within, covariances are NaN where the quick way loses digits, and say if they took it."""
    shortcuts = Shortcuts()
    token = _allowed.set(shortcuts)
    try:
        yield shortcuts
    finally:
        _allowed.reset(token)


def of_squared_distances(
    function: Callable[[tf.Tensor], tf.Tensor], X: tf.Tensor, X2: tf.Tensor
) -> tf.Tensor:
    """A function of ``‖x − x'‖²`` [N, N2] between X [N, D] and X2 [N2, D].

    :param X: Inputs in lengthscales, which are near zero if they can be.
    """
    if X.shape[1] is not None and X.shape[1] <= FARTHEST:
        return function(_directly(tf.transpose(X), tf.transpose(X2), X.shape[1]))
    rows = tf.stop_gradient(tf.concat([X, X2, tf.zeros_like(X[:1])], axis=0))
    reach = tf.reduce_max(tf.abs(rows), axis=0)
    shortcuts = _allowed.get()
    if shortcuts is None:
        return function(_carefully(X, X2, reach))
    shortcuts.taken = True
    doubt = tf.where(tf.reduce_max(reach) > FAR, tf.constant(np.nan, X.dtype), 0.0)
    return function(square_distance(X, X2)) + doubt


def _carefully(X: tf.Tensor, X2: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
    """From the columns that reach farthest from zero, and from the others.

    In a graph for any number of columns derivatives do not keep their digits.
    """
    if X.shape[1] is None:
        return _split(X, X2, tf.reduce_max(reach))
    farthest = tf.math.top_k(reach, FARTHEST).indices
    others = 1.0 - tf.reduce_sum(tf.one_hot(farthest, X.shape[1], dtype=X.dtype), axis=0)
    columns, columns2 = (tf.gather(tf.transpose(x), farthest) for x in (X, X2))
    rest = _split(X * others, X2 * others, tf.reduce_max(reach * others))
    return _directly(columns, columns2, FARTHEST) + rest


def _directly(columns: tf.Tensor, columns2: tf.Tensor, number: int) -> tf.Tensor:
    """From so many columns [D, N] and [D, N2]: one after another takes half of the time."""
    left = tf.unstack(tf.expand_dims(columns, 2), number)
    right = tf.unstack(tf.expand_dims(columns2, 1), number)
    return reduce(tf.add, map(tf.math.squared_difference, left, right))


def _split(X: tf.Tensor, X2: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
    """Squares of distances by matrix products, whose values keep their digits.

    Coordinates are ``x = c + f``, where c are multiples of a unit so large that floating-point
    numbers hold sums of their squares exactly. In ``‖c − c'‖² + (f − f')ᵀ (g − g')`` with
    ``g = 2 c + f`` nothing is lost in the first, and little in the second, which is small.

    :param reach: The largest size of a coordinate.
    """
    unit = _unit(reach, tf.shape(X)[1])
    coarse, coarse2 = (tf.stop_gradient(tf.round(x / unit) * unit) for x in (X, X2))
    fine, fine2 = X - coarse, X2 - coarse2
    return _between(coarse, coarse, coarse2, coarse2) + _between(
        fine, 2.0 * coarse + fine, fine2, 2.0 * coarse2 + fine2
    )


def _unit(reach: tf.Tensor, dimension: tf.Tensor) -> tf.Tensor:
    """A power of two of whose square floating-point numbers hold ``4 D reach²``, to one."""
    info = np.finfo(reach.dtype.as_numpy_dtype)
    reach = tf.maximum(reach, math.sqrt(info.tiny))
    least = reach * tf.sqrt(4.0 * tf.cast(dimension, reach.dtype)) * 2.0 ** (-0.5 * info.nmant)
    return tf.pow(tf.constant(2.0, reach.dtype), tf.math.ceil(tf.math.log(least) / math.log(2.0)))


def _between(a: tf.Tensor, b: tf.Tensor, a2: tf.Tensor, b2: tf.Tensor) -> tf.Tensor:
    """``(a − a')ᵀ (b − b')`` [N, N2] for every row of a, b and every row of a', b'."""
    own, own2 = (tf.reduce_sum(x * y, axis=1, keepdims=True) for x, y in ((a, b), (a2, b2)))
    left = tf.concat([own, tf.ones_like(own), -a, -b], axis=1)
    right = tf.concat([tf.ones_like(own2), own2, b2, a2], axis=1)
    return tf.matmul(left, right, transpose_b=True)
