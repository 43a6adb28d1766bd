"""Expected log likelihoods and the Gaussian sites that stand for them.

A site is ``exp(λ f − ½ w f²)`` for each datum and latent function. Under the current posterior
N(μ, v) of f the fixed-point update (PVI 2018, eq. 9) is ``w = −2 ∂E[log p]/∂v`` and
``λ = ∂E[log p]/∂μ + w μ``. With another w in both, μ at the fixed point is still stationary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.likelihoods import Gaussian, Likelihood, MonteCarloLikelihood, StudentT

from streaming_gp.numerics.quadrature import standard_normals
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.validation import observations

MIN_SITE_PRECISION = 1e-6
"""Sites of likelihoods that are not log-concave are cut off here; ``UpdateInfo`` counts them."""
LEAST_WEIGHT = 0.25
"""Of a datum far from q(f), as a share of what expectation maximisation gives it."""
SMALLEST_RESIDUAL = 1e-9
"""In units of Y: the slope of a chord shorter than that is rounding."""


class Sites(NamedTuple):
    """``precision_mean`` λ and ``precision`` w, each [N, L]."""

    precision_mean: tf.Tensor
    precision: tf.Tensor


def nothing_said(num_data: int, num_latent: int) -> Sites:
    """Sites [N, L] that say next to nothing of f."""
    zeros = np.zeros((num_data, num_latent))
    return Sites(zeros, zeros + MIN_SITE_PRECISION)


class SiteSteps(NamedTuple):
    """Fixed-point steps of the sites.

    :param most: The largest number of them.
    :param damping: Their damping ρ, in (0, 1].
    :param tolerance: The largest change of a site at which they end early.
    """

    most: float
    damping: float
    tolerance: float


def is_conjugate(likelihood: Likelihood) -> bool:
    """Whether the sites are exact and known beforehand."""
    return type(likelihood) is Gaussian


def has_one_noise(likelihood: Gaussian) -> bool:
    """Whether the noise variance is one number, and so the same for all outputs."""
    noise = likelihood.variance if likelihood.scale is None else likelihood.scale
    return isinstance(noise, Parameter) and int(np.prod(noise.shape)) == 1


@check_shapes(
    "X: [N, D]",
    "Y: [N, P]",
    "return.precision_mean: [N, P]",
    "return.precision: [N, P]",
)
def conjugate_sites(likelihood: Gaussian, X: tf.Tensor, Y: tf.Tensor) -> Sites:
    """``w = 1/σ²_p(x)``, ``λ = y/σ²_p(x)``: noise may depend on X [N, D] and differ by output."""
    precision = 1.0 / likelihood.conditional_variance(X, tf.zeros_like(Y))
    return Sites(Y * precision, precision)


@lru_cache(maxsize=16)
def _normal_points(num_samples: int, dimension: int) -> np.ndarray:
    """Standard normal points [S, 1, L]; kept, as they are wanted at every evaluation."""
    return standard_normals(num_samples, dimension, seed=0)[:, None, :]


def _monte_carlo_noise(likelihood: Likelihood, mean: tf.Tensor) -> dict[str, Any]:
    """Fixed noise for GPflow's Monte Carlo likelihoods, which would draw their own each time."""
    if not isinstance(likelihood, MonteCarloLikelihood):
        return {}
    points = _normal_points(likelihood.num_monte_carlo_points, int(mean.shape[-1]))
    shape = tf.concat([points.shape[:1], tf.shape(mean)], 0)
    return {"epsilon": tf.broadcast_to(tf.constant(points, mean.dtype), shape)}


