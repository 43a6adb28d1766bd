"""The Gaussian q(b | a), of new points given frozen ones, that is best for all values of ε at once.

``q(b | a) ∝ exp E_q(ε)[log p(b | a, ε) + Σ_n E log t_n(f_n)]`` is Gaussian for Gaussian sites: its
natural parameters are averages over q(ε).
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.whitening import LocalPosterior
from streaming_gp.gp.process import covariances as cov
from streaming_gp.gp.process.conditioning import GaussianProcess
from streaming_gp.linalg import logdet_from_cholesky, solve_lower, solve_lower_transposed


class GivenPoints(NamedTuple):
    """Batch and new points given the frozen ones, at one ε, or at each of several [S, ...].

    p(b | η) = N(mean_b + T η, L Lᵀ) and f_n = mean_f + Uᵀη + Jᵀ(b − mean_b − T η) + noise of
    variance ``left``: mean_b, mean_f [G, ·, C], T [G, M, R], U [G, R, N], L [G, M, M], J [G, M, N],
    left [G, N]; site precision w [G, 1, N] and λ [G, N, C].
    """

    mean_b: tf.Tensor
    mean_f: tf.Tensor
    T: tf.Tensor
    U: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor


class FreeForm(NamedTuple):
    """q(b | a) = N(c + A η, Λ⁻¹): lower factor of Λ [G, M, M], c [G, M, C], A [G, M, R]."""

    chol: tf.Tensor
    intercept: tf.Tensor
    slope: tf.Tensor


class Fitted(NamedTuple):
    """A solution: Z [M, D], q(b | a), and the variance of f that the points leave [G, N]."""

    Z: tf.Tensor
    q_b: FreeForm
    left: tf.Tensor

    def unexplained(self, gp: GaussianProcess, sites: Sites, nugget: float) -> float:
        """How much wider the error of a datum is than its site says."""
        left = cov.spread_over_latents(self.left, gp.num_latent)
        return site_rules.unexplained(left.numpy(), sites, nugget)


def natural_parameters(given: GivenPoints) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Precision of b [..., G, M, M], its precision-mean at η = 0 [..., G, M, C] and by η
    [..., G, M, R].
    """
    J, w = given.J, given.w
    weighted = J * w
    ones = tf.ones_like(tf.linalg.diag_part(given.chol))
    prior = tf.linalg.cholesky_solve(given.chol, tf.linalg.diag(ones))
    centred = given.site_mean - tf.linalg.matrix_transpose(w) * given.mean_f
    precision = prior + tf.matmul(weighted, J, transpose_b=True)
    mean = tf.matmul(precision, given.mean_b) + tf.matmul(J, centred)
    slope = tf.matmul(precision, given.T) - tf.matmul(weighted, given.U, transpose_b=True)
    return precision, mean, slope


def moments_at_data(given: GivenPoints, q_b: FreeForm) -> tuple[tf.Tensor, tf.Tensor]:
    """Means [..., G, N, C] and variances [..., G, N] of f at the data, η and b integrated out."""
    J = given.J
    mean = given.mean_f + tf.matmul(J, q_b.intercept - given.mean_b, transpose_a=True)
    slope = given.U + tf.matmul(q_b.slope - given.T, J, transpose_a=True)
    spread = tf.square(solve_lower(q_b.chol, J))
    return mean, given.left + tf.reduce_sum(tf.square(slope), -2) + tf.reduce_sum(spread, -2)


def of_groups(gp: GaussianProcess, mean: tf.Tensor, variance: tf.Tensor) -> LocalPosterior:
    """q(f) at the data, from the moments of groups at one ε."""
    spread_out = cov.spread_over_latents(variance, gp.num_latent)
    return LocalPosterior(
        cov.from_groups(mean, gp.num_latent), spread_out, tf.zeros([], mean.dtype)
    )


def divergence(gp: GaussianProcess, given: GivenPoints, q_b: FreeForm) -> tf.Tensor:
    """``E_q(a) KL(q(b | a) ‖ p(b | a, ε))`` [...], in nats."""
    C = tf.cast(gp.num_latent // gp.num_groups, given.J.dtype)
    ones = tf.ones_like(tf.linalg.diag_part(q_b.chol))
    root = solve_lower_transposed(q_b.chol, tf.linalg.diag(ones))
    trace, slope, mean = (
        tf.reduce_sum(tf.square(solve_lower(given.chol, part)), [-3, -2, -1])
        for part in (root, q_b.slope - given.T, q_b.intercept - given.mean_b)
    )
    logdets = logdet_from_cholesky(given.chol) + logdet_from_cholesky(q_b.chol)
    return 0.5 * (C * (trace + slope + tf.reduce_sum(logdets, -1) - tf.reduce_sum(ones)) + mean)
