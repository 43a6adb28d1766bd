"""The local free energy of one batch under a cavity process, at one value of ε.

It is ordinary sparse variational inference whose GP prior is the cavity (maths page, section 2):
``F = Σ_n E_q[log p(y_n | f_n)] − KL(q(b) ‖ p̃(b))``. The posterior is carried by Gaussian sites on
the data, so that it moves along with Z and ε (dual parameters: Adam, Chang, Khan & Solin 2021).
With the exact sites of a Gaussian likelihood F is Titsias' collapsed bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes

from streaming_gp.gp import covariances as cov
from streaming_gp.gp.factor import PseudoObservations
from streaming_gp.gp.process import Conditioned, GaussianProcess, Stack
from streaming_gp.gp.sites import Sites
from streaming_gp.linalg import (
    add_to_diagonal,
    compress_rows,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)


class LocalPosterior(NamedTuple):
    """q(f) at the data, and what it costs: mean [N, L], variance [N, L], KL []."""

    mean: tf.Tensor
    variance: tf.Tensor
    kl: tf.Tensor


class Whitened(NamedTuple):
    """New points under the cavity: b = m̃(Z) + L c with c ~ N(0, I), and f = m̃(X) + Aᵀc + noise.

    chol L [G, M, M], A [G, M, N], mean_b [M, L], mean_f [N, L], variance_f [G, N].
    """

    chol: tf.Tensor
    A: tf.Tensor
    mean_b: tf.Tensor
    mean_f: tf.Tensor
    variance_f: tf.Tensor


@check_shapes(
    "X: [N, D]",
    "Z: [M, D]",
    "nugget: []",
    "return.chol: [K, M, M]",
    "return.A: [K, M, N]",
    "return.mean_b: [M, L]",
    "return.mean_f: [N, L]",
    "return.variance_f: [K, N]",
)
def whiten(
    gp: GaussianProcess,
    stack: Stack,
    conditioned: Conditioned,
    X: tf.Tensor,
    Z: tf.Tensor,
    nugget: tf.Tensor,
) -> Whitened:
    """Whiten pseudo-inputs Z [M, D] under the cavity and project the data X [N, D] on them."""
    V_f = gp.project(stack, conditioned, X)
    V_b = gp.project(stack, conditioned, Z)
    K_bb = gp.covariance(V_b, Z)
    K_bb = add_to_diagonal(K_bb, nugget * tf.ones_like(Z[:, 0]))
    K_bf = cov.covariance(gp.kernel, Z, X) - tf.matmul(V_b, V_f, transpose_a=True)
    chol = tf.linalg.cholesky(K_bb)
    mean_b, mean_f = gp.mean(conditioned, V_b, Z), gp.mean(conditioned, V_f, X)
    return Whitened(chol, solve_lower(chol, K_bf), mean_b, mean_f, gp.variance(V_f, X))


def grouped_sites(sites: Sites, mean: tf.Tensor, num_groups: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Site precisions [G, 1, N] and ``λ − w m̃`` [G, N, C] about the cavity mean [N, L]."""
    centred = cov.to_groups(sites.precision_mean - sites.precision * mean, num_groups)
    precision = cov.to_groups(sites.precision, num_groups)[:, :, :1]
    return tf.linalg.matrix_transpose(precision), centred


