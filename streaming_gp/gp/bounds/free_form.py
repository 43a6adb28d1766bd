"""The Gaussian q(b | a), of new points given frozen ones, that is best for all values of ε at once.

``q(b | a) ∝ exp E_q(ε)[log p(b | a, ε) + Σ_n E log t_n(f_n)]`` is Gaussian for Gaussian sites: its
natural parameters are averages over q(ε).
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.whitening import LocalPosterior
from streaming_gp.gp.collapsed.prior_values import PriorValues, prior_values
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import at_each_sample
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.numerics.linalg import (
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)


class PriorBlocks(NamedTuple):
    """The prior of new points b, frozen ones a and the batch f at S values of ε, and the sites.

    Covariances [S, G, ·, ·], of which those of b and a have their nuggets, the variance of f
    [S, G, N], means [S, G, ·, C], and the sites: w [S, G, 1, N] and λ [S, G, N, C]. Those of noise
    that is not Gaussian are the same for all ε: their S is one.
    """

    K_b: tf.Tensor
    K_ab: tf.Tensor
    K_a: tf.Tensor
    K_bf: tf.Tensor
    K_af: tf.Tensor
    variance: tf.Tensor
    mean_b: tf.Tensor
    mean_a: tf.Tensor
    mean_f: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor


def prior_blocks(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
) -> PriorBlocks:
    """The blocks at values of ε [S, E], for new points Z [M, D].

    Only the prior is asked for one ε after another: the algebra of stacks is a smaller graph.
    """
    stack, M = problem.stack, tf.shape(Z)[0]
    points = tf.concat([Z, stack.Z], 0)

    def at(epsilon: tf.Tensor) -> PriorValues:
        with local.parameters.substituted(epsilon):
            return prior_values(local, points, problem.X, on_points=True)

    groups = local.gp.num_groups
    *covariances, mean_points, mean_f, noise = at_each_sample(at, draws)
    among, between, variance = (_of_every_group(part, groups) for part in covariances)
    if site_rules.is_conjugate(local.likelihood):
        w = 1.0 / noise
        site_mean = cov.to_groups(problem.Y, groups) * w[..., None]
    else:
        site_mean, precision = (cov.to_groups(part, groups)[None] for part in sites)
        w = precision[..., 0]
    sizes = [M, tf.shape(stack.Z)[0]]
    of_b, of_a = tf.split(among, sizes, axis=2)
    K_ab, K_a = tf.split(of_a, sizes, axis=3)
    K_bf, K_af = tf.split(between, sizes, axis=2)
    mean_b, mean_a = tf.split(mean_points, sizes, axis=2)
    return PriorBlocks(
        add_to_diagonal(of_b[..., :M], problem.nugget * tf.ones([M], among.dtype)),
        K_ab,
        add_to_diagonal(K_a, stack.nugget),
        K_bf,
        K_af,
        variance,
        mean_b,
        mean_a,
        mean_f,
        tf.expand_dims(w, 2),
        site_mean,
    )


def _of_every_group(covariance: tf.Tensor, groups: int) -> tf.Tensor:
    """[S, K, ...] → [S, G, ...], also where all groups have one kernel."""
    return covariance if covariance.shape[1] == groups else tf.repeat(covariance, groups, axis=1)


class GivenPoints(NamedTuple):
    """Batch and new points given the frozen ones, at each of S values of ε [S, ...].

    p(b | η) = N(at_b, L Lᵀ) and f_n = at_f + Jᵀ(b − at_b) + noise of variance ``left``, for
    L [G, M, M], J [G, M, N] and left [G, N]; site precision w [G, 1, N] and λ [G, N, C].
    Regressions on (1, η) are held as their C intercepts and R slopes: at_b [G, M, C + R] and
    at_f [G, N, C + R].
    """

    at_b: tf.Tensor
    at_f: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor

    @property
    def num_columns(self) -> int:
        """C, the number of latent functions of a group."""
        return int(self.site_mean.shape[-1])


class FreeForm(NamedTuple):
    """q(b | a): lower factor of its precision [G, M, M], and the regression of its mean on (1, η)
    [G, M, C + R].
    """

    chol: tf.Tensor
    regression: tf.Tensor


def without_gradient_at_optimum(q_b: FreeForm, local: LocalModel) -> FreeForm:
    """q(b | a) as a constant where it maximises the bound: the derivative by it is zero there.

    With Gaussian noise it does; at given sites of another likelihood it need not.
    """
    if not site_rules.is_conjugate(local.likelihood):
        return q_b
    return FreeForm(*map(tf.stop_gradient, q_b))


class Fitted(NamedTuple):
    """A solution: Z [M, D], q(b | a), and the variance of f that the points leave [G, N]."""

    Z: tf.Tensor
    q_b: FreeForm
    left: tf.Tensor

    def unexplained(self, gp: GaussianProcess, sites: Sites, nugget: float) -> float:
        """How much wider the error of a datum is than its site says."""
        left = cov.spread_over_latents(self.left, gp.num_latent)
        return site_rules.unexplained(left.numpy(), sites, nugget)


def natural_parameters(given: GivenPoints) -> tuple[tf.Tensor, tf.Tensor]:
    """Precision of b [..., G, M, M], and its product with the mean, as a regression on (1, η)
    [..., G, M, C + R].
    """
    J, w = given.J, given.w
    ones = tf.ones_like(tf.linalg.diag_part(given.chol))
    prior = tf.linalg.cholesky_solve(given.chol, tf.linalg.diag(ones))
    precision = prior + tf.matmul(J * w, J, transpose_b=True)
    slopes = tf.shape(given.at_f)[-1] - given.num_columns
    site = tf.pad(given.site_mean, [[0, 0], [0, 0], [0, 0], [0, slopes]])
    shown = site - tf.linalg.matrix_transpose(w) * given.at_f
    return precision, tf.matmul(precision, given.at_b) + tf.matmul(J, shown)


def moments_at_data(given: GivenPoints, q_b: FreeForm) -> tuple[tf.Tensor, tf.Tensor]:
    """Means [..., G, N, C] and variances [..., G, N] of f at the data, η and b integrated out."""
    J, C = given.J, given.num_columns
    at = given.at_f + tf.matmul(J, q_b.regression - given.at_b, transpose_a=True)
    spread = tf.reduce_sum(tf.square(solve_lower(q_b.chol, J)), -2)
    return at[..., :C], given.left + tf.reduce_sum(tf.square(at[..., C:]), -1) + spread


def of_groups(gp: GaussianProcess, mean: tf.Tensor, variance: tf.Tensor) -> LocalPosterior:
    """q(f) at the data, from the moments of groups at one ε."""
    spread_out = cov.spread_over_latents(variance, gp.num_latent)
    return LocalPosterior(
        cov.from_groups(mean, gp.num_latent), spread_out, tf.zeros([], mean.dtype)
    )


def divergence(given: GivenPoints, q_b: FreeForm) -> tf.Tensor:
    """``E_q(a) KL(q(b | a) ‖ p(b | a, ε))`` [...], in nats."""
    C = given.num_columns
    ones = tf.ones_like(tf.linalg.diag_part(q_b.chol))
    root = solve_lower_transposed(q_b.chol, tf.linalg.diag(ones))
    moved = tf.square(solve_lower(given.chol, q_b.regression - given.at_b))
    trace, slope, mean = (
        tf.reduce_sum(part, [-3, -2, -1])
        for part in (tf.square(solve_lower(given.chol, root)), moved[..., C:], moved[..., :C])
    )
    logdets = logdet_from_cholesky(given.chol) + logdet_from_cholesky(q_b.chol)
    return 0.5 * (C * (trace + slope + tf.reduce_sum(logdets, -1) - tf.reduce_sum(ones)) + mean)
