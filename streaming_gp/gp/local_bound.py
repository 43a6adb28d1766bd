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
from streaming_gp.gp.process import Conditioned, GaussianProcess, Stack, times_root
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


class Points(NamedTuple):
    """New points whitened under the cavity: b = m̃(Z) + L c with c ~ N(0, I).

    Z [M, D], chol L [G, M, M], V [G, R, M] what the cavity's rows know about them, mean [M, L].
    """

    Z: tf.Tensor
    chol: tf.Tensor
    V: tf.Tensor
    mean: tf.Tensor


class Seen(NamedTuple):
    """The data under the cavity, before there are new points.

    V [G, R, N] what the cavity's rows know about them, mean m̃(X) [N, L], variance k̃(X, X) [G, N].
    """

    V: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


class Whitened(NamedTuple):
    """The data seen from whitened points: f = m̃(X) + Aᵀc + noise.

    A [G, M, N], mean m̃(X) [N, L], variance k̃(X, X) [G, N].
    """

    A: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


class Absorbed(NamedTuple):
    """Earlier pseudo-observations seen from whitened points: s ≈ Rᵀm̃(Z_a) + Dᵀc + noise.

    :param design: D [G, M, R].
    :param residual: ``s − Rᵀ m̃(Z_a)`` [G, R, C].
    :param log_evidence: their log normaliser under the cavity, which the bound replaces: [].
    :param prior_trace: ``tr Rᵀ k̃(Z_a, Z_a) R`` [G].
    """

    design: tf.Tensor
    residual: tf.Tensor
    log_evidence: tf.Tensor
    prior_trace: tf.Tensor


@check_shapes(
    "Z: [M, D]",
    "nugget: []",
    "return.chol: [K, M, M]",
    "return.mean: [M, L]",
)
def whiten(
    gp: GaussianProcess, stack: Stack, conditioned: Conditioned, Z: tf.Tensor, nugget: tf.Tensor
) -> Points:
    """Whiten pseudo-inputs Z [M, D] under the cavity."""
    V = gp.project(stack, conditioned, Z)
    K = add_to_diagonal(gp.covariance(V, Z), nugget * tf.ones_like(Z[:, 0]))
    return Points(Z, tf.linalg.cholesky(K), V, gp.mean(conditioned, V, Z))


def see_data(gp: GaussianProcess, stack: Stack, conditioned: Conditioned, X: tf.Tensor) -> Seen:
    """The data at inputs X [N, D] under the cavity."""
    V = gp.project(stack, conditioned, X)
    return Seen(V, gp.mean(conditioned, V, X), gp.variance(V, X))


@check_shapes(
    "X: [N, D]",
    "return.A: [K, M, N]",
    "return.mean: [N, L]",
    "return.variance: [K, N]",
)
def seen_from(gp: GaussianProcess, points: Points, seen: Seen, X: tf.Tensor) -> Whitened:
    """The data at inputs X [N, D] as linear functions of the whitened points."""
    A = solve_lower(points.chol, gp.covariance(points.V, points.Z, seen.V, X))
    return Whitened(A, seen.mean, seen.variance)


@check_shapes(
    "tie: []",
    "return.design: [G, M, R]",
    "return.residual: [G, R, C]",
    "return.log_evidence: []",
    "return.prior_trace: [G]",
)
def see_rows(
    gp: GaussianProcess,
    stack: Stack,
    conditioned: Conditioned,
    points: Points,
    absorbed: Stack,
    tie: tf.Tensor,
) -> Absorbed:
    """Earlier rows as linear functions of the whitened points.

    :param tie: white noise that the rows' u and the points' b have in common; zero unless they are
        the same variables.
    """
    Z, nugget = absorbed.Z, absorbed.nugget
    V = gp.project(stack, conditioned, Z)
    K_bu = gp.covariance(points.V, points.Z, V, Z)
    K_bu += tie * tf.eye(tf.shape(points.Z)[0], tf.shape(Z)[0], dtype=tie.dtype)
    design = times_root(solve_lower(points.chol, K_bu), absorbed.root)
    K = add_to_diagonal(gp.covariance(V, Z), nugget)
    KR = tf.linalg.matrix_transpose(times_root(K, absorbed.root))
    RtKR = times_root(KR, absorbed.root)
    mean = tf.linalg.matrix_transpose(cov.to_groups(gp.mean(conditioned, V, Z), gp.num_groups))
    shift = tf.linalg.matrix_transpose(times_root(mean, absorbed.root))
    residual = absorbed.targets - shift
    chol = tf.linalg.cholesky(add_to_diagonal(RtKR, tf.ones_like(nugget)))
    evidence = gp.log_normaliser(Conditioned(chol, solve_lower(chol, residual)))
    return Absorbed(design, residual, evidence, tf.linalg.trace(RtKR))