@check_shapes(
    "white.A: [K, M, N]",
    "white.mean_f: [N, L]",
    "sites.precision_mean: [N, L]",
    "sites.precision: [N, L]",
    "return.mean: [N, L]",
    "return.variance: [N, L]",
    "return.kl: []",
)
def sparse_posterior(gp: GaussianProcess, white: Whitened, sites: Sites) -> LocalPosterior:
    """q(f) at the data for pseudo-points whitened under the cavity.

    c has prior N(0, I) and posterior precision ``P = I + A diag(w) Aᵀ``.
    """
    w, centred = grouped_sites(sites, white.mean_f, gp.num_groups)
    A = white.A
    P = tf.matmul(A * w, A, transpose_b=True)
    ones = tf.ones_like(P[0, :, 0])
    chol = tf.linalg.cholesky(add_to_diagonal(P, ones))
    c = tf.linalg.cholesky_solve(chol, tf.matmul(A, centred))
    scaled = solve_lower(chol, A)
    variance = white.variance_f + tf.reduce_sum(tf.square(scaled) - tf.square(A), axis=-2)
    variance = tf.maximum(variance, 1e-12 * white.variance_f)
    inverse_chol = solve_lower(chol, tf.linalg.diag(ones)[None])
    trace = tf.reduce_sum(tf.square(inverse_chol), axis=[-2, -1]) - tf.reduce_sum(ones)
    columns = tf.cast(gp.num_latent // gp.num_groups, A.dtype)
    kl = 0.5 * columns * tf.reduce_sum(trace + logdet_from_cholesky(chol))
    return LocalPosterior(
        white.mean_f + cov.from_groups(tf.matmul(A, c, transpose_a=True), gp.num_latent),
        cov.spread_over_latents(variance, gp.num_latent),
        kl + 0.5 * tf.reduce_sum(tf.square(c)),
    )


@check_shapes(
    "X: [N, D]",
    "sites.precision_mean: [N, L]",
    "sites.precision: [N, L]",
    "return.mean: [N, L]",
    "return.variance: [N, L]",
    "return.kl: []",
)
def exact_posterior(
    gp: GaussianProcess, stack: Stack, conditioned: Conditioned, X: tf.Tensor, sites: Sites
) -> LocalPosterior:
    """q(f) at the data with a pseudo-point at every input: no K̃⁻¹, hence no nugget.

    ``B = I + W^½ K̃ W^½`` (Rasmussen & Williams 2006, eq. 3.26); ``a = W^½ B⁻¹ W^-½ (λ − w m̃)``.
    """
    V = gp.project(stack, conditioned, X)
    prior_mean = gp.mean(conditioned, V, X)
    K = gp.covariance(V, X)
    w, centred = grouped_sites(sites, prior_mean, gp.num_groups)
    root = tf.sqrt(w)
    column_root = tf.linalg.matrix_transpose(root)
    ones = tf.ones_like(X[:, 0])
    chol = tf.linalg.cholesky(add_to_diagonal(column_root * K * root, ones))
    a = column_root * tf.linalg.cholesky_solve(chol, centred / column_root)
    mean_shift = tf.matmul(K, a)
    inverse_chol = solve_lower(chol, tf.linalg.diag(ones)[None])
    explained = tf.reduce_sum(tf.square(solve_lower(chol, column_root * K)), axis=-2)
    prior_variance = tf.linalg.diag_part(K)
    variance = tf.maximum(prior_variance - explained, 1e-12 * tf.abs(prior_variance))
    trace = tf.reduce_sum(tf.square(inverse_chol), axis=[-2, -1]) - tf.reduce_sum(ones)
    columns = tf.cast(gp.num_latent // gp.num_groups, K.dtype)
    kl = 0.5 * columns * tf.reduce_sum(trace + logdet_from_cholesky(chol))
    return LocalPosterior(
        prior_mean + cov.from_groups(mean_shift, gp.num_latent),
        cov.spread_over_latents(variance, gp.num_latent),
        kl + 0.5 * tf.reduce_sum(a * mean_shift),
    )


def exact_row(X: np.ndarray, sites: Sites, num_groups: int) -> PseudoObservations:
    """The sites themselves, as pseudo-observations of f at every input X [N, D]."""
    mean, precision = (cov.to_groups(part, num_groups).numpy() for part in sites)
    root = np.sqrt(precision[:, :, :1])
    return PseudoObservations(X, root * np.eye(len(X)), mean / root, nugget=0.0)


def sparse_row(
    Z: np.ndarray, white: Whitened, sites: Sites, num_groups: int, nugget: float
) -> PseudoObservations:
    """The sites as pseudo-observations of b = f(Z), as far as f(X) depends on b.

    About the cavity mean the sites are observations ``(λ − w m̃)/√w ≈ √w Aᵀ c`` of c. A QR
    factorisation makes M rows of them, and ``c = L⁻¹ (b − m̃(Z))`` carries these over to b.
    """
    mean, precision = (cov.to_groups(part, num_groups).numpy() for part in sites)
    mean_b, mean_f = (
        cov.to_groups(part, num_groups).numpy() for part in (white.mean_b, white.mean_f)
    )
    root = np.sqrt(precision[:, :, :1])
    A_transposed = np.swapaxes(white.A.numpy(), -1, -2)
    rows, targets = compress_rows(root * A_transposed, (mean - precision * mean_f) / root)
    R = solve_lower_transposed(white.chol, tf.linalg.matrix_transpose(rows)).numpy()
    return PseudoObservations(Z, R, targets + np.swapaxes(R, -1, -2) @ mean_b, nugget)
