"""A pseudo-point at every input: no approximation but that of the sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.base import (
    BoundOfProjections,
    cavity_of,
    divergence_gained,
    expected_log_likelihood,
    gaussian_noise_sites,
    sites_at,
)
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites, is_conjugate
from streaming_gp.gp.bounds.whitening import Cavity, LocalPosterior, grouped_sites
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import at_each_sample, mean_over_samples
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.numerics.linalg import (
    LOG_TWO_PI,
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
)
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.serialization import storable


class UnderCavity(NamedTuple):
    """f at the data under the cavity: mean m̃(X) [N, L] and covariance k̃(X, X) [G, N, N]."""

    mean: tf.Tensor
    covariance: tf.Tensor


@storable
@dataclass(frozen=True)
class Exact(BoundOfProjections):
    """``F = Σ_n E_q[log p(y_n | f_n)] − KL(q(f) ‖ p̃(f))`` at the inputs themselves.

    With Gaussian noise it is the log evidence of the batch under the cavity, and its factor is the
    likelihood. The pseudo-inputs are the inputs of the batch, whatever Z is.
    """

    is_evidence_bound: ClassVar[bool] = True

    def free_energy(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        def bound(epsilon: tf.Tensor) -> tf.Tensor:
            with local.parameters.substituted(epsilon):
                return _bound(local, problem, sites)

        return mean_over_samples(bound, draws)

    def projections(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> UnderCavity:
        def at(epsilon: tf.Tensor) -> UnderCavity:
            with local.parameters.substituted(epsilon):
                return _under_cavity(cavity_of(local, problem), problem.X)

        return at_each_sample(at, draws)

    def next_sites_of(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        projections: UnderCavity,
        problem: Problem,
        sites: Sites,
    ) -> Sites:
        def step(epsilon: tf.Tensor, data: UnderCavity) -> Sites:
            with local.parameters.substituted(epsilon):
                return sites_at(local, _posterior(local.gp, data, sites), problem)

        return mean_over_samples(step, draws, projections)

    def summary(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        epsilon: tf.Tensor,
        Z: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> tf.Tensor:
        """The inputs: the sites say the rest."""
        return problem.X

    def pseudo_observations(
        self, local: LocalModel, summary: tf.Tensor, problem: Problem, sites: Sites
    ) -> PseudoObservations:
        """The sites themselves, as pseudo-observations of f at every input X [N, D]."""
        return at_every_input(summary.numpy(), sites, local.gp.num_groups)


def at_every_input(X: np.ndarray, sites: Sites, num_groups: int) -> PseudoObservations:
    """Sites [N, L] as pseudo-observations at the inputs X [N, D]."""
    groups = len(X), num_groups, -1
    mean, precision = (np.reshape(part, groups).swapaxes(0, 1) for part in sites)
    root = np.sqrt(precision[:, :, :1])
    return PseudoObservations(X, root * np.eye(len(X)), mean / root, nugget=0.0)


def _bound(local: LocalModel, problem: Problem, sites: Sites) -> tf.Tensor:
    cavity = cavity_of(local, problem)
    past = local.hyperparameters.memory(
        lambda: local.gp.log_normaliser(cavity.conditioned),
        lambda: divergence_gained(local, problem),
    )
    if is_conjugate(local.likelihood):
        return _log_evidence(cavity, problem.X, gaussian_noise_sites(local, problem)) + past
    q = _posterior(local.gp, _under_cavity(cavity, problem.X), sites)
    return expected_log_likelihood(local, q, problem) - q.kl + past


def _log_evidence(cavity: Cavity, X: tf.Tensor, sites: Sites) -> tf.Tensor:
    """``log N(y; m̃, K̃ + W⁻¹) = ½ log det W − ½ log det B − ½ ‖L⁻¹ W^½ (y − m̃)‖² − ½ N log 2π``.

    It is the free energy at the exact sites.
    """
    gp, stack, conditioned = cavity
    V = gp.project(stack, conditioned, X)
    w, centred = grouped_sites(sites, gp.mean(conditioned, V, X), gp.num_groups)
    chol, column_root = _factorised(gp.covariance(V, X), w)
    white = solve_lower(chol, centred / column_root)
    columns = tf.cast(gp.num_latent // gp.num_groups, chol.dtype)
    scale = tf.reduce_sum(tf.math.log(sites.precision) - LOG_TWO_PI)
    determinant = columns * tf.reduce_sum(logdet_from_cholesky(chol))
    return 0.5 * (scale - determinant - tf.reduce_sum(tf.square(white)))


def _factorised(K: tf.Tensor, w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The lower factor of ``B = I + W^½ K W^½`` [G, N, N], and W^½ as columns [G, N, 1]."""
    root = tf.sqrt(w)
    column_root = tf.linalg.matrix_transpose(root)
    ones = tf.ones_like(K[0, :, 0])
    return tf.linalg.cholesky(add_to_diagonal(column_root * K * root, ones)), column_root


def _under_cavity(cavity: Cavity, X: tf.Tensor) -> UnderCavity:
    gp, stack, conditioned = cavity
    V = gp.project(stack, conditioned, X)
    return UnderCavity(gp.mean(conditioned, V, X), gp.covariance(V, X))


@check_shapes(
    "data.mean: [N, L]",
    "sites.precision_mean: [N, L]",
    "sites.precision: [N, L]",
    "return.mean: [N, L]",
    "return.variance: [N, L]",
    "return.kl: []",
)
def _posterior(gp: GaussianProcess, data: UnderCavity, sites: Sites) -> LocalPosterior:
    """q(f) at the data with a pseudo-point at every input: no K̃⁻¹, hence no nugget.

    ``B = I + W^½ K̃ W^½`` (Rasmussen & Williams 2006, eq. 3.26); ``a = W^½ B⁻¹ W^-½ (λ − w m̃)``.
    """
    prior_mean, K = data
    w, centred = grouped_sites(sites, prior_mean, gp.num_groups)
    ones = tf.ones_like(K[0, :, 0])
    chol, column_root = _factorised(K, w)
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
