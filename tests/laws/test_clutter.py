"""The clutter problem at its exact limits."""

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import expfam, losses, mixture, pvi, samplers
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Normal
from streaming_gp.numerics.quadrature import normal_nodes
from tests.conftest import THROUGH_CHOLESKY, assert_same_naturals, fitted_server

FIXED_POINT = 1e-6
GRID = np.linspace(-20.0, 20.0, 40_001)
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def parted(Y, number):
    return [(None, part) for part in np.array_split(Y, number)]


def one_dimensional(center=2.0, clutter=2.0, share=0.5, number=40, seed=0):
    """The thesis's problem: signal and clutter about zero, with their variances."""
    rng = np.random.default_rng(seed)
    likelihood = mixture.Clutter([[1.0]], share, clutter_covariance=[[clutter]])
    spoiled = rng.uniform(size=(number, 1)) < share
    signal = center + rng.standard_normal((number, 1))
    noise = np.sqrt(clutter) * rng.standard_normal((number, 1))
    return mixture.ClutterModel(likelihood, 10.0), np.where(spoiled, noise, signal)


def by_hand(theta, Y, share, clutter):
    signal = np.log1p(-share) + scipy.stats.norm(theta, 1.0).logpdf(Y)
    if share == 0.0:
        return signal
    noise = np.log(share) + scipy.stats.norm(0.0, np.sqrt(clutter)).logpdf(Y)
    return np.logaddexp(signal, noise)


def moments_on_the_grid(Y, clutter):
    """Mean and sd of the posterior."""
    log_p = by_hand(GRID[:, None], Y.T, 0.5, clutter).sum(axis=1)
    log_p += scipy.stats.norm(0.0, np.sqrt(10.0)).logpdf(GRID)
    density = np.exp(log_p - log_p.max())
    density /= scipy.integrate.simpson(density, x=GRID)
    mean = scipy.integrate.simpson(GRID * density, x=GRID)
    return mean, np.sqrt(scipy.integrate.simpson((GRID - mean) ** 2 * density, x=GRID))


def test_expectations_are_integrals():
    model, Y = one_dimensional()
    q = Normal.from_mean_covariance(np.array([1.3]), np.array([[0.4]]))
    weight = scipy.stats.norm(1.3, np.sqrt(0.4)).pdf(GRID)
    values = by_hand(GRID[:, None], Y.T, 0.5, 2.0).sum(axis=1)
    expected = scipy.integrate.simpson(weight * values, x=GRID)
    found = model.expected_log_likelihood(q, np.empty((len(Y), 0)), Y, None)
    np.testing.assert_allclose(found, expected, rtol=THROUGH_CHOLESKY)


