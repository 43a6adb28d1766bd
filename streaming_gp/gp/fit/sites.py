"""Expected log likelihoods and the Gaussian sites that stand for them.

A site is ``exp(λ f − ½ w f²)`` for each datum and latent function. Under the current posterior
N(μ, v) of f the fixed-point update (PVI 2018, eq. 9) is ``w = −2 ∂E[log p]/∂v`` and
``λ = ∂E[log p]/∂μ + w μ``. With another w in both, μ at the fixed point is still stationary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.likelihoods import (
    Gaussian,
    Likelihood,
    MonteCarloLikelihood,
    ScalarLikelihood,
    StudentT,
)

from streaming_gp.errors import NumericalError
from streaming_gp.numerics.quadrature import gauss_hermite, standard_normals
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.validation import observations

MIN_SITE_PRECISION = 1e-6
"""Sites of likelihoods that are not log-concave are cut off here; ``UpdateInfo`` counts them."""
LEAST_WEIGHT = 0.25
"""Of a datum far from q(f), as a share of what expectation maximisation gives it."""
TILTED_NODES = 40
"""Of Gauss–Hermite quadrature of tilted distributions."""
SMALLEST_SHARE = 1e-6
"""Of its variance that a tilted distribution keeps: less is rounding."""
SMALLEST_RESIDUAL = 1e-9
"""In units of Y: the slope of a chord shorter than that is rounding."""


class Sites(NamedTuple):
    """``precision_mean`` λ and ``precision`` w, each [N, L]."""

    precision_mean: np.ndarray
    precision: np.ndarray


def nothing_said(num_data: int, num_latent: int) -> Sites:
    """Sites [N, L] that say next to nothing of f."""
    zeros = np.zeros((num_data, num_latent))
    return Sites(zeros, zeros + MIN_SITE_PRECISION)


def is_conjugate(likelihood: Likelihood) -> bool:
    """Whether the sites are exact and known beforehand."""
    return type(likelihood) is Gaussian


def has_one_noise(likelihood: Gaussian) -> bool:
    """Whether the noise variance is one number, and so the same for all outputs."""
    noise = likelihood.variance if likelihood.scale is None else likelihood.scale
    return isinstance(noise, Parameter) and int(np.prod(noise.shape)) == 1


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


@check_shapes("X: [N, D]", "mean: [N, L]", "variance: [N, L]", "Y: [N, P]", "return: []")
def expected_log_density(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """``Σ_n E_N(f_n; mean, variance)[log p(y_n | f_n)]``: a scalar, deterministic."""
    return tf.reduce_sum(expected_log_densities(likelihood, X, mean, variance, Y))


def expected_log_densities(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """``E_N(f_n; mean, variance)[log p(y_n | f_n)]`` [N], deterministic."""
    noise = _monte_carlo_noise(likelihood, mean)
    Y = observations(likelihood, Y)
    return likelihood._variational_expectations(X, mean, variance, Y, **noise)


@check_shapes(
    "X: [N, D]", "mean: [N, L]", "variance: [N, L]", "return[0]: [N, P]", "return[1]: [N, P]"
)
def predictive_moments(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance [N, P] of y under f ~ N(mean, variance), each [N, L]."""
    noise = _monte_carlo_noise(likelihood, mean)
    return likelihood._predict_mean_and_var(X, mean, variance, **noise)


