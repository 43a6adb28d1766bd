"""Gaussian sites, and expectations under them."""

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds import sites as site_rules
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA


def test_fixed_point_sites_of_gaussian_noise_are_the_exact_ones(rng):
    likelihood = gpflow.likelihoods.Gaussian(0.3)
    X, Y = (tf.constant(a) for a in smooth_data(rng, 8, 2))
    mean, variance = (
        tf.constant(rng.standard_normal((8, 2))),
        tf.constant(rng.uniform(1, 2, (8, 2))),
    )
    fixed = site_rules.fixed_point_sites(likelihood, X, mean, variance, Y)
    for a, b in zip(fixed, site_rules.conjugate_sites(likelihood, X, Y), strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA)


def test_clipping_leaves_proper_sites_alone():
    sites = site_rules.Sites(tf.constant([[1.0], [2.0]]), tf.constant([[0.5], [-3.0]]))
    clipped = site_rules.clipped(sites)
    np.testing.assert_allclose(clipped.precision_mean, sites.precision_mean)
    np.testing.assert_allclose(clipped.precision, [[0.5], [site_rules.MIN_SITE_PRECISION]])


class TwoPlaces(gpflow.likelihoods.ScalarLikelihood):
    """Observations are f or its opposite."""

    def _scalar_log_prob(self, X, F, Y):
        variance = tf.constant(0.1, tf.float64)
        ways = [gpflow.logdensities.gaussian(Y, way * F, variance) for way in (-1.0, 1.0)]
        return tf.reduce_logsumexp(tf.stack(ways), 0)

    def _conditional_mean(self, X, F):
        return 0.0 * F

    def _conditional_variance(self, X, F):
        return 0.1 + tf.square(F)


def test_at_fixed_points_of_stationary_steps_the_mean_is_stationary():
    """λ − w μ is the slope of the expected log likelihood, also where the curvature is negative."""
    mean = tf.constant([[0.1], [0.4], [1.0]], tf.float64)
    variance, Y = 0.01 * tf.ones_like(mean), tf.ones_like(mean)
    with tf.GradientTape() as tape:
        tape.watch(mean)
        expected = site_rules.expected_log_density(TwoPlaces(), mean, mean, variance, Y)
    raw = site_rules.fixed_point_sites(TwoPlaces(), mean, mean, variance, Y)
    assert raw.precision[0, 0] < -1.0
    assert raw.precision[2, 0] > 1.0
    shift, precision = site_rules.stationary(raw, mean)
    np.testing.assert_allclose(precision, np.abs(raw.precision), rtol=ALGEBRA)
    slope = tape.gradient(expected, mean)
    np.testing.assert_allclose(shift - precision * mean, slope, rtol=ALGEBRA)


def test_monte_carlo_likelihoods_are_evaluated_at_fixed_points(rng):
    """GPflow's stochastic Gaussian, made deterministic, agrees with the closed form."""
    X, Y = (tf.constant(a) for a in smooth_data(rng, 20))
    mean, variance = Y + 0.1, tf.ones_like(Y)
    stochastic, exact = gpflow.likelihoods.GaussianMC(0.5), gpflow.likelihoods.Gaussian(0.5)
    first, second = (
        site_rules.expected_log_density(stochastic, X, mean, variance, Y) for _ in range(2)
    )
    assert float(first) == float(second)
    expected = site_rules.expected_log_density(exact, X, mean, variance, Y)
    np.testing.assert_allclose(first, expected, rtol=ALGEBRA)  # quadratic in f: exact
    moments = site_rules.predictive_moments(stochastic, X, mean, variance)
    np.testing.assert_allclose(moments[0], mean, atol=ALGEBRA)
    np.testing.assert_allclose(moments[1], 1.5, rtol=ALGEBRA)


HALF = tf.constant(0.5, tf.float64)
START = site_rules.Sites(tf.zeros([2, 1], tf.float64), tf.ones([2, 1], tf.float64))


def steps_until_rest(step, most, tolerance):
    return site_rules.rested(
        step, START, tf.constant(float(most), tf.float64), HALF, tf.constant(tolerance, tf.float64)
    )


def test_damped_steps_end_where_there_are_no_more_of_them():
    target = site_rules.Sites(tf.fill([2, 1], HALF * 8.0), tf.fill([2, 1], -HALF))
    sites, clipped, is_finite = steps_until_rest(lambda _: target, 3, 0.0)
    np.testing.assert_allclose(sites.precision_mean, 4.0 * (1.0 - 0.5**3))
    least = site_rules.MIN_SITE_PRECISION
    np.testing.assert_allclose(sites.precision, least + (1.0 - least) * 0.5**3)
    assert int(clipped) == 2
    assert is_finite


def test_damped_steps_end_where_sites_hardly_move():
    """The change halves with every step, and either part may be the one that still moves."""
    for column in range(2):
        parts = [START.precision_mean, START.precision]
        parts[column] += 1.0
        sites, clipped, _ = steps_until_rest(lambda _, to=parts: site_rules.Sites(*to), 50, 0.1)
        np.testing.assert_allclose(parts[column] - sites[column], 0.5**4)
        assert int(clipped) == 0


def test_a_step_that_is_not_finite_is_the_last():
    for raw in ([np.nan, 1.0], [0.0, np.inf]):
        to = site_rules.Sites(*(tf.fill([2, 1], tf.constant(one, tf.float64)) for one in raw))
        *_, is_finite = steps_until_rest(lambda _, to=to: to, 5, 0.0)
        assert not is_finite
