"""A batch's pseudo-points, whitened under the cavity, and what data and sites say of them.

The posterior is carried by Gaussian sites on the data, so that it moves along with Z and ε (dual
parameters: Adam, Chang, Khan & Solin 2021).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.problem import Earlier
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.tensors import Conditioned, GaussianProcess, Stack, times_factor
from streaming_gp.numerics import triangular
from streaming_gp.numerics.linalg import (
    add_to_diagonal,
    compress_rows,
    logdet_from_cholesky,
    solve_lower,
)
from streaming_gp.numerics.shapes import check_shapes


class LocalPosterior(NamedTuple):
    """q(f) at the data, and its divergence from the cavity: mean [N, L], variance [N, L], KL []."""

    mean: tf.Tensor
    variance: tf.Tensor
    kl: tf.Tensor


class Points(NamedTuple):
    """New points whitened under the cavity: b = m̃(Z) + L c with c ~ N(0, I).

    Z [M, D], chol L [G, M, M], V [G, R, M] what the cavity knows of them, mean [M, L].
    """

    Z: tf.Tensor
    chol: tf.Tensor
    V: tf.Tensor
    mean: tf.Tensor


class DataUnderCavity(NamedTuple):
    """The data at inputs X [N, D] under the cavity: V [G, R, N] what the cavity knows of them, mean
    m̃(X) [N, L], variance k̃(X, X) [G, N].
    """

    X: tf.Tensor
    V: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


class ProjectedData(NamedTuple):
    """The data as functions of whitened points: f = m̃(X) + Aᵀc + noise.

    A [G, M, N], mean m̃(X) [N, L], variance k̃(X, X) [G, N].
    """

    A: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


class ProjectedEarlier(NamedTuple):
    """Earlier pseudo-observations as functions of whitened points: s ≈ Rᵀm̃(Z_a) + Dᵀc + noise.

    :param design: D [G, M, R].
    :param residual: ``s − Rᵀ m̃(Z_a)`` [G, R, C].
    :param log_evidence: Their log normaliser under the cavity, which the bound replaces: [].
    :param prior_trace: ``tr Rᵀ k̃(Z_a, Z_a) R`` [G].
    """

    design: tf.Tensor
    residual: tf.Tensor
    log_evidence: tf.Tensor
    prior_trace: tf.Tensor


class Cavity(NamedTuple):
    """A cavity process at one ε: the process, its pseudo-observations, and these conditioned on."""

    gp: GaussianProcess
    stack: Stack
    conditioned: Conditioned


@check_shapes(
    "Z: [M, D]",
    "nugget: []",
    "return.chol: [K, M, M]",
    "return.mean: [M, L]",
)
def whiten(cavity: Cavity, Z: tf.Tensor, nugget: tf.Tensor) -> Points:
    """Whiten pseudo-inputs Z [M, D] under the cavity."""
    gp, stack, conditioned = cavity
    V = gp.project(stack, conditioned, Z)
    K = add_to_diagonal(gp.covariance(V, Z), nugget * tf.ones_like(Z[:, 0]))
    return Points(Z, tf.linalg.cholesky(K), V, gp.mean(conditioned, V, Z))


def data_under_cavity(cavity: Cavity, X: tf.Tensor) -> DataUnderCavity:
    """The data at inputs X [N, D], before there are new points."""
    gp, stack, conditioned = cavity
    V = gp.project(stack, conditioned, X)
    return DataUnderCavity(X, V, gp.mean(conditioned, V, X), gp.variance(V, X))


@check_shapes(
    "return.A: [K, M, N]",
    "return.mean: [N, L]",
    "return.variance: [K, N]",
)
def projected_data(cavity: Cavity, points: Points, data: DataUnderCavity) -> ProjectedData:
    """The data as linear functions of the whitened points."""
    A = solve_lower(points.chol, cavity.gp.covariance(points.V, points.Z, data.V, data.X))
    return ProjectedData(A, data.mean, data.variance)


@check_shapes(
    "return.design: [G, M, R]",
    "return.residual: [G, R, C]",
    "return.log_evidence: []",
    "return.prior_trace: [G]",
)
def projected_earlier(cavity: Cavity, points: Points, earlier: Earlier) -> ProjectedEarlier:
    """Earlier pseudo-observations as linear functions of the whitened points."""
    gp, stack, conditioned = cavity
    theirs, shared_nugget = earlier
    Z, nugget, factor = theirs.Z, theirs.nugget, theirs.precision_factor
    V = gp.project(stack, conditioned, Z)
    K_bu = gp.covariance(points.V, points.Z, V, Z)
    K_bu += shared_nugget * tf.eye(tf.shape(points.Z)[0], tf.shape(Z)[0], dtype=shared_nugget.dtype)
    design = times_factor(solve_lower(points.chol, K_bu), factor)
    K = add_to_diagonal(gp.covariance(V, Z), nugget)
    KR = tf.linalg.matrix_transpose(times_factor(K, factor))
    RtKR = times_factor(KR, factor)
    mean = tf.linalg.matrix_transpose(cov.to_groups(gp.mean(conditioned, V, Z), gp.num_groups))
    shift = tf.linalg.matrix_transpose(times_factor(mean, factor))
    residual = theirs.pseudo_targets - shift
    chol = tf.linalg.cholesky(add_to_diagonal(RtKR, tf.ones_like(nugget)))
    evidence = gp.log_normaliser(Conditioned(chol, solve_lower(chol, residual)))
    return ProjectedEarlier(design, residual, evidence, tf.linalg.trace(RtKR))


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
    gp: GaussianProcess,
    data: ProjectedData | None,
    sites: Sites | None,
    earlier: ProjectedEarlier | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """What data and earlier pseudo-observations add to q(c): precision [G, M, M] and
    precision-mean [G, M, C].
    """
    parts = []
    if data is not None and sites is not None:
        w, centred = grouped_sites(sites, data.mean, gp.num_groups)
        parts.append((tf.matmul(data.A * w, data.A, transpose_b=True), data.A @ centred))
    if earlier is not None:
        D = earlier.design
        parts.append((tf.matmul(D, D, transpose_b=True), D @ earlier.residual))
    precisions, precision_means = zip(*parts, strict=True)
    return tf.add_n(precisions), tf.add_n(precision_means)


@check_shapes(
    "data.A: [K, M, N]",
    "data.mean: [N, L]",
    "return.mean: [N, L]",
    "return.variance: [N, L]",
    "return.kl: []",
)
def posterior_at_data(
    gp: GaussianProcess, data: ProjectedData, c: PointPosterior
) -> LocalPosterior:
    """q(f) at the data."""
    A = data.A
    scaled = solve_lower(c.chol, A)
    variance = data.variance + tf.reduce_sum(tf.square(scaled) - tf.square(A), axis=-2)
    variance = tf.maximum(variance, 1e-12 * data.variance)
    return LocalPosterior(
        data.mean + cov.from_groups(tf.matmul(A, c.mean, transpose_a=True), gp.num_latent),
        cov.spread_over_latents(variance, gp.num_latent),
        c.kl,
    )


def left_by_points(data: ProjectedData) -> tf.Tensor:
    """Variance of f at the data given the points [G, N]."""
    return tf.maximum(data.variance - tf.reduce_sum(tf.square(data.A), axis=-2), 0.0)


def expected_log_earlier(
    gp: GaussianProcess, earlier: ProjectedEarlier, c: PointPosterior
) -> tf.Tensor:
    """``E_q[log t_a]`` of earlier pseudo-observations, less their log evidence: []."""
    D = earlier.design
    error = earlier.residual - tf.matmul(D, c.mean, transpose_a=True)
    explained = tf.square(D) - tf.square(solve_lower(c.chol, D))
    trace = tf.reduce_sum(earlier.prior_trace) - tf.reduce_sum(explained)
    columns = tf.cast(gp.num_latent // gp.num_groups, D.dtype)
    expected = -0.5 * tf.reduce_sum(tf.square(error)) - 0.5 * columns * trace
    return expected - earlier.log_evidence


def from_sites(
    points: Points, data: ProjectedData, sites: Sites, num_groups: int, nugget: float
) -> PseudoObservations:
    """The sites as pseudo-observations of b = f(Z), as far as f(X) depends on b.

    About the cavity mean the sites are observations ``(λ − w m̃)/√w ≈ √w Aᵀ c`` of c.
    """
    mean, precision = (np.asarray(cov.to_groups(part, num_groups)) for part in sites)
    mean_f = cov.to_groups(data.mean, num_groups).numpy()
    root = np.sqrt(precision[:, :, :1])
    design = root * np.swapaxes(data.A.numpy(), -1, -2)
    targets = (mean - precision * mean_f) / root
    mean_b = cov.to_groups(points.mean, num_groups).numpy()
    Z, chol = points.Z.numpy(), points.chol.numpy()
    return on_points(Z, chol, mean_b, design, targets, nugget)[0]


def on_points(
    Z: np.ndarray,
    chol: np.ndarray,
    mean: np.ndarray,
    design: np.ndarray,
    targets: np.ndarray,
    nugget: float,
) -> tuple[PseudoObservations, float]:
    """Observations ``targets ≈ design @ c`` as pseudo-observations, and the log constant left over.

    [G, N, M] and [G, N, C] become M of them, which ``c = L⁻¹ (b − m̃(Z))`` turns into those of b.

    :param Z: The points [M, D].
    :param chol: L of each group, or of all [G, M, M] or [1, M, M].
    :param mean: m̃(Z) [G, M, C].
    :param nugget: The variance of the points' white noise.
    """
    rows, fewer = compress_rows(design, targets)
    triangles = np.broadcast_to(chol, (len(rows), *chol.shape[1:]))
    R = np.stack(
        [
            triangular.solve(L, np.ascontiguousarray(T.T), transposed=True)
            for L, T in zip(triangles, rows, strict=True)
        ]
    )
    constant = -0.5 * float(np.sum(targets**2) - np.sum(fewer**2))
    return PseudoObservations(Z, R, fewer + np.swapaxes(R, 1, 2) @ mean, nugget), constant
