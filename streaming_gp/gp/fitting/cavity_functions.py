"""The compiled functions of a cavity process, whatever the bound."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.compiled import compiled, spec
from streaming_gp.gp.process.conditioning import Stack
from streaming_gp.gp.process.process import Process


class CavityFunctions:
    """Variances, covariances and normalisers of one model's processes.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        E, D, G = local.parameters.size, local.input_dim, local.gp.num_groups
        stack, inputs = local.gp.stack_spec(D), spec(None, D)
        indices = tf.TensorSpec([None], tf.int64)
        self.features = compiled(self._features, spec(E), stack, inputs)
        self.columns = compiled(self._columns, spec(E), inputs, spec(G, None, None), indices)
        self._log_normaliser = compiled(self._log_normaliser_of, spec(E), stack)

    def log_normaliser(self, epsilon: np.ndarray, process: Process) -> float:
        """The log normaliser of a process at ε [E], and its own log scale, in nats."""
        compact = process.compact
        stack = self.local.gp.stack(compact.pseudo_observations, self.local.input_dim)
        return compact.log_scale + float(self._log_normaliser(epsilon, stack))

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

    def _log_normaliser_of(self, epsilon: tf.Tensor, stack: Stack) -> tf.Tensor:
        gp = self.local.gp
        with self.local.parameters.substituted(epsilon):
            return gp.log_normaliser(gp.condition(stack))
