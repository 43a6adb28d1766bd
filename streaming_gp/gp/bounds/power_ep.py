"""The energy of power EP for Gaussian noise (Bui, Yan & Turner 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.base import gaussian_noise_sites
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites, is_conjugate
from streaming_gp.gp.bounds.sparse import SparseBound
from streaming_gp.gp.bounds.whitening import (
    PointPosterior,
    ProjectedData,
    left_by_points,
    posterior_at_data,
)
from streaming_gp.gp.process.prior import spread_over_latents
from streaming_gp.inputs import typed
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class PowerEP(SparseBound):
    """Power EP: the noise widens by α times the variance that the points leave unexplained.

    ``Σ_n E_q[log N(y_n; Aᵀc, 1/w_n)] − (1−α)/(2α) Σ_n log(1 + α r_n/σ²) − KL(q(b) ‖ p̃(b))``
    (Bui, Yan & Turner 2017); as α → 0 it tends to the variational bound, and α = 1 is EP (FITC).

    :param alpha: α in (0, 1].
    :raises InvalidDataError: if it is not.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise InvalidDataError(
                f"alpha of power EP must lie in (0, 1], got {self.alpha}; 0 would be variational"
            )

    def check(self, likelihood: Likelihood) -> None:
        """:raises InvalidDataError: if the noise is not Gaussian."""
        if not is_conjugate(likelihood):
            raise InvalidDataError(
                "alpha must be 0 unless the likelihood is Gaussian; got "
                f"{self.alpha} for {type(likelihood).__name__}"
            )

    def own_sites(self, local: LocalModel, data: ProjectedData, problem: Problem) -> Sites:
        sites = gaussian_noise_sites(local, problem)
        widened = 1.0 / sites.precision + self.alpha * _unexplained(local, data)
        return Sites(problem.Y / widened, 1.0 / widened)

    def expected(
        self,
        local: LocalModel,
        data: ProjectedData,
        sites: Sites,
        c: PointPosterior,
        problem: Problem,
    ) -> tf.Tensor:
        unexplained = _unexplained(local, data)
        explained = data._replace(variance=tf.reduce_sum(tf.square(data.A), axis=-2))
        q = posterior_at_data(local.gp, explained, c)
        noise = gaussian_noise_sites(local, problem).precision
        return _energy(
            self.alpha, problem.Y, q.mean, q.variance, sites.precision, noise * unexplained
        )


def _unexplained(local: LocalModel, data: ProjectedData) -> tf.Tensor:
    """Variance of f at the data given the points [N, L]."""
    return spread_over_latents(left_by_points(data), local.gp.num_latent)


@check_shapes(
    "Y: [N, P]",
    "mean: [N, P]",
    "explained: [N, P]",
    "precision: [N, P]",
    "unexplained: [N, P]",
    "return: []",
)
def _energy(
    alpha: float,
    Y: tf.Tensor,
    mean: tf.Tensor,
    explained: tf.Tensor,
    precision: tf.Tensor,
    unexplained: tf.Tensor,
) -> tf.Tensor:
    """What the data add: a scalar.

    :param mean: The mean of q(f) at the data.
    :param explained: The variance of f at the data that the points account for.
    :param precision: The precision w of the widened sites.
    :param unexplained: The variance r that the points leave, over that of the noise, σ².
    """
    square = tf.square(Y - mean) + explained
    log_density = tf.math.log(precision) - np.log(2.0 * np.pi) - precision * square
    correction = (1.0 - alpha) / alpha * tf.math.log1p(alpha * unexplained)
    return 0.5 * tf.reduce_sum(log_density - correction)