def grouped_sites(sites: Sites, mean: tf.Tensor, num_groups: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Site precisions [G, 1, N] and ``λ − w m̃`` [G, N, C] about the cavity mean [N, L]."""
    centred = cov.to_groups(sites.precision_mean - sites.precision * mean, num_groups)
    precision = cov.to_groups(sites.precision, num_groups)[:, :, :1]
    return tf.linalg.matrix_transpose(precision), centred


class PointPosterior(NamedTuple):
    """q(c): lower factor of its precision P [G, M, M], mean [G, M, C], KL(q(c) ‖ N(0, I)) []."""

    chol: tf.Tensor
    mean: tf.Tensor
    kl: tf.Tensor


def point_posterior(
    gp: GaussianProcess, precision: tf.Tensor, precision_mean: tf.Tensor
) -> PointPosterior:
    """q(c) from what the observations add: ``P = I + precision`` [G, M, M] and P·mean [G, M, C]."""
    ones = tf.ones_like(precision[0, :, 0])
    chol = tf.linalg.cholesky(add_to_diagonal(precision, ones))
    c = tf.linalg.cholesky_solve(chol, precision_mean)
    inverse_chol = solve_lower(chol, tf.linalg.diag(ones)[None])
    trace = tf.reduce_sum(tf.square(inverse_chol), axis=[-2, -1]) - tf.reduce_sum(ones)
    columns = tf.cast(gp.num_latent // gp.num_groups, chol.dtype)
    kl = 0.5 * columns * tf.reduce_sum(trace + logdet_from_cholesky(chol))
    return PointPosterior(chol, c, kl + 0.5 * tf.reduce_sum(tf.square(c)))


def information(
    gp: GaussianProcess, white: Whitened | None, sites: Sites | None, absorbed: Absorbed | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """What data and absorbed rows add to precision [G, M, M] and precision-mean [G, M, C] of c."""
    parts = []
    if white is not None and sites is not None:
        w, centred = grouped_sites(sites, white.mean, gp.num_groups)
        parts.append((tf.matmul(white.A * w, white.A, transpose_b=True), white.A @ centred))
    if absorbed is not None:
        D = absorbed.design
        parts.append((tf.matmul(D, D, transpose_b=True), D @ absorbed.residual))
    precisions, precision_means = zip(*parts, strict=True)
    return tf.add_n(precisions), tf.add_n(precision_means)


@check_shapes(
    "white.A: [K, M, N]",
    "white.mean: [N, L]",
    "return.mean: [N, L]",
    "return.variance: [N, L]",
    "return.kl: []",
)
def posterior_at_data(gp: GaussianProcess, white: Whitened, c: PointPosterior) -> LocalPosterior:
    """q(f) at the data."""
    A = white.A
    scaled = solve_lower(c.chol, A)
    variance = white.variance + tf.reduce_sum(tf.square(scaled) - tf.square(A), axis=-2)
    variance = tf.maximum(variance, 1e-12 * white.variance)
    return LocalPosterior(
        white.mean + cov.from_groups(tf.matmul(A, c.mean, transpose_a=True), gp.num_latent),
        cov.spread_over_latents(variance, gp.num_latent),
        c.kl,
    )


def expected_log_rows(gp: GaussianProcess, absorbed: Absorbed, c: PointPosterior) -> tf.Tensor:
    """``E_q[log t_a]`` of the absorbed rows, less their log normaliser under the cavity: []."""
    D = absorbed.design
    error = absorbed.residual - tf.matmul(D, c.mean, transpose_a=True)
    explained = tf.square(D) - tf.square(solve_lower(c.chol, D))
    trace = tf.reduce_sum(absorbed.prior_trace) - tf.reduce_sum(explained)
    columns = tf.cast(gp.num_latent // gp.num_groups, D.dtype)
    expected = -0.5 * tf.reduce_sum(tf.square(error)) - 0.5 * columns * trace
    return expected - absorbed.log_evidence


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
    points: Points, white: Whitened, sites: Sites, num_groups: int, nugget: float
) -> PseudoObservations:
    """The sites as pseudo-observations of b = f(Z), as far as f(X) depends on b.

    About the cavity mean the sites are observations ``(λ − w m̃)/√w ≈ √w Aᵀ c`` of c.
    """
    mean, precision = (cov.to_groups(part, num_groups).numpy() for part in sites)
    mean_f = cov.to_groups(white.mean, num_groups).numpy()
    root = np.sqrt(precision[:, :, :1])
    design = root * np.swapaxes(white.A.numpy(), -1, -2)
    targets = (mean - precision * mean_f) / root
    return row_on_points(points, design, targets, num_groups, nugget)[0]


def row_on_points(
    points: Points, design: np.ndarray, targets: np.ndarray, num_groups: int, nugget: float
) -> tuple[PseudoObservations, float]:
    """Observations ``targets ≈ design @ c`` as a row, and the log of the constant left over.

    [G, N, M] and [G, N, C] become M of them, which ``c = L⁻¹ (b − m̃(Z))`` carries over to b.
    """
    rows, fewer = compress_rows(design, targets)
    R = solve_lower_transposed(points.chol, tf.linalg.matrix_transpose(rows)).numpy()
    mean_b = cov.to_groups(points.mean, num_groups).numpy()
    targets_b = fewer + np.swapaxes(R, -1, -2) @ mean_b
    constant = -0.5 * float(np.sum(targets**2) - np.sum(fewer**2))
    return PseudoObservations(points.Z.numpy(), R, targets_b, nugget), constant
