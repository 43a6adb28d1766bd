"""A network that learns its noise: against quadrature, draws and exact limits."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from streaming_gp import bnn, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from tests.oracles.reference import task_of

NOISE = 0.09


@pytest.fixture
def network():
    return bnn.NoisyMomentNetwork(2, (4,), NOISE, noise_spread=0.7)


@pytest.fixture
def q(network, rng):
    size = network.num_parameters
    mean = np.append(rng.standard_normal(size - 1), -1.5)
    return MeanFieldNormal.from_mean_variance(mean, np.append(np.full(size - 1, 0.3), 0.4))


def over_log_noise(function, mean=-1.5, variance=0.4):
    """The expectation, by adaptive quadrature."""
    return scipy.integrate.quad(
        lambda s: scipy.stats.norm.pdf(s, mean, np.sqrt(variance)) * function(np.exp(s)),
        mean - 10.0, mean + 10.0, epsabs=0.0, epsrel=1e-11,
    )[0]  # fmt: skip


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_log_tilted_is_the_integral_over_output_and_noise(network, q, alpha):
    x, y = np.array([0.5, -1.0]), np.array([0.2])
    mean, variance = (float(moment[0, 0]) for moment in network.predictor(q, x[None]))

    def power(noise):  # of N(y; f, σ²), which is a Gaussian of variance σ²/α and a constant
        constant = (2.0 * np.pi * noise) ** (0.5 * (1.0 - alpha)) / np.sqrt(alpha)
        return constant * scipy.stats.norm.pdf(0.2, mean, np.sqrt(variance + noise / alpha))

    wanted = np.log(over_log_noise(power))
    np.testing.assert_allclose(network.log_tilted(q, x, y, alpha), wanted, rtol=1e-6)


def test_the_expected_log_likelihood_is_that_of_outputs_and_noise(network, q, rng):
    X, Y = rng.standard_normal((3, 2)), rng.standard_normal((3, 1))
    mean, variance = (moment.numpy() for moment in network.predictor(q, X))
    squared = np.sum((Y - mean) ** 2 + variance)
    wanted = over_log_noise(
        lambda noise: -0.5 * (3.0 * np.log(2.0 * np.pi * noise) + squared / noise)
    )
    found = network.expected_log_likelihood(q, X, Y, seed=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_predictions_average_over_the_noise(network, q, rng):
    X, Y = rng.standard_normal((3, 2)), rng.standard_normal((3, 1))
    f_mean, f_variance = (moment.numpy() for moment in network.predictor(q, X))
    mean, variance = network.predict(q, X)
    np.testing.assert_array_equal(mean, f_mean)
    np.testing.assert_allclose(variance, f_variance + over_log_noise(lambda s: s), rtol=1e-8)
    for row, found in enumerate(network.predict_log_density(q, (X, Y))):
        point = Y[row, 0], f_mean[row, 0], f_variance[row, 0]
        wanted = over_log_noise(
            lambda s, p=point: scipy.stats.norm.pdf(p[0], p[1], np.sqrt(p[2] + s))
        )
        np.testing.assert_allclose(found, np.log(wanted), rtol=1e-6)
        np.testing.assert_allclose(network.log_tilted(q, X[row], Y[row], 1.0), found, rtol=1e-9)


def test_a_noise_that_is_known_gives_what_the_network_without_learning_gives(rng):
    """The limit of a narrow prior, in a pass of EP."""
    X, Y = rng.standard_normal((6, 2)), rng.standard_normal((6, 1))
    known = bnn.MomentNetwork(2, (3,), NOISE)
    narrow = bnn.NoisyMomentNetwork(2, (3,), NOISE, noise_spread=1e-5)
    update = pvi.PowerEPUpdate(sweeps=1, damping=1.0, sequential=True)
    wanted = known.prior().times([update(task_of(known, X, Y)).factor])
    found = narrow.prior().times([update(task_of(narrow, X, Y)).factor])
    np.testing.assert_allclose(found.mean[:-1], wanted.mean, rtol=1e-6)
    np.testing.assert_allclose(found.variance[:-1], wanted.variance, rtol=1e-6)
    np.testing.assert_allclose(found.mean[-1], np.log(NOISE), atol=1e-6)


@pytest.mark.parametrize(
    "update",
    [
        pvi.PowerEPUpdate(sweeps=10, damping=1.0, sequential=True),
        pvi.StochasticEPUpdate(steps=4000, damping=1 / 400, batch_size=1),
    ],
)
def test_the_noise_of_a_linear_model_is_found(rng, update):
    """The posterior of log σ² has a standard deviation of √(2/N)."""
    X = rng.standard_normal((400, 1))
    Y = 0.5 * X + 0.3 * rng.standard_normal((400, 1))
    model = bnn.NoisyMomentNetwork(1, ())
    q = model.prior().times([update(task_of(model, X, Y)).factor])
    residual = Y - np.polynomial.Polynomial.fit(X[:, 0], Y[:, 0], 1)(X)
    empirical = np.log(np.mean(residual**2))
    assert abs(q.mean[-1] - empirical) < np.sqrt(2.0 / 400)
    assert 0.5 < np.sqrt(q.variance[-1]) / np.sqrt(2.0 / 400) < 1.5


def test_a_spread_that_is_not_positive_ends_with_one_line():
    with pytest.raises(InvalidDataError, match="noise_spread"):
        bnn.NoisyMomentNetwork(2, noise_spread=0.0)


def test_there_is_nothing_beside_q_to_learn(network):
    assert network.trainable_variables == ()
    assert network.num_parameters == len(network.prior().mean)