@check_shapes(
    "X: [N, D]",
    "mean: [N, L]",
    "variance: [N, L]",
    "Y: [N, P]",
    "return: []",
)
def expected_log_density(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """``Σ_n E_N(f_n; mean, variance)[log p(y_n | f_n)]``: a scalar, deterministic."""
    noise = _monte_carlo_noise(likelihood, mean)
    Y = observations(likelihood, Y)
    return tf.reduce_sum(likelihood._variational_expectations(X, mean, variance, Y, **noise))


@check_shapes(
    "X: [N, D]",
    "mean: [N, L]",
    "variance: [N, L]",
    "return[0]: [N, P]",
    "return[1]: [N, P]",
)
def predictive_moments(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance [N, P] of y under f ~ N(mean, variance), each [N, L]."""
    noise = _monte_carlo_noise(likelihood, mean)
    return likelihood._predict_mean_and_var(X, mean, variance, **noise)


@check_shapes(
    "X: [N, D]",
    "mean: [N, L]",
    "variance: [N, L]",
    "Y: [N, P]",
    "return: [N]",
)
def predictive_log_density(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """``log E_N(f_n; mean, variance)[p(y_n | f_n)]`` [N]."""
    noise = _monte_carlo_noise(likelihood, mean)
    Y = observations(likelihood, Y)
    return likelihood._predict_log_density(X, mean, variance, Y, **noise)


@check_shapes(
    "X: [N, D]",
    "mean: [N, L]",
    "variance: [N, L]",
    "Y: [N, P]",
    "return.precision_mean: [N, L]",
    "return.precision: [N, L]",
)
def fixed_point_sites(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> Sites:
    """The undamped fixed-point sites at q(f) = N(mean, variance), each [N, L]; w unclipped."""
    with tf.GradientTape() as tape:
        tape.watch((mean, variance))
        expected = expected_log_density(likelihood, X, mean, variance, Y)
    by_mean, by_variance = tape.gradient(expected, (mean, variance))
    return from_derivatives(likelihood, by_mean, by_variance, mean, Y)


def from_derivatives(
    likelihood: Likelihood, by_mean: Any, by_variance: Any, mean: Any, Y: Any
) -> Sites:
    """The same, from the derivatives of the expected log likelihood by moments of q(f)."""
    precision = -2.0 * by_variance
    if isinstance(likelihood, StudentT):
        precision = _of_heavy_tails(precision, by_mean, Y - mean)
    return Sites(by_mean + precision * mean, precision)


def stationary(sites: Sites, mean: Any) -> Sites:
    """Undamped sites at q(f) of this mean with |w| in the place of w, in both parts.

    Where w is negative and cut off, and λ has it still, fixed points leave aside what does not fit;
    but there μ is not stationary, as it is at fixed points of these.

    :param sites: Those of :func:`from_derivatives`, [N, L] or [S, N, L].
    :param mean: Of q(f), of the same shape.
    """
    precision = tf.maximum(tf.abs(sites.precision), MIN_SITE_PRECISION)
    return Sites(sites.precision_mean + (precision - sites.precision) * mean, precision)


def _of_heavy_tails(precision: Any, by_mean: Any, residual: Any) -> Any:
    """Precisions of at least a quarter of ``∂E[log p]/∂μ / (y − μ)``.

    That is the weight which expectation maximisation gives to a datum with noise of Student's t
    (Lange et al. 1989). Far from q(f) the fixed point's precision is negative; cut off, such data
    leave q(f) wherever it was. With all of the weight the fixed point is no optimum of the bound.
    """
    shows = tf.abs(residual) > SMALLEST_RESIDUAL
    weight = by_mean / tf.where(shows, residual, tf.ones_like(residual))
    return tf.where(shows, tf.maximum(precision, LEAST_WEIGHT * weight), precision)


def clipped(sites: Sites) -> Sites:
    """Sites whose precision is at least ``MIN_SITE_PRECISION``."""
    return Sites(sites.precision_mean, tf.maximum(sites.precision, MIN_SITE_PRECISION))


def rested(
    step: Callable[[Sites], Sites],
    sites: Sites,
    most: tf.Tensor,
    damping: tf.Tensor,
    tolerance: tf.Tensor,
) -> tuple[Sites, tf.Tensor, tf.Tensor]:
    """Sites after damped steps (PVI 2018, eq. 10), until they rest; :class:`SiteSteps` says when.

    :param step: An undamped step, in TensorFlow.
    :returns: the sites, how many the last step cut off, and whether all steps were finite.
    """

    def goes_on(number: tf.Tensor, change: tf.Tensor, is_finite: tf.Tensor, *_: Any) -> tf.Tensor:
        return is_finite & (number < most) & (change >= tolerance)

    def onward(number: tf.Tensor, *before: Any) -> tuple[Any, ...]:
        now, raw = before[-1], step(before[-1])
        parts = zip(now, clipped(raw), strict=True)
        new = Sites(*((1.0 - damping) * one + damping * other for one, other in parts))
        changes = (tf.reduce_max(tf.abs(a - b)) for a, b in zip(now, new, strict=True))
        finite = (tf.reduce_all(tf.math.is_finite(part)) for part in raw)
        cut = tf.math.count_nonzero(raw.precision < MIN_SITE_PRECISION)
        return number + 1.0, tf.maximum(*changes), tf.logical_and(*finite), cut, new

    nothing, change = tf.constant(0, tf.int64), tf.constant(np.inf, most.dtype)
    start = (tf.zeros_like(most), change, tf.constant(True), nothing)
    shapes = tf.nest.map_structure(lambda part: part.shape, (*start, sites))
    *_, is_finite, cut, found = tf.while_loop(goes_on, onward, (*start, sites), shapes)
    return found, cut, is_finite


@check_shapes(
    "left: [N, L]",
    "sites.precision: [N, L]",
)
def unexplained(left: np.ndarray, sites: Sites, nugget: float) -> float:
    """``r/(1/w + nugget)``, averaged over the data: how much wider the error of a datum is than
    its site says.

    Sites count each datum as if the points said all of f there. Where they do not, what the data
    say of the points is about ``1 + r w`` times as certain as it should be. White noise of the
    points is theirs as well, and no error.

    :param left: The variance r of f at the data given the points.
    :param sites: The sites on the data, of precision w.
    :param nugget: The variance of the points' white noise.
    """
    return float(np.mean(left / (1.0 / np.asarray(sites.precision) + nugget)))
