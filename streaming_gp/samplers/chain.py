"""What kernels share."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from streaming_gp.pvi.updates.sampling import Chain


def transitions(
    one: Callable[[Chain, tf.Tensor], Chain], chain: Chain, number: int, seed: tf.Tensor
) -> tuple[Chain, tf.Tensor]:
    """Several transitions: the chain after them, and its positions [number, D].

    :param one: The transition, a function of a chain and a seed [2].
    :param chain: The chain before the transitions.
    :param number: The number of transitions.
    :param seed: The seed of all of them, two integers [2].
    """

    def step(i: tf.Tensor, chain: Chain, visited: tf.TensorArray) -> tuple:
        chain = one(chain, tf.random.experimental.stateless_fold_in(seed, i))
        return i + 1, chain, visited.write(i, chain[0])

    visited = tf.TensorArray(chain[0].dtype, number, element_shape=chain[0].shape)
    _, chain, visited = tf.while_loop(
        lambda i, *_: i < number, step, (tf.constant(0), chain, visited)
    )
    return chain, visited.stack()
