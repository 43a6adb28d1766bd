"""A Gaussian process that rests on frozen points, as conditional pseudo-points leave it.

q(u) = N(m, S Sᵀ) over all points so far is kept as it is, whatever ε. Given ε, the process is
``f = m(x) + k(x, Z) K⁻¹ (u − m(Z))`` with u ~ q(u), plus what the points leave open (PVI 2018,
eq. 89).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import spec
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from streaming_gp.gp.process.tensors import (
    SAYS_NOTHING,
    Conditioned,
    FrozenStack,
    GaussianProcess,
)
from streaming_gp.numerics.linalg import solve_lower, solve_lower_transposed


class FrozenGaussianProcess(GaussianProcess):
    """A process that rests on frozen points: ``u = m + S η`` with η ~ N(0, I).

    A projection is [V; U] with ``V = L⁻¹ k(Z, X)``, ``K = L Lᵀ`` and ``U = Sᵀ L⁻ᵀ V``: the
    covariance is ``k(x, x') − VᵀV + UᵀU``.
    """

    def stack(
        self, observations: tuple[ConditionalPseudoObservations, ...], input_dim: int
    ) -> FrozenStack:
        if not observations:
            G, C = self.num_groups, self.num_latent // self.num_groups
            scale = np.full((G, 1, 1), np.sqrt(SAYS_NOTHING))
            arrays = np.zeros((1, input_dim)), np.zeros((G, 1, C)), scale
            return FrozenStack(*map(tf.constant, (*arrays, np.array([SAYS_NOTHING]))))
        Z = np.concatenate([one.Z for one in observations])
        mean = np.concatenate([one.intercept for one in observations], axis=1)
        nugget = np.concatenate([np.full(len(one.Z), one.nugget) for one in observations])
        scale, start = np.zeros((self.num_groups, len(Z), len(Z))), 0
        for one in observations:
            stop = start + len(one.Z)
            scale[:, start:stop, :start], scale[:, start:stop, start:stop] = one.slope, one.scale
            start = stop
        return FrozenStack(*map(tf.constant, (Z, mean, scale, nugget)))

    def stack_spec(self, input_dim: int) -> FrozenStack:
        G, C = self.num_groups, self.num_latent // self.num_groups
        return FrozenStack(spec(None, input_dim), spec(G, None, C), spec(G, None, None), spec(None))

    def condition(self, stack: FrozenStack) -> Conditioned:
        return self.under_prior(stack)

    def held(self, stack: FrozenStack) -> FrozenStack:
        """q(u) is held already."""
        return stack

    def project(self, stack: FrozenStack, conditioned: Conditioned, X: tf.Tensor) -> tf.Tensor:
        V = solve_lower(conditioned.chol, cov.covariance(self.kernel, stack.Z, X))
        K_solved = solve_lower_transposed(conditioned.chol, V)
        U = tf.matmul(stack.scale, K_solved, transpose_a=True)
        return tf.concat([tf.broadcast_to(V, tf.shape(U)), U], axis=1)

    def mean(self, conditioned: Conditioned, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        return super().mean(conditioned, open_and_frozen(V)[0], X)

    def variance(self, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        lost, kept = open_and_frozen(V)
        return super().variance(lost, X) + tf.reduce_sum(tf.square(kept), axis=-2)

    def covariance(
        self, V: tf.Tensor, X: tf.Tensor, V2: tf.Tensor | None = None, X2: tf.Tensor | None = None
    ) -> tf.Tensor:
        lost, kept = open_and_frozen(V)
        lost2, kept2 = (lost, kept) if V2 is None else open_and_frozen(V2)
        given = super().covariance(lost, X, lost2, X2)
        return given + tf.matmul(kept, kept2, transpose_a=True)

    def log_normaliser(self, conditioned: Conditioned) -> tf.Tensor:
        """q(u) is normalised."""
        return tf.zeros([], tf.float64)


def open_and_frozen(projection: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """V and U [G, R, N] of a projection [G, 2R, N]."""
    of_open, of_frozen = tf.split(projection, 2, axis=1)
    return of_open, of_frozen
