"""Random numbers within compiled functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def standard_normal(shape: Any, seed: Any, dtype: Any) -> tf.Tensor:
    """The same draws for the same seed, of this shape.

    The generator is named, as the one that XLA takes by itself is many times slower.

    :param seed: Two integers [2].
    """
    return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")
