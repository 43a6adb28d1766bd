"""The paper's own private points (PVI 2018, eqs. 89 and 94): earlier points are frozen.

A batch adds q(b | a), and (a, b) are independent of ε in the posterior. The bound of eq. 94 is
taken with q(b | a) at its optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from streaming_gp.gp.fit.frozen import (
    FreeForm,
    FrozenBound,
    FrozenGaussianProcess,
    FrozenProblem,
    GivenPoints,
    divergence,
    natural_parameters,
    prior_blocks,
)
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import Problem
from streaming_gp.gp.fit.sites import Sites
from streaming_gp.gp.process.graphs import at_each_sample
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from streaming_gp.numerics.linalg import solve_lower, solve_lower_transposed
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True)
class Conditional(FrozenBound):
    """``F = E_q(ε)[Σ_n E log p(y_n | f_n) − E_q(a) KL(q(b | a) ‖ p(b | a, ε))]`` (eq. 94).

    Where a point ε remembers, ``−KL(q(a) ‖ p(a | ε))`` is added, less its value at the ε before
    (eq. 93).
    """

    def optimum(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        Z: tf.Tensor,
        problem: FrozenProblem,
        sites: Sites,
    ) -> tuple[GivenPoints, FreeForm, Callable[[FreeForm], tf.Tensor]]:
        given = _given_frozen(local, draws, Z, problem, sites)
        natural = natural_parameters(given)
        precision, regression = (tf.reduce_mean(part, axis=0) for part in natural)
        chol = tf.linalg.cholesky(precision)
        q_b = FreeForm(chol, tf.linalg.cholesky_solve(chol, regression))
        return given, q_b, lambda q: _memory(local, draws, problem) - divergence(given, q)

    def pseudo_observations(
        self, Z: np.ndarray, scale: np.ndarray, regression: np.ndarray, problem: Problem
    ) -> ConditionalPseudoObservations:
        columns = regression.shape[2] - max(1, len(problem.earlier_Z))
        intercept, slope = np.split(regression, [columns], axis=2)
        slope = slope[:, :, : len(problem.earlier_Z)]
        return ConditionalPseudoObservations(Z, intercept, slope, scale, problem.nugget)


def _memory(local: LocalModel, draws: tf.Tensor, problem: FrozenProblem) -> tf.Tensor:
    """``KL(q(a) ‖ p(a | ε_old)) − KL(q(a) ‖ p(a | ε))`` where a point ε remembers, else 0 [S].

    By Jensen's inequality the log evidence of what the points say changes by as much or more.
    """
    gp = local.gp
    assert isinstance(gp, FrozenGaussianProcess)

    def gained_at(epsilon: tf.Tensor) -> tf.Tensor:
        with local.parameters.substituted(epsilon):
            now = gp.expected_log_prior(problem.stack)
        with local.parameters.substituted(problem.location):
            return now - gp.expected_log_prior(problem.stack)

    if local.hyperparameters.memory is None:
        return tf.zeros([], tf.float64)
    return at_each_sample(gained_at, draws)


def _given_frozen(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: FrozenProblem, sites: Sites
) -> GivenPoints:
    """Batch and points given the frozen ones at each of S values of ε.

    With ``K_a = L Lᵀ``, ``V = L⁻¹ K_a·`` and q(a) = N(m, S Sᵀ), what is frozen are ``Sᵀ L⁻ᵀ V``.
    """
    prior, q_a = prior_blocks(local, draws, Z, problem, sites), problem.stack
    sizes = [tf.shape(Z)[0], tf.shape(problem.X)[0]]
    chol_a = tf.linalg.cholesky(prior.K_a)
    V = solve_lower(chol_a, tf.concat([prior.K_ab, prior.K_af], -1))
    U = tf.matmul(q_a.scale, solve_lower_transposed(chol_a, V), transpose_a=True)
    white = solve_lower(chol_a, q_a.mean - prior.mean_a)
    mean = tf.concat([prior.mean_b, prior.mean_f], -2) + tf.matmul(V, white, transpose_a=True)
    at = tf.concat([mean, tf.linalg.matrix_transpose(U)], -1)
    V_b, V_f = tf.split(V, sizes, axis=-1)
    chol = tf.linalg.cholesky(prior.K_b - tf.matmul(V_b, V_b, transpose_a=True))
    A = solve_lower(chol, prior.K_bf - tf.matmul(V_b, V_f, transpose_a=True))
    left = prior.variance - tf.reduce_sum(tf.square(V_f), axis=-2)
    left = tf.maximum(left - tf.reduce_sum(tf.square(A), axis=-2), 0.0)
    J = solve_lower_transposed(chol, A)
    at_b, at_f = tf.split(at, sizes, axis=-2)
    return GivenPoints(at_b, at_f, chol, J, left, prior.w, prior.site_mean)
