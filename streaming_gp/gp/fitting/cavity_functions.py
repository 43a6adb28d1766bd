"""The compiled functions of a cavity process, whatever the bound."""

from __future__ import annotations

import tensorflow as tf

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.graphs import spec
from streaming_gp.gp.process.tensors import Stack


class CavityFunctions:
    """Variances and covariances of one model's processes.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        E, D, G = local.parameters.size, local.input_dim, local.gp.num_groups
        stack, inputs = local.gp.stack_spec(D), spec(None, D)
        indices = tf.TensorSpec([None], tf.int64)
        self.features = local.graphs.compiled(self._features, spec(E), stack, inputs)
        self.columns = local.graphs.compiled(
            self._columns, spec(E), inputs, spec(G, None, None), indices
        )

    def _features(
        self, epsilon: tf.Tensor, stack: Stack, X: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Cavity projection V [G, R, N] and cavity variance [N], averaged over groups."""
        gp = self.local.gp
        with self.local.parameters.substituted(epsilon):
            V = gp.project(stack, gp.condition(stack), X)
            return V, tf.reduce_mean(gp.variance(V, X), axis=0)

    def _columns(
        self, epsilon: tf.Tensor, X: tf.Tensor, V: tf.Tensor, indices: tf.Tensor
    ) -> tf.Tensor:
        """Cavity covariances [N, K] of all inputs with K of them, averaged over groups."""
        with self.local.parameters.substituted(epsilon):
            some = tf.gather(V, indices, axis=2), tf.gather(X, indices)
            return tf.reduce_mean(self.local.gp.covariance(V, X, *some), axis=0)
