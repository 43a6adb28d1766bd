"""``log E[p(y | f)^α]`` under a Gaussian that may be far wider or narrower than the likelihood.

Nodes that are spread as the Gaussian is, as those of Gauss and Hermite, miss a likelihood that
changes between two of them: an integral under a wide prior is then flat in its mean, and
expectation propagation learns nothing. So the line is cut where either of the two changes, and
every panel has a Gauss–Legendre rule of its own.
"""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import scipy.special
import tensorflow as tf

from streaming_gp.numerics.linalg import LOG_TWO_PI

NODES, WEIGHTS = scipy.special.roots_legendre(8)
FROM_MEAN = np.arange(-8.0, 9.0)
"""Cuts, in standard deviations from the mean."""
_DYADIC = 2.0 ** np.arange(-1.0, 20.0)
FROM_CENTRE = np.concatenate([-_DYADIC[::-1], [0.0], _DYADIC])
"""Cuts, in scales of the likelihood from its centre."""
REACH = 8.0
"""So many scales about its centre are looked at, wherever the Gaussian is."""

LARGEST_EXPONENT = 700.0
"""Its exponential, and that of its negative, are float64 numbers."""


def log_expected_power(
    likelihood: Any, X: Any, mean: tf.Tensor, variance: tf.Tensor, Y: Any, alpha: float
) -> tf.Tensor:
    """``log E[p(y_n | f_n)^α]`` for ``f_n`` of these means and variances [N, 1]: [N].

    The nodes do not move with mean and variance, so that gradients by these are the moments of the
    tilted distribution.

    :param likelihood: A GPflow likelihood of one latent function.
    """
    deviation = tf.sqrt(variance)
    F, log_weights = map(tf.stop_gradient, _rule(mean, deviation, *centre_and_scale(likelihood, Y)))
    log_normal = -0.5 * (LOG_TWO_PI + tf.math.log(variance) + tf.square((F - mean) / deviation))
    log_power = alpha * _log_prob(likelihood, X, F, Y)[..., None]
    return tf.reduce_logsumexp(log_weights + log_normal + log_power, axis=0)[..., 0]


def _log_prob(likelihood: Any, X: Any, F: tf.Tensor, Y: Any) -> tf.Tensor:
    """``log p(y_n | f)`` at nodes [J, N, 1]: [J, N].

    An exponential link is zero or infinite far out, and a count's density is no number there: it
    counts as what it is where the link is neither.
    """
    exact = likelihood.log_prob(X, F, Y)
    inside = likelihood.log_prob(X, tf.clip_by_value(F, -LARGEST_EXPONENT, LARGEST_EXPONENT), Y)
    return tf.where(tf.math.is_nan(exact), inside, exact)


def _rule(
    mean: tf.Tensor, deviation: tf.Tensor, centre: Any, scale: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Nodes and logarithms of weights [J, N, 1]; panels of no width have no weight."""
    lowest = tf.minimum(mean + FROM_MEAN[0] * deviation, centre - REACH * scale)
    highest = tf.maximum(mean + FROM_MEAN[-1] * deviation, centre + REACH * scale)
    cuts = tf.concat([
        mean + FROM_MEAN[:, None, None] * deviation,
        tf.clip_by_value(centre + FROM_CENTRE[:, None, None] * scale, lowest, highest),
        [lowest, highest],
    ], axis=0)  # fmt: skip
    cuts = tf.sort(cuts, axis=0)
    middle, half = 0.5 * (cuts[1:] + cuts[:-1]), 0.5 * (cuts[1:] - cuts[:-1])
    nodes = middle + NODES[:, None, None, None] * half
    log_weights = tf.math.log(WEIGHTS[:, None, None, None] * half)
    shape = [-1, *mean.shape]
    return tf.reshape(nodes, shape), tf.reshape(log_weights, shape)


def centre_and_scale(likelihood: Any, Y: tf.Tensor) -> tuple[Any, Any]:
    """The f near which ``log p(y | f)`` changes fastest, and within how much: [N, 1] or [] each.

    Cuts are the closer the closer to it they are. One that is not known is taken for 0 and 1.
    """
    if isinstance(likelihood, gpflow.likelihoods.StudentT):
        return Y, tf.convert_to_tensor(likelihood.scale)
    if isinstance(likelihood, gpflow.likelihoods.Gaussian) and likelihood.variance is not None:
        return Y, tf.sqrt(tf.convert_to_tensor(likelihood.variance))
    if isinstance(likelihood, gpflow.likelihoods.Poisson):
        rate = Y + 0.5
        return tf.math.log(rate / likelihood.binsize), 1.0 / tf.sqrt(rate)
    return tf.zeros_like(Y), 1.0