@pytest.mark.parametrize("dimension", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_without_clutter_it_is_conjugate(rng, dimension, family):
    Y = rng.standard_normal((12, dimension)) + 1.0
    model = mixture.ClutterModel(mixture.Clutter(0.5 * np.eye(dimension)), 10.0, family)
    found = fitted_server(model, parted(Y, 3), LBFGS, pvi.Sequential(), 3).posterior
    precision = 0.1 + len(Y) / 0.5
    np.testing.assert_allclose(found.mean, Y.sum(axis=0) / 0.5 / precision, rtol=FIXED_POINT)
    np.testing.assert_allclose(found.variance, 1.0 / precision, rtol=FIXED_POINT)


@pytest.mark.slow
def test_variational_inference_does_not_depend_on_the_number_of_clients():
    model, Y = one_dimensional()
    optimum = fitted_server(model, parted(Y, 1), LBFGS, pvi.Sequential(), 1).posterior
    for number, schedule, rounds in (
        (5, pvi.Sequential(), 12),
        (40, pvi.Sequential(), 5),
        (5, pvi.Synchronous(damping=0.5), 20),
    ):
        found = fitted_server(model, parted(Y, number), LBFGS, schedule, rounds).posterior
        assert_same_naturals(found, optimum, 1e-5)


def test_likelihoods_of_draws_are_sums_over_data():
    model, Y = one_dimensional()
    theta = np.array([[0.3], [2.0], [-1.0]])
    found = model.log_likelihood(theta, np.empty((len(Y), 0)), Y)
    np.testing.assert_allclose(found, by_hand(theta, Y.T, 0.5, 2.0).sum(axis=1), rtol=1e-12)


@pytest.mark.slow
def test_the_posterior_server_samples_it():
    """SNEP's q of one client has the moments of the posterior, which are those of a grid."""
    model, Y = one_dimensional(number=20)
    rule = pvi.SNEPUpdate(samplers.NUTS(num_samples=4), learning_rate=0.1, sync=150, outer=1)
    late = []
    server = pvi.Server(model.prior(), pvi.make_clients(model, [(None, Y)], rule))
    pvi.fit(server, rounds=4, callback=lambda _: late.append(server.posterior.mean[0]))
    mean, sd = moments_on_the_grid(Y, 2.0)
    np.testing.assert_allclose(np.mean(late[1:]), mean, atol=0.3 * sd)
    np.testing.assert_allclose(np.sqrt(server.posterior.variance[0]), sd, rtol=0.3)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_tilted_integrals_are_integrals(rng, family):
    covariance = np.array([[1.0, 0.3], [0.3, 0.8]])
    model = mixture.ClutterModel(
        mixture.Clutter(covariance, 0.3, [1.0, -1.0], 2.0 * covariance), 10.0, family
    )
    scale = np.linalg.cholesky(np.array([[0.5, 0.1], [0.1, 0.3]]))
    cavity = family.from_mean_scale(np.array([0.2, -0.1]), scale)
    y = rng.standard_normal(2)
    nodes, weights = normal_nodes(model.num_dimensions)
    theta = cavity.mean + nodes @ np.transpose(cavity.scale)
    many = np.tile(y, (len(theta), 1))
    log_p = model.likelihood.log_prob(np.empty((len(theta), 0)), theta, many)
    expected = np.log(np.sum(weights * np.exp(log_p)))
    np.testing.assert_allclose(
        model.log_tilted(cavity, None, tf.constant(y), 1.0), expected, rtol=1e-9
    )


def tilted(model, cavity, y, alpha):
    return model.log_tilted(cavity, None, tf.constant(y), alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("variance", "y"), [(0.2, 1.0), (1.0, -3.0), (100.0, 6.0)])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_tilted_integrals_of_powers_are_integrals(alpha, variance, y, share):
    model, _ = one_dimensional(share=share)
    cavity = Normal.from_mean_covariance(np.array([0.4]), np.array([[variance]]))
    fine = np.linspace(-60.0, 60.0, 240_001)
    log_p = alpha * by_hand(fine, y, share, 2.0) + scipy.stats.norm(0.4, variance**0.5).logpdf(fine)
    expected = np.log(scipy.integrate.simpson(np.exp(log_p), x=fine))
    np.testing.assert_allclose(tilted(model, cavity, np.array([y]), alpha), expected, atol=2e-6)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_tilted_integrals_of_powers_in_two_dimensions(family):
    """Against nodes under the cavity, which is as wide as the signal; near 1 against 1."""
    covariance = np.array([[1.0, 0.3], [0.3, 0.8]])
    likelihood = mixture.Clutter(covariance, 0.3, [1.0, -1.0], 2.0 * covariance)
    model, y = mixture.ClutterModel(likelihood, 10.0, family), np.array([0.9, -0.6])
    scale = np.linalg.cholesky(np.array([[0.5, 0.1], [0.1, 0.3]]))
    cavity = family.from_mean_scale(np.array([0.2, -0.1]), scale)
    nodes, weights = normal_nodes(2)
    theta = cavity.mean + nodes @ np.transpose(cavity.scale)
    log_p = likelihood.log_prob(np.empty((len(theta), 0)), theta, np.tile(y, (len(theta), 1)))
    expected = np.log(np.sum(weights * np.exp(0.4 * log_p)))
    np.testing.assert_allclose(tilted(model, cavity, y, 0.4), expected, rtol=1e-8)
    near, there = (tilted(model, cavity, y, alpha) for alpha in (1.0 + 1e-9, 1.0))
    np.testing.assert_allclose(near, there, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_power_ep_ends_where_no_tilted_moment_moves(alpha):
    """The moments of ``cavity p(y | θ)^α`` are those of q, with ``cavity = q / t^α``."""
    model, Y = one_dimensional(number=8)
    found = fitted_server(model, [(None, Y)], pvi.PowerEPUpdate(alpha, 150), pvi.Sequential(), 1)
    single = fitted_server(
        model, parted(Y, 8), pvi.PowerEPUpdate(alpha, sweeps=30), pvi.Sequential(), 12
    )
    assert_same_naturals(found.posterior, single.posterior, 1e-5)
    q = single.posterior
    for name, client in single.clients.items():
        cavity = (q.as_factor() / single.factors[name] ** alpha).normalised()
        log_p = alpha * by_hand(GRID, client.data[1], 0.5, 2.0)[0]
        log_p += cavity.log_prob(GRID[:, None]).numpy()
        density = np.exp(log_p - log_p.max())
        density /= scipy.integrate.simpson(density, x=GRID)
        mean = scipy.integrate.simpson(GRID * density, x=GRID)
        np.testing.assert_allclose(mean, q.mean[0], atol=1e-5)
        square = scipy.integrate.simpson((GRID - mean) ** 2 * density, x=GRID)
        np.testing.assert_allclose(square, q.variance[0], rtol=1e-5)


def test_the_prior_mean_can_be_set():
    """Without clutter and data far fewer than the prior is sure: a precision-weighted mean."""
    model = mixture.ClutterModel(mixture.Clutter([[0.5]]), 2.5, prior_mean=1.0)
    Y = np.array([[3.0], [4.0]])
    found = fitted_server(model, [(None, Y)], pvi.PowerEPUpdate(), pvi.Sequential(), 1).posterior
    precision = 1.0 / 2.5 + 2.0 / 0.5
    np.testing.assert_allclose(found.mean, (1.0 / 2.5 + 7.0 / 0.5) / precision, rtol=FIXED_POINT)
    with pytest.raises(InvalidDataError, match=r"prior_mean must be finite, \[1\] or a number"):
        mixture.ClutterModel(mixture.Clutter([[0.5]]), prior_mean=[0.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize(("center", "clutter"), [(2.0, 2.0), (4.0, 0.75)])
def test_expectation_propagation_has_nearly_the_posterior_s_moments(center, clutter):
    """The thesis's unimodal and bimodal problems, against the posterior on a grid."""
    model, Y = one_dimensional(center, clutter)
    one_step = pvi.PowerEPUpdate.one_step()
    found = fitted_server(model, parted(Y, len(Y)), one_step, pvi.Sequential(), 8).posterior
    mean, sd = moments_on_the_grid(Y, clutter)
    np.testing.assert_allclose(found.mean[0], mean, atol=0.05)
    np.testing.assert_allclose(np.sqrt(found.variance[0]), sd, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        expfam.Normal,
        pytest.param(expfam.MeanFieldNormal, marks=pytest.mark.slow),
        pytest.param(expfam.IsotropicNormal, marks=pytest.mark.slow),
    ],
)
def test_expectation_propagation_ends_where_no_tilted_moment_moves(family):
    """In two dimensions, whatever the number of clients: every tilted distribution has q's own
    moments, as its family keeps them.
    """
    rng = np.random.default_rng(3)
    likelihood = mixture.Clutter(0.8 * np.eye(2), 0.4, None, 3.0 * np.eye(2))
    model = mixture.ClutterModel(likelihood, 10.0, family)
    Y = rng.standard_normal((12, 2)) + np.array([1.5, 2.5])
    whole = fitted_server(model, parted(Y, 12), pvi.PowerEPUpdate(), pvi.Sequential(), 12)
    fewer = fitted_server(model, parted(Y, 3), pvi.PowerEPUpdate(sweeps=60), pvi.Sequential(), 12)
    assert_same_naturals(whole.posterior, fewer.posterior, 1e-6)
    q = whole.posterior
    nodes, weights = normal_nodes(2)
    for name, client in whole.clients.items():
        cavity, y = whole.cavity(name), client.data[1][0]
        theta = np.asarray(cavity.mean + nodes @ np.transpose(cavity.scale))
        many = np.tile(y, (len(theta), 1))
        weight = weights * np.exp(likelihood.log_prob(many[:, :0], theta, many))
        weight /= weight.sum()
        np.testing.assert_allclose(weight @ theta, q.mean, atol=1e-6)
        spread = weight @ (theta - np.asarray(q.mean)) ** 2
        np.testing.assert_allclose(spread.mean(), np.mean(q.variance), rtol=1e-5)


def test_a_robust_loss_of_a_gaussian_has_its_closed_integral():
    likelihood = mixture.Clutter([[0.7]])
    density = scipy.stats.norm(0.0, np.sqrt(0.7)).pdf(GRID)
    expected = np.log(scipy.integrate.simpson(density**1.5, x=GRID))
    found = losses.log_power_integral(likelihood, tf.zeros([3, 1], tf.float64), 1.5)
    np.testing.assert_allclose(found, np.full(3, expected), rtol=1e-9)
    cluttered = mixture.Clutter([[0.7]], 0.5)
    with pytest.raises(InvalidDataError, match="no closed integral"):
        losses.log_power_integral(cluttered, tf.zeros([3, 1], tf.float64), 1.5)


def test_clutter_is_not_for_gaussian_processes(rng):
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        mixture.Clutter([[1.0]], 0.1),
        pseudo_points=sgp.PrivatePseudoPoints(2),
        hyperparameters=sgp.FixedHyperparameters(),
    )
    with pytest.raises(InvalidDataError, match="not of a Gaussian process"):
        model.update((rng.standard_normal((5, 1)), rng.standard_normal((5, 1))))
    assert not model.factors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], 1.0), "share of clutter"),
        (([[-1.0]],), "covariance must be symmetric and positive definite"),
        ((np.eye(2), 0.5, [0.0]), "clutter_mean"),
        ((np.eye(2), 0.5, None, [[1.0]]), "clutter_covariance"),
    ],
)
def test_a_likelihood_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InvalidDataError, match=message):
        mixture.Clutter(*arguments)
