"""Integrals over a likelihood under Gaussians of any width, against dense sums and closed forms."""

import gpflow
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from streaming_gp import linear, pvi
from streaming_gp.linear.panels import log_expected_power
from tests.oracles.reference import server


def log_poisson(y):
    """y f − e^f − log y!, at any f."""
    return lambda f: y * f - np.exp(np.minimum(f, 700.0)) - scipy.special.gammaln(y + 1.0)


LIKELIHOODS = {
    "logistic": (linear.logistic_regression(1).likelihood, 1.0, lambda f: -np.logaddexp(0.0, -f)),
    "probit": (linear.probit_regression(1).likelihood, 0.0, lambda f: scipy.stats.norm.logcdf(-f)),
    "Student's t": (
        gpflow.likelihoods.StudentT(0.1), 3.0, lambda f: scipy.stats.t.logpdf(f, 3.0, 3.0, 0.1),
    ),
    "counts": (gpflow.likelihoods.Poisson(), 12.0, log_poisson(12.0)),
    "a count of zero": (gpflow.likelihoods.Poisson(), 0.0, log_poisson(0.0)),
    "Gaussian": (
        gpflow.likelihoods.Gaussian(0.01), -1.0, lambda f: scipy.stats.norm.logpdf(f, -1.0, 0.1),
    ),
}  # fmt: skip


def at(number):
    return np.array([[number]])


def on_a_dense_grid(log_p, y, mean, deviation, alpha):
    """Logarithm of the integral, mean and variance of the tilted density; in steps far below the
    Gaussian's and the likelihood's own.
    """
    centre, reach = (y if y < 5.0 else np.log(y)), 12.0 * deviation
    low, high = min(mean - reach, centre - 20.0), max(mean + reach, centre + 20.0)
    f = np.linspace(low, high, int((high - low) / min(0.2 * deviation, 5e-3)) + 1)
    logs = scipy.stats.norm.logpdf(f, mean, deviation) + alpha * log_p(f)
    total = scipy.special.logsumexp(logs)
    weights = np.exp(logs - total)
    first = weights @ f
    return total + np.log(f[1] - f[0]), first, weights @ (f - first) ** 2


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("deviation", [0.01, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_value_and_gradients_are_those_of_the_tilted_density(kind, deviation, alpha):
    likelihood, y, log_p = LIKELIHOODS[kind]
    for mean in (0.3, -4.0 * deviation):
        m, v = tf.constant(at(mean)), tf.constant(at(deviation**2))
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = log_expected_power(likelihood, at(0.0), m, v, at(y), alpha)
        by_mean, by_variance = (float(one[0, 0]) for one in tape.gradient(value, (m, v)))
        wanted, first, second = on_a_dense_grid(log_p, y, mean, deviation, alpha)
        np.testing.assert_allclose(value, [wanted], rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(by_mean * deviation, (first - mean) / deviation, atol=1e-6)
        moved = (second + (first - mean) ** 2) / deviation**2 - 1.0
        np.testing.assert_allclose(2.0 * by_variance * deviation**2, moved, atol=1e-6)


@pytest.mark.parametrize("deviation", [0.1, 100.0])
def test_gaussian_noise_has_a_closed_form(deviation):
    likelihood = gpflow.likelihoods.Gaussian(0.01)
    found = log_expected_power(likelihood, at(0.0), at(2.0), at(deviation**2), at(1.7), 1.0)
    wanted = scipy.stats.norm.logpdf(1.7, 2.0, np.hypot(deviation, 0.1))
    np.testing.assert_allclose(found, [wanted], rtol=1e-9)


@pytest.mark.parametrize(
    "update",
    [pvi.PowerEPUpdate(), pvi.PowerEPUpdate(0.5), pvi.PowerEPUpdate(1.0, sequential=True)],
    ids=["EP", "power", "sequential"],
)
def test_a_prior_far_wider_than_the_posterior_is_left(rng, update):
    """Inputs in a unit of their own, as people have them: the predictor's prior is 100 wide."""
    X = rng.normal(100.0, 15.0, (80, 1))
    Y = np.float64(rng.uniform(size=X.shape) < scipy.special.expit(0.01 * X))
    found = server(linear.logistic_regression(1), [(X, Y)], update)
    pvi.fit(found, pvi.Sequential())
    theta = np.linspace(-0.1, 0.1, 20_001)
    logs = scipy.stats.norm.logpdf(theta) - np.logaddexp(0.0, (1.0 - 2.0 * Y) * X * theta).sum(0)
    weights = np.exp(logs - scipy.special.logsumexp(logs))
    mean = weights @ theta
    deviation = np.sqrt(weights @ (theta - mean) ** 2)
    posterior = found.posterior
    np.testing.assert_allclose(posterior.mean, [mean], atol=0.02 * deviation)
    np.testing.assert_allclose(np.sqrt(posterior.variance), [deviation], rtol=0.02)
    assert not found.history[-1].refused
