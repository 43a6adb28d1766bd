"""The paper's own private points (PVI 2018, eqs. 89 and 94): earlier points are frozen.

A batch adds q(b | a), and (a, b) are independent of ε in the posterior. The bound of eq. 94 is
taken with q(b | a) at its optimum, which is free-form: ``q(b | a) ∝ exp E_q(ε)[log p(b | a, ε) +
Σ_n E log t_n(f_n)]`` is Gaussian for Gaussian sites, its precision and its regression on a averaged
over q(ε).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.base import (
    Bound,
    divergence_gained,
    expected_log_likelihood,
    sites_at,
)
from streaming_gp.gp.bounds.free_form import (
    Fitted,
    FreeForm,
    GivenPoints,
    divergence,
    moments_at_data,
    natural_parameters,
    of_groups,
    prior_blocks,
    without_gradient_at_optimum,
)
from streaming_gp.gp.bounds.frozen import FrozenGaussianProcess
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import is_finite
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.process.graphs import at_each_sample
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from streaming_gp.gp.process.tensors import SAYS_NOTHING, GaussianProcess
from streaming_gp.numerics.linalg import solve_lower, solve_lower_transposed
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True)
class Conditional(Bound):
    """``F = E_q(ε)[Σ_n E log p(y_n | f_n) − E_q(a) KL(q(b | a) ‖ p(b | a, ε))]`` (eq. 94).

    Where a point ε remembers, ``−KL(q(a) ‖ p(a | ε))`` is added, less its value at the ε before
    (eq. 93).
    """

    def gaussian_process(
        self, kernel: Any, mean_function: Any, num_latent: int, num_groups: int
    ) -> GaussianProcess:
        return FrozenGaussianProcess(kernel, mean_function, num_latent, num_groups)

    def free_energy(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        given = _given_frozen(local, draws, Z, problem, sites)
        q_b = without_gradient_at_optimum(_optimum(given), local)
        past = partial(divergence_gained, local, problem)

        def bound(epsilon: tf.Tensor, *moments: tf.Tensor) -> tf.Tensor:
            with local.parameters.substituted(epsilon):
                expected = expected_log_likelihood(local, of_groups(local.gp, *moments), problem)
                return expected + local.hyperparameters.memory(past, past)

        own = at_each_sample(bound, draws, *moments_at_data(given, q_b))
        return tf.reduce_mean(own - divergence(given, q_b))

    def next_sites(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        given = _given_frozen(local, draws, Z, problem, sites)
        q_b = _optimum(given)

        def step(epsilon: tf.Tensor, *moments: tf.Tensor) -> Sites:
            with local.parameters.substituted(epsilon):
                return sites_at(local, of_groups(local.gp, *moments), problem)

        steps = at_each_sample(step, draws, *moments_at_data(given, q_b))
        return Sites(*(tf.reduce_mean(part, axis=0) for part in steps))

    def summary(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        epsilon: tf.Tensor,
        Z: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> Fitted:
        given = _given_frozen(local, draws, Z, problem, sites)
        return Fitted(Z, _optimum(given), tf.reduce_mean(given.left, axis=0))

    def pseudo_observations(
        self,
        local: LocalModel,
        summary: Fitted,
        problem: Problem,
        sites: Sites,
    ) -> ConditionalPseudoObservations:
        Z, q_b, _ = summary
        identity = tf.eye(tf.shape(Z)[0], batch_shape=[local.gp.num_groups], dtype=Z.dtype)
        scale = solve_lower_transposed(q_b.chol, identity)
        if not is_finite(scale, q_b.regression):
            raise NumericalError("the conditional covariance of the pseudo-points is not positive")
        C = local.gp.num_latent // local.gp.num_groups
        intercept, slope = np.split(q_b.regression.numpy(), [C], axis=2)
        earlier = np.any(problem.stack.nugget < SAYS_NOTHING) * slope.shape[2]
        return ConditionalPseudoObservations(
            Z.numpy(), intercept, slope[:, :, :earlier], scale.numpy(), float(problem.nugget)
        )

    def unexplained(
        self, local: LocalModel, summary: Fitted, problem: Problem, sites: Sites
    ) -> float:
        return summary.unexplained(local.gp, sites, float(problem.nugget))


def _given_frozen(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
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


def _optimum(given: GivenPoints) -> FreeForm:
    """q(b | a) where the bound, averaged over ε, is largest."""
    natural = natural_parameters(given)
    precision, regression = (tf.reduce_mean(part, axis=0) for part in natural)
    chol = tf.linalg.cholesky(precision)
    return FreeForm(chol, tf.linalg.cholesky_solve(chol, regression))
