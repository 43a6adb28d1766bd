"""Shared points in the paper's own form: independent of ε in the posterior (PVI 2018, app. C.3).

The posterior so far is ``p(f | a, ε) q(a) q(ε)``, and what it says of all earlier data is
``q(a) / p(a | ε)``. The new one has new points b in the place of a. As for conditional points, the
best q(b) is free-form and has averages over q(ε) as natural parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.fit.frozen import (
    FreeForm,
    FrozenBound,
    FrozenProblem,
    FrozenStack,
    GivenPoints,
    divergence,
    natural_parameters,
    prior_blocks,
)
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import Problem
from streaming_gp.gp.fit.sites import Sites
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.numerics.linalg import (
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from streaming_gp.serialization import storable


class _EarlierGivenPoints(NamedTuple):
    """``p(a | b, ε) = N(mean + Jᵀ(b − mean_b), left)`` and ``p(a | ε) = N(mean, chol cholᵀ)``.

    mean [G, R, C], chol [G, R, R], J [G, M, R], left [G, R, R].
    """

    mean: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor


@storable
@dataclass(frozen=True)
class Independent(FrozenBound):
    """``F = E_q(ε)[Σ_n E log p(y_n | f_n) − KL(q(b) ‖ p(b | ε)) + E_q log(q(a) / p(a | ε))]``."""

    has_shared_points: ClassVar[bool] = True

    def optimum(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        Z: tf.Tensor,
        problem: FrozenProblem,
        sites: Sites,
    ) -> tuple[GivenPoints, FreeForm, Callable[[FreeForm], tf.Tensor]]:
        given, earlier = _given(local, draws, Z, problem, sites)

        def rest(q_b: FreeForm) -> tf.Tensor:
            past = _expected_log_earlier(local.gp, given, earlier, q_b, problem.stack)
            return past - divergence(given, q_b)

        return given, _optimum(given, earlier, problem.stack), rest

    def pseudo_observations(
        self, Z: np.ndarray, scale: np.ndarray, regression: np.ndarray, problem: Problem
    ) -> ConditionalPseudoObservations:
        nothing = regression[:, :, :0]
        return ConditionalPseudoObservations(Z, regression, nothing, scale, problem.nugget)


# ---- the prior of new points, batch and earlier points ----


def _given(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: FrozenProblem, sites: Sites
) -> tuple[GivenPoints, _EarlierGivenPoints]:
    """Batch and earlier points given the new ones at each of S values of ε."""
    prior = prior_blocks(local, draws, Z, problem, sites)
    chol = tf.linalg.cholesky(prior.K_b)
    A_f, A_a = (solve_lower(chol, K) for K in (prior.K_bf, tf.linalg.matrix_transpose(prior.K_ab)))
    left = tf.maximum(prior.variance - tf.reduce_sum(tf.square(A_f), axis=-2), 0.0)
    J_f, J_a = (solve_lower_transposed(chol, A) for A in (A_f, A_a))
    new = GivenPoints(prior.mean_b, prior.mean_f, chol, J_f, left, prior.w, prior.site_mean)
    left_a = prior.K_a - tf.matmul(A_a, A_a, transpose_a=True)
    return new, _EarlierGivenPoints(prior.mean_a, tf.linalg.cholesky(prior.K_a), J_a, left_a)


# ---- q(b), and what it says of the earlier points ----


def _optimum(given: GivenPoints, earlier: _EarlierGivenPoints, stack: FrozenStack) -> FreeForm:
    """q(b) where the bound, averaged over ε, is largest."""
    precision, mean = natural_parameters(given)
    known = _known_of_points(earlier, stack)
    parts = precision + known[0], mean + known[0] @ given.at_b + known[1]
    precision, mean = (tf.reduce_mean(part, axis=0) for part in parts)
    chol = tf.linalg.cholesky(precision)
    return FreeForm(chol, tf.linalg.cholesky_solve(chol, mean))


def _known_of_points(past: _EarlierGivenPoints, stack: FrozenStack) -> tuple[tf.Tensor, tf.Tensor]:
    """``E[log q(a) − log p(a | ε) | b]`` by b − mean_b: precision [G, M, M] and
    precision-mean [G, M, C].
    """
    J = tf.linalg.matrix_transpose(past.J)
    by_prior, by_q = solve_lower(past.chol, J), _solve_scale(stack, J)
    off = _solve_scale(stack, stack.mean - past.mean)
    precision = tf.matmul(by_q, by_q, transpose_a=True)
    precision -= tf.matmul(by_prior, by_prior, transpose_a=True)
    return precision, tf.matmul(by_q, off, transpose_a=True)


def _expected_log_earlier(
    gp: GaussianProcess,
    one: GivenPoints,
    past: _EarlierGivenPoints,
    q_b: FreeForm,
    stack: FrozenStack,
) -> tf.Tensor:
    """``E[log q(a) − log p(a | ε)]`` under ``q(a | ε) = ∫ p(a | b, ε) q(b) db`` [S]."""
    shift = tf.matmul(past.J, q_b.regression - one.at_b, transpose_a=True)
    spread = tf.linalg.matrix_transpose(solve_lower(q_b.chol, past.J))
    columns = tf.cast(gp.num_latent // gp.num_groups, shift.dtype)

    def log_density(solve: Any, mean: tf.Tensor, logdet: tf.Tensor) -> tf.Tensor:
        """Of N(mean, ·), but for its 2π."""
        half = tf.linalg.matrix_transpose(solve(past.left))
        trace = tf.reduce_sum(tf.linalg.trace(solve(half)), -1)
        trace += tf.reduce_sum(tf.square(solve(spread)), [-3, -2, -1])
        error = tf.reduce_sum(tf.square(solve(past.mean + shift - mean)), [-3, -2, -1])
        return -0.5 * (columns * (tf.reduce_sum(logdet, -1) + trace) + error)

    diagonal = tf.abs(tf.linalg.diag_part(stack.scale))
    of_q = log_density(
        lambda rhs: _solve_scale(stack, rhs),
        stack.mean,
        2.0 * tf.reduce_sum(tf.math.log(diagonal), axis=-1),
    )
    of_prior = log_density(
        lambda rhs: solve_lower(past.chol, rhs), past.mean, logdet_from_cholesky(past.chol)
    )
    return of_q - of_prior


def _solve_scale(stack: FrozenStack, rhs: tf.Tensor) -> tf.Tensor:
    """``S⁻¹ rhs`` for q(a) = N(m, S Sᵀ), where the bound leaves an upper triangle S."""
    scale = tf.broadcast_to(
        stack.scale, tf.concat([tf.shape(rhs)[:-2], tf.shape(stack.scale)[-2:]], 0)
    )
    return tf.linalg.triangular_solve(scale, rhs, lower=False)