@check_shapes("X: [N, D]", "mean: [N, L]", "variance: [N, L]", "Y: [N, P]", "return: [N]")
def predictive_log_density(
    likelihood: Likelihood, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """``log E_N(f_n; mean, variance)[p(y_n | f_n)]`` [N]."""
    noise = _monte_carlo_noise(likelihood, mean)
    Y = observations(likelihood, Y)
    return likelihood._predict_log_density(X, mean, variance, Y, **noise)


def tilted_log_density(
    likelihood: ScalarLikelihood,
    X: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    Y: tf.Tensor,
    about: tuple[tf.Tensor, tf.Tensor],
    alpha: float,
) -> tf.Tensor:
    """``Σ_n log ∫ N(f_n; mean, variance) p(y_n | f_n)^α df_n``: a scalar, by quadrature.

    :param about: Mean and variance [N, L] of what the tilted distribution of f_n may be, by
        :func:`tilted_moments`: there the nodes are, with room, as a cavity may be far wider.
    """
    nodes, weights = gauss_hermite(TILTED_NODES)
    centre, spread = (tf.stop_gradient(one) for one in about)
    spread = 2.0 * spread
    F = centre + tf.sqrt(spread) * nodes[:, :, None]
    powers = alpha * likelihood._scalar_log_prob(X, F, Y)
    powers -= 0.5 * (tf.square(F - mean) / variance + tf.math.log(variance / spread))
    powers += np.log(weights)[:, None, None] + 0.5 * tf.square(nodes)[:, :, None]
    return tf.reduce_sum(tf.reduce_logsumexp(powers, axis=0))


def without_sites(mean: Any, variance: Any, site_mean: Any, precision: Any, alpha: float) -> Any:
    """Mean and variance of a cavity: of ``q(f) / exp(λ f − ½ τ f²)^α``, arrays or tensors."""
    cavity = 1.0 / (1.0 / variance - alpha * precision)
    return cavity * (mean / variance - alpha * site_mean), cavity


def tilted_moments(
    mean: Any, variance: Any, left: Any, site_mean: Any, precision: Any, alpha: float
) -> tuple[Any, Any]:
    """Mean and variance of the tilted distribution of f where a site is at its fixed point.

    :param mean: Of the cavity of what the points say of f.
    :param variance: Likewise.
    :param left: The variance that they leave.
    """
    total, share = variance + left, 1.0 / (1.0 + alpha * precision * variance)
    bend = -alpha * precision * share
    kept = abs(1.0 + total * bend) + SMALLEST_SHARE  # far from the fixed point it may be negative
    return mean + total * (alpha * site_mean * share + bend * mean), total * kept


def of_tilted(
    by_mean: np.ndarray,
    by_variance: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    alpha: float,
) -> Sites:
    """The undamped sites of power EP (Minka 2004), from the derivatives g and D of log Z by the
    moments of the cavity of what the points say of f; the precision is unclipped.

    The tilted distribution has the variance ``v + v² h`` for ``h = 2 D − g²``, and the mean
    ``m + v g``: what a site to the power α adds to the cavity.
    """
    bend = 2.0 * by_variance - by_mean**2
    share = alpha * np.maximum(1.0 + variance * bend, SMALLEST_SHARE)
    return Sites((by_mean - bend * mean) / share, -bend / share)


def from_derivatives(
    likelihood: Likelihood,
    by_mean: np.ndarray,
    by_variance: np.ndarray,
    mean: np.ndarray,
    Y: np.ndarray,
) -> Sites:
    """The undamped fixed-point sites, from the derivatives of the expected log likelihood by the
    moments of q(f); w unclipped (PVI 2018, eq. 10).
    """
    precision = -2.0 * by_variance
    if isinstance(likelihood, StudentT):
        precision = _of_heavy_tails(precision, by_mean, Y - mean)
    return Sites(by_mean + precision * mean, precision)


def stationary(sites: Sites, mean: np.ndarray) -> Sites:
    """Undamped sites at q(f) of this mean with |w| in the place of w, in both parts.

    Where w is negative and cut off, and λ has it still, fixed points leave aside what does not fit;
    but there μ is not stationary, as it is at fixed points of these.

    :param sites: Those of :func:`from_derivatives`, [N, L] or [S, N, L].
    :param mean: Of q(f), of the same shape.
    """
    precision = np.maximum(np.abs(sites.precision), MIN_SITE_PRECISION)
    return Sites(sites.precision_mean + (precision - sites.precision) * mean, precision)


def _of_heavy_tails(precision: np.ndarray, by_mean: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Precisions of at least a quarter of ``∂E[log p]/∂μ / (y − μ)``.

    That is the weight which expectation maximisation gives to a datum with noise of Student's t
    (Lange et al. 1989). Far from q(f) the fixed point's precision is negative; cut off, such data
    leave q(f) wherever it was. With all of the weight the fixed point is no optimum of the bound.
    """
    shows = np.abs(residual) > SMALLEST_RESIDUAL
    weight = by_mean / np.where(shows, residual, 1.0)
    return np.where(shows, np.maximum(precision, LEAST_WEIGHT * weight), precision)


# ---- sites at rest ----

MOST_STEPS_BACK, BACK, FALL = 50, 0.1, 1.0
"""Where the expected log likelihood falls by so many nats for each datum, a step went too far:
counts in the hundreds under a log rate that is thought to be one, for instance. Then this share of
the step is tried, so often in all."""
DAMPING, TOLERANCE = 0.5, 1e-7
"""ρ of the steps (PVI 2018, eq. 10), and the largest change of a site at which they end early."""
NEAR = 0.01
"""The largest change of a site in an undamped step, as a part of the largest site, at rest."""
MOST_ROUNDS = 8
"""Of fixed-point steps at one ε; one is enough but where a batch is far from what was expected."""


class Look(NamedTuple):
    """A likelihood's derivatives by q(f) at given sites.

    :param expected: The expected log likelihood in nats.
    :param wanted: An undamped step, whose precisions may be negative.
    :param stationary: Another one, by :func:`stationary`.
    """

    expected: float
    wanted: Sites
    stationary: Sites

    @classmethod
    def averaged(cls, expected: np.ndarray, wanted: Sites, mean: np.ndarray) -> Look:
        """From those at S values of ε, for means of q(f) [S, N, L]."""
        both = wanted, stationary(wanted, mean)
        averages = (Sites(*(np.mean(part, axis=0) for part in one)) for one in both)
        return cls(float(np.mean(expected)), *averages)


class Rest(NamedTuple):
    """The end of steps.

    :param sites: The sites.
    :param clipped: The number of sites that the last step cut off.
    :param is_near: Whether they are nearly at rest.
    """

    sites: Sites
    clipped: int
    is_near: bool


Step = Callable[[Sites], Look]
Steps = Callable[[Step, Sites, int], Rest]


def rest(step: Step, sites: Sites, most: int) -> Rest:
    """Sites after damped fixed-point steps, shorter ones where one went too far. Where sites were
    cut off, steps go on to where the mean of q(f) is stationary.

    :param step: Looks at sites.
    :param sites: Where they start [N, L].
    :param most: The largest number of steps.
    :raises NumericalError: if the first step is not finite, or none is short enough.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # where a step went too far
        end = _rest(step, sites, most, attrgetter("wanted"))
        if end.clipped:
            with suppress(NumericalError):
                onward = _rest(step, end.sites, most, attrgetter("stationary"))
                end = onward._replace(clipped=end.clipped)
    return end


def stationary_rest(step: Step, sites: Sites, most: int) -> Rest:
    """The same by steps to where the mean of q(f) is stationary alone.

    :raises NumericalError: as :func:`rest`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        end = _rest(step, sites, most, attrgetter("stationary"))
        cut = step(end.sites).wanted.precision < MIN_SITE_PRECISION
    return end._replace(clipped=int(np.sum(cut)))


def _rest(step: Step, sites: Sites, most: int, kind: Callable[[Look], Sites]) -> Rest:
    """The same by one kind of step."""
    clipped, best, lowest = 0, sites, -np.inf
    number = tries = 0
    while number < most:
        look = step(sites)
        raw = kind(look)
        if not (look.expected >= lowest and all(np.isfinite(one).all() for one in raw)):
            tries += 1
            if sites is best or tries > MOST_STEPS_BACK:
                raise NumericalError("the local posterior covariance gave non-finite sites")
            sites = _between(best, sites, BACK)
            continue
        number += 1
        clipped = int(np.sum(raw.precision < MIN_SITE_PRECISION))
        wanted = raw._replace(precision=np.maximum(raw.precision, MIN_SITE_PRECISION))
        best, lowest = sites, look.expected - FALL * len(sites.precision)
        sites = _between(sites, wanted, DAMPING)
        if max(np.max(np.abs(a - b)) for a, b in zip(sites, best, strict=True)) < TOLERANCE:
            return Rest(sites, clipped, True)
    look = step(sites)
    if not look.expected >= lowest:
        return Rest(best, clipped, False)
    wanted_precision = np.maximum(kind(look).precision, MIN_SITE_PRECISION)
    away = np.max(np.abs(wanted_precision - sites.precision))
    return Rest(sites, clipped, bool(away <= NEAR * np.max(sites.precision)))


def _between(some: Sites, others: Sites, share: float) -> Sites:
    """This share of the way from some sites to others."""
    return Sites(*(old + share * (new - old) for old, new in zip(some, others, strict=True)))


def best_rest(
    step: Step,
    bound: Callable[[Sites], float],
    start: Sites | None,
    size: tuple[int, int],
    most: int,
) -> tuple[Rest, float]:
    """Sites at rest, in as many rounds of steps as that takes, and the bound there in nats.

    Where a likelihood is not log-concave, which shows in sites that are cut off, there are several
    optima: of those from the start, from sites that say nothing, and by either kind of steps the
    best one counts.

    :param step: Looks at sites.
    :param bound: The bound at given sites.
    :param start: Where the sites start; with nothing said by default.
    :param size: N and L.
    :param most: The largest number of steps of a round.
    :raises NumericalError: if a site is not finite.
    """

    def end_of(sites: Sites, steps: Steps) -> tuple[Rest, float]:
        for _ in range(MOST_ROUNDS):
            end = steps(step, sites, most)
            if end.is_near:
                break
            sites = end.sites
        return end, bound(end.sites)

    nothing = nothing_said(*size)
    ways: list[tuple[Sites, Steps]] = [(nothing, rest), (nothing, stationary_rest)]
    ends = []
    for sites, steps in ways if start is None else [(start, rest), *ways]:
        try:
            ends.append(end_of(sites, steps))
        except NumericalError:
            if not ends and steps is stationary_rest:
                raise
            continue
        if not ends[-1][0].clipped:
            break
    return max(ends, key=itemgetter(1))
