"""The prior and the noise at values of ε, as all that a collapsed bound is a function of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.process import prior as cov


class PriorValues(NamedTuple):
    """Prior and noise at S values of ε, or derivatives by each entry.

    Latent functions come in G groups of C columns; K = 1 where groups share a kernel, else G. In
    NumPy these are of one group, and have no axis for it.

    :param among: The covariance of the points [S, K, T, T].
    :param between: That of points and data [S, K, T, N]; N = 0 where the points are the data.
    :param variance: The variance at the data [S, K, N], likewise.
    :param mean_points: [S, G, T, C].
    :param mean_data: [S, G, N, C], likewise.
    :param noise: The variance of the noise at all data [S, G, N]; zero if it is not Gaussian.
    """

    among: Any
    between: Any
    variance: Any
    mean_points: Any
    mean_data: Any
    noise: Any

    def of_group(self, group: int) -> PriorValues:
        """Those of one group, as views; groups may share a kernel."""
        return PriorValues(*(one[:, min(group, one.shape[1] - 1)] for one in self))

    def gathered(self, groups: Sequence[PriorValues]) -> PriorValues:
        """Derivatives by these, from those by the views :meth:`of_group`."""
        parts = zip(self, zip(*groups, strict=True), strict=True)
        return PriorValues(*(_gathered(one.shape[1], ones) for one, ones in parts))


def _gathered(num_kept: int, ones: Sequence[np.ndarray]) -> np.ndarray:
    """Derivatives by what groups share are added, others are stacked."""
    return reduce(np.add, ones)[:, None] if num_kept == 1 else np.stack(ones, axis=1)


def prior_values(local: Any, points: tf.Tensor, X: tf.Tensor, on_points: bool) -> PriorValues:
    """Prior and noise at the ε that the parameters hold now: without the axis S.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`.
    :param points: Inputs of which all covariances are wanted [T, D].
    :param X: The data's inputs [N, D], at which the noise is wanted.
    :param on_points: Whether there are points beside the data.
    """
    gp = local.gp
    among = cov.covariance(gp.kernel, points)
    mean_points = cov.to_groups(gp.prior_mean(points), gp.num_groups)
    if on_points:
        between, variance = cov.covariance(gp.kernel, points, X), cov.variance(gp.kernel, X)
        mean_data = cov.to_groups(gp.prior_mean(X), gp.num_groups)
    else:
        between, variance, mean_data = among[:, :, :0], among[:, 0, :0], mean_points[:, :0]
    return PriorValues(
        among,
        between,
        variance,
        mean_points,
        mean_data,
        cov.to_groups(_noise_variance(local, X), gp.num_groups)[:, :, 0],
    )


def _noise_variance(local: Any, X: tf.Tensor) -> tf.Tensor:
    """That of Gaussian noise [N, L]; no other is asked for."""
    zeros = tf.zeros([tf.shape(X)[0], local.gp.num_latent], X.dtype)
    if not is_conjugate(local.likelihood):
        return zeros
    return local.likelihood.conditional_variance(X, zeros)
