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
    """Batch and new points given the frozen ones, at one ε.

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
    """Precision of b [G, M, M], its precision-mean at η = 0 [G, M, C] and by η [G, M, R]."""
    J, w = given.J, given.w
    weighted = J * w
    K, M = tf.shape(given.chol)[0], tf.shape(given.chol)[1]
    prior = tf.linalg.cholesky_solve(given.chol, tf.eye(M, batch_shape=[K], dtype=J.dtype))
    centred = given.site_mean - tf.linalg.matrix_transpose(w) * given.mean_f
    precision = prior + tf.matmul(weighted, J, transpose_b=True)
    mean = tf.matmul(precision, given.mean_b) + tf.matmul(J, centred)
    slope = tf.matmul(precision, given.T) - tf.matmul(weighted, given.U, transpose_b=True)
    return precision, mean, slope


def at_data(gp: GaussianProcess, given: GivenPoints, q_b: FreeForm) -> LocalPosterior:
    """q(f) at the data, η and b integrated out."""
    J, L = given.J, gp.num_latent
    mean = given.mean_f + tf.matmul(J, q_b.intercept - given.mean_b, transpose_a=True)
    slope = given.U + tf.matmul(q_b.slope - given.T, J, transpose_a=True)
    spread = tf.square(solve_lower(q_b.chol, J))
    variance = given.left + tf.reduce_sum(tf.square(slope), 1) + tf.reduce_sum(spread, 1)
    spread_out = cov.spread_over_latents(variance, L)
    return LocalPosterior(cov.from_groups(mean, L), spread_out, tf.zeros([], J.dtype))


def divergence(gp: GaussianProcess, given: GivenPoints, q_b: FreeForm) -> tf.Tensor:
    """``E_q(a) KL(q(b | a) ‖ p(b | a, ε))``: []."""
    C = tf.cast(gp.num_latent // gp.num_groups, given.J.dtype)
    ones = tf.ones_like(given.mean_b[0, :, 0])
    root = solve_lower_transposed(q_b.chol, tf.linalg.diag(ones)[None])
    trace = tf.reduce_sum(tf.square(solve_lower(given.chol, root)))
    slope = tf.reduce_sum(tf.square(solve_lower(given.chol, q_b.slope - given.T)))
    mean = tf.reduce_sum(tf.square(solve_lower(given.chol, q_b.intercept - given.mean_b)))
    logdets = tf.reduce_sum(logdet_from_cholesky(given.chol) + logdet_from_cholesky(q_b.chol))
    size = tf.reduce_sum(ones) * tf.cast(gp.num_groups, ones.dtype)
    return 0.5 * (C * (trace + slope + logdets - size) + mean)
