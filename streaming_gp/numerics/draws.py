"""Random numbers within compiled functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def standard_normal(shape: Any, seed: Any, dtype: Any) -> tf.Tensor:
    """Independent draws from N(0, 1), the same for the same seed.

    The generator is named, as the one that XLA takes by itself is many times slower.

    :param shape: The shape of the draws.
    :param seed: Two integers [2].
    :param dtype: A floating-point type.
    """
    return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")
