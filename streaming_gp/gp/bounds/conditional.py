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
    gaussian_noise_sites,
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
)
from streaming_gp.gp.bounds.frozen import FrozenGaussianProcess, open_and_frozen
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import is_finite
from streaming_gp.gp.bounds.sites import Sites, is_conjugate
from streaming_gp.gp.process import covariances as cov
from streaming_gp.gp.process.compiled import at_each_sample
from streaming_gp.gp.process.conditioning import SAYS_NOTHING, GaussianProcess
from streaming_gp.gp.process.pseudo_observations import ConditionalPseudoObservations
from streaming_gp.linalg import add_to_diagonal, solve_lower, solve_lower_transposed
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
        q_b, past = _optimum(given), partial(divergence_gained, local, problem)

        def bound(epsilon: tf.Tensor, *moments: tf.Tensor) -> tf.Tensor:
            with local.parameters.substituted(epsilon):
                expected = expected_log_likelihood(local, of_groups(local.gp, *moments), problem)
                return expected + local.hyperparameters.memory(past, past)

        own = at_each_sample(bound, draws, *moments_at_data(given, q_b))
        return tf.reduce_mean(own - divergence(local.gp, given, q_b))

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
        if not is_finite(scale, q_b.slope):
            raise NumericalError("the conditional covariance of the pseudo-points is not positive")
        earlier = np.any(problem.stack.nugget < SAYS_NOTHING) * q_b.slope.shape[2]
        slope = q_b.slope.numpy()[:, :, :earlier]
        return ConditionalPseudoObservations(
            Z.numpy(), q_b.intercept.numpy(), slope, scale.numpy(), float(problem.nugget)
        )

    def unexplained(
        self, local: LocalModel, summary: Fitted, problem: Problem, sites: Sites
    ) -> float:
        return summary.unexplained(local.gp, sites, float(problem.nugget))


def _given_frozen(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
) -> GivenPoints:
    """Batch and points given the frozen ones at each of S values of ε, stacked."""

    def at(epsilon: tf.Tensor) -> GivenPoints:
        with local.parameters.substituted(epsilon):
            return _at_one_epsilon(local, Z, problem, sites)

    return at_each_sample(at, draws)


def _at_one_epsilon(local: LocalModel, Z: tf.Tensor, problem: Problem, sites: Sites) -> GivenPoints:
    gp, X, stack = local.gp, problem.X, problem.stack
    conditioned = gp.condition(stack)
    projected_b, projected_f = (gp.project(stack, conditioned, P) for P in (Z, X))
    (V_b, U_b), (V_f, U_f) = map(open_and_frozen, (projected_b, projected_f))
    K_b = cov.covariance(gp.kernel, Z) - tf.matmul(V_b, V_b, transpose_a=True)
    chol = tf.linalg.cholesky(add_to_diagonal(K_b, problem.nugget * tf.ones_like(Z[:, 0])))
    K_bf = cov.covariance(gp.kernel, Z, X) - tf.matmul(V_b, V_f, transpose_a=True)
    A = solve_lower(chol, K_bf)
    left = cov.variance(gp.kernel, X) - tf.reduce_sum(tf.square(V_f), axis=-2)
    left = tf.maximum(left - tf.reduce_sum(tf.square(A), axis=-2), 0.0)
    if is_conjugate(local.likelihood):
        sites = gaussian_noise_sites(local, problem)
    means = (gp.mean(conditioned, V, P) for V, P in ((projected_b, Z), (projected_f, X)))
    parts = [cov.to_groups(part, gp.num_groups) for part in (*means, *sites)]
    mean_b, mean_f, site_mean, w = parts
    w = tf.linalg.matrix_transpose(w[:, :, :1])
    T = tf.linalg.matrix_transpose(U_b)
    J = solve_lower_transposed(chol, A)
    return GivenPoints(mean_b, mean_f, T, U_f, chol, J, left, w, site_mean)


def _optimum(given: GivenPoints) -> FreeForm:
    """q(b | a) where the bound, averaged over ε, is largest."""
    natural = natural_parameters(given)
    precision, mean, slope = (tf.reduce_mean(part, axis=0) for part in natural)
    chol = tf.linalg.cholesky(precision)
    c, A = (tf.linalg.cholesky_solve(chol, part) for part in (mean, slope))
    return FreeForm(chol, c, A)
