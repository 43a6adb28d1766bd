"""What kernels share."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from streaming_gp.pvi.updates.sampling import Chain


def transitions(
    one: Callable[[Chain, tf.Tensor], Chain], chain: Chain, number: int, seed: tf.Tensor
) -> tuple[Chain, tf.Tensor]:
    """So many transitions: the chain after them, and its positions [number, D].

    :param one: a transition, by a chain and a seed [2].
    """

    def step(i: tf.Tensor, chain: Chain, visited: tf.TensorArray) -> tuple:
        chain = one(chain, tf.random.experimental.stateless_fold_in(seed, i))
        return i + 1, chain, visited.write(i, chain[0])

    visited = tf.TensorArray(chain[0].dtype, number, element_shape=chain[0].shape)
    _, chain, visited = tf.while_loop(
        lambda i, *_: i < number, step, (tf.constant(0), chain, visited)
    )
    return chain, visited.stack()
