"""Expectation propagation and its relatives, at limits where their answers are known; one factor
for all pieces of data: stochastic and averaged EP with the moments of any rule.
"""

from dataclasses import dataclass, field

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, datasets, linear, pvi, samplers
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import GAUSSIANS, Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.updates.power_ep import minibatches
from streaming_gp.pvi.updates.sampling import effective_samples, match_weighted
from tests.laws import slow
from tests.oracles import reference
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
    task_of,
)
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

QUADRATURE = 2e-4  # of GPflow, with 20 nodes
CONVERGED = pvi.PowerEPUpdate(sweeps=30, damping=0.7, filtered_start=False)
EITHER = pytest.mark.parametrize("make", [linear.probit_regression, linear.logistic_regression])
EITHER_FAMILY = pytest.mark.parametrize("family", [Normal, MeanFieldNormal])


def one_sweep(alpha=1.0, damping=1.0):
    return pvi.PowerEPUpdate(alpha, sweeps=1, damping=damping)


def fitted(model, shards, update, schedule=None, rounds=1):
    """A server after so many rounds, in none of which anything went wrong."""
    found = server(model, shards, update)
    history = pvi.fit(found, schedule or pvi.Sequential(), rounds)
    assert not any(one.failed or one.refused or one.skipped for one in history)
    return found


def assert_moments(q, mean, covariance, tolerance):
    np.testing.assert_allclose(q.mean, mean, rtol=tolerance)
    np.testing.assert_allclose(q.covariance, covariance, rtol=tolerance)


class Counting(linear.BayesianLinearRegression):
    """Counts how often Python asks for a tilted distribution: once or so in each compilation."""

    calls = 0

    def log_tilted(self, cavity, x, y, alpha):
        self.calls += 1
        return super().log_tilted(cavity, x, y, alpha)


@pytest.fixture(scope="module")
def counting():
    return Counting(3, 0.09)


# ---- where expectation propagation is exact, or done by hand ----


@pytest.mark.parametrize(
    ("num_clients", "alpha"),
    [
        (number, alpha) if (number, alpha) == (4, 0.5) else slow(number, alpha)
        for number in (1, 4, 60)
        for alpha in (1.0, 0.5, 1e-3)
    ],
)
def test_of_a_conjugate_model_posterior_and_evidence_are_exact(rng, counting, alpha, num_clients):
    X, Y = regression_data(rng)
    found = fitted(counting, datasets.partition_iid(X, Y, num_clients), one_sweep(alpha))
    assert_same(found.posterior, pooled(counting, X, Y), 1e-9)
    product = counting.prior().as_factor() * counting.likelihood_factor(X, Y)
    np.testing.assert_allclose(found.history[-1].free_energy, product.log_integral(), rtol=1e-9)


@pytest.mark.parametrize("update", [one_sweep(0.5), slow(pvi.StochasticEPUpdate())])
def test_data_of_other_sizes_are_not_compiled_again(rng, counting, update):
    X, Y = regression_data(rng)
    fitted(counting, [(X[:size], Y[:size]) for size in (15, 3)], update)
    before = counting.calls
    fitted(counting, [(X[:size], Y[:size]) for size in range(4, 8)], update)
    assert counting.calls == before > 0


@pytest.mark.parametrize(
    ("alpha", "rho"), [(0.5, 0.4), *(slow(*one) for one in ((1, 0.4), (2, 1)))]
)
def test_one_step_is_algorithm_2(rng, alpha, rho):
    """``q ← q^(1−ρ/α) proj[q (p/t)^α]^(ρ/α)``, with the projection from a grid."""
    (X, Y), model = labelled_data(rng), linear.logistic_regression(2)
    X, Y = X[:1, :2], Y[:1]
    found = server(model, [(X, Y)], pvi.PowerEPUpdate.one_step(alpha))
    pvi.fit(found, pvi.Sequential(damping=rho))
    q, t = found.posterior, found.factors["c0"]

    def log_tilted(points):
        log_p = -np.logaddexp(0.0, -(2.0 * Y[0, 0] - 1.0) * (points @ X[0]))
        return q.log_prob(points).numpy() + alpha * (log_p - t.log_value(points).numpy())

    matched = Normal.from_mean_covariance(*reference.moments_on_a_grid(log_tilted)[:2])
    wanted = q.as_factor() ** (1.0 - rho / alpha) * matched.as_factor() ** (rho / alpha)
    pvi.fit(found, pvi.Sequential(damping=rho))
    assert_same(found.posterior, wanted, ALGEBRA)


@pytest.mark.parametrize("num_clients", [1, *(slow(number) for number in (3, 20))])
def test_probit_regression_is_ep_by_hand_whatever_the_partition(rng, num_clients):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    X, Y = X[:20], Y[:20]
    shards = datasets.partition_iid(X, Y, num_clients)
    update, rounds = {1: (CONVERGED, 1), 3: (CONVERGED, 6), 20: (one_sweep(), 12)}[num_clients]
    found = fitted(model, shards, update, rounds=rounds)
    by_hand = reference.probit_by_expectation_propagation(X, Y, sweeps=20)
    assert_moments(found.posterior, *by_hand, 1e-6)


@pytest.mark.slow
def test_assumed_density_filtering_is_one_sequential_pass(rng):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    one_by_one = [(X[n : n + 1], Y[n : n + 1]) for n in range(len(X))]
    found = fitted(model, one_by_one, one_sweep())
    by_hand = reference.probit_by_assumed_density_filtering(X, Y)
    assert_moments(found.posterior, *by_hand, 1e-9)


@pytest.mark.parametrize(
    "update",
    [slow(pvi.PowerEPUpdate(sweeps=1, damping=1.0, sequential=True)), pvi.AssumedDensityUpdate()],
)
def test_a_pass_over_one_client_takes_each_datum_under_those_before(rng, update):
    """From sites that say nothing that is assumed density filtering, in the order of the pass."""
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    task = task_of(model, X, Y)
    found = update(task)
    order = np.ravel(minibatches(task, 1, len(X)))
    by_hand = reference.probit_by_assumed_density_filtering(X[order], Y[order])
    assert_moments((task.cavity * found.factor).normalised(), *by_hand, 1e-9)


def test_draws_move_a_gaussian_by_what_their_weights_are_off_equal_ones(rng):
    q = Normal.from_mean_covariance(np.array([0.5, -1.0]), np.array([[1.0, 0.3], [0.3, 2.0]]))
    theta, weights = rng.standard_normal((5, 2)), np.array([0.3, 0.1, 0.2, 0.15, 0.25])
    found = match_weighted(q, tf.constant(theta), tf.constant(weights))
    mean = np.asarray(q.mean) + (weights - 0.2) @ theta
    second = np.asarray(q.covariance) + np.outer(q.mean, q.mean)
    second += theta.T * (weights - 0.2) @ theta
    assert_moments(found, mean, second - np.outer(mean, mean), 1e-9)


@pytest.mark.parametrize("family", GAUSSIANS)
def test_weights_move_a_gaussian_alike_wherever_it_is(rng, family):
    weights = tf.nn.softmax(rng.standard_normal(50))
    unit = family.from_mean_scale(np.zeros(2), 1e-2 * np.eye(2)).as_arrays()
    draws = unit.sample(50, 0)
    near = match_weighted(unit, draws, weights)
    far = 2.0**20  # whose sums with draws are rounded, but not by much
    there = family.from_mean_scale(np.full(2, far), 1e-2 * np.eye(2)).as_arrays()
    found = match_weighted(there, draws + far, weights)
    np.testing.assert_allclose(found.mean - far, near.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.variance, near.variance, rtol=1e-6)


def test_equal_weights_are_as_many_effective_samples_as_there_are():
    weights = tf.fill([5], np.float64(0.2))
    assert effective_samples(weights) == pytest.approx(5.0)


class DeafToSome(linear.BayesianLinearRegression):
    """Has no tilted distribution for observations that are not positive."""

    def log_tilted(self, cavity, x, y, alpha):
        value = super().log_tilted(cavity, x, y, alpha)
        return value + tf.where(y[0] > 0.0, np.float64(0.0), np.float64(np.nan))


def test_assumed_density_filtering_counts_what_has_a_tilted_distribution_as_often_as_it_passes(rng):
    (X, Y), model, passes = regression_data(rng), DeafToSome(3, 0.09), 2
    found = pvi.AssumedDensityUpdate(passes)(task_of(model, X, Y))
    some = Y[:, 0] > 0.0
    assert_same(found.factor, model.likelihood_factor(X[some], Y[some]) ** passes, 1e-9)
    product = model.prior().as_factor() * found.factor
    np.testing.assert_allclose(found.free_energy, product.log_integral(), rtol=1e-9)
    assert (found.steps, found.skipped) == (passes, passes * np.sum(~some))


def log_logistic(f):
    return -np.logaddexp(0.0, -f)


def exact_moments(X, Y, log_p=log_logistic):
    """Mean, sd and log evidence of two weights under a unit prior, on a grid.

    :param log_p: Of a label of 1, as a function of the predictor.
    """

    def log_joint(points):
        signed = (2.0 * Y[:, 0] - 1.0) * (points @ X.T)
        return scipy.stats.norm.logpdf(points).sum(1) + log_p(signed).sum(1)

    mean, covariance, evidence = reference.moments_on_a_grid(log_joint)
    return mean, np.sqrt(np.diag(covariance)), evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "log_p"),
    [
        (linear.probit_regression, scipy.stats.norm.logcdf),
        (linear.logistic_regression, log_logistic),
    ],
)
def test_of_two_weights_posterior_and_evidence_are_close_to_dense_quadrature(rng, make, log_p):
    X, Y = labelled_data(rng)
    X = X[:, :2]
    found = fitted(make(2), [(X, Y)], CONVERGED)
    mean, sd, evidence = exact_moments(X, Y, log_p)
    assert (np.abs(found.posterior.mean - mean) < 0.05 * sd).all()
    np.testing.assert_allclose(np.sqrt(found.posterior.variance), sd, rtol=0.05)
    np.testing.assert_allclose(found.history[-1].free_energy, evidence, atol=0.02)


@EITHER_FAMILY
def test_moments_are_those_of_the_tilted_distribution(family):
    cavity = family.from_mean_scale(np.array([0.3, -0.4]), np.array([[1.1, 0.0], [0.4, 0.6]]))
    model, x = linear.probit_regression(2, family=family), np.array([0.8, -1.3])
    matched = cavity.moment_match(lambda q: model.log_tilted(q, x, np.array([1.0]), 1.0))
    tilted = (cavity.as_factor() * matched).normalised()

    def log_density(points):
        return cavity.log_prob(points).numpy() + scipy.stats.norm.logcdf(points @ x)

    mean, covariance, log_normaliser = reference.moments_on_a_grid(log_density)
    wanted = family.from_mean_scale(mean, np.linalg.cholesky(covariance))
    if family is MeanFieldNormal:
        wanted = MeanFieldNormal.from_mean_variance(mean, np.diag(covariance))
    assert_same(tilted, wanted, 1e-6)
    found = (cavity.as_factor() * matched).log_integral()
    np.testing.assert_allclose(found, log_normaliser, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
@pytest.mark.parametrize(
    "likelihood",
    [
        linear.probit_regression(1).likelihood,
        linear.logistic_regression(1).likelihood,
        gpflow.likelihoods.Gaussian(0.7),
        gpflow.likelihoods.StudentT(),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_log_tilted_is_the_integral_over_the_predictor(likelihood, alpha):
    model = linear.GeneralisedLinearModel(2, likelihood)
    cavity = Normal.from_mean_covariance(np.array([0.5, 1.0]), np.diag([0.3, 0.2]))
    x, y = np.array([1.0, -2.0]), np.array([1.0])

    f = np.linspace(-12.0, 12.0, 20_001)[:, None]
    log_prob = likelihood.log_prob(np.zeros((len(f), 2)), f, np.tile(y, (len(f), 1)))
    density = scipy.stats.norm.pdf(f[:, 0], -1.5, np.sqrt(1.1)) * np.exp(alpha * log_prob)
    wanted = np.log(scipy.integrate.trapezoid(density, f[:, 0]))
    np.testing.assert_allclose(model.log_tilted(cavity, x, y, alpha), wanted, rtol=QUADRATURE)


# ---- between expectation propagation and variational inference ----


@pytest.mark.slow
@EITHER
@EITHER_FAMILY
@pytest.mark.parametrize("num_clients", [1, 20])
def test_power_ep_tends_to_damped_fixed_point_updates(rng, make, family, num_clients):
    """Property 6: the iterates themselves, with a difference linear in α."""
    (X, Y), model = labelled_data(rng), make(3, family=family)
    model.likelihood.quadrature = gpflow.quadrature.NDiagGHQuadrature(1, 100)
    shards = datasets.partition_iid(X, Y, num_clients)
    limit = fitted(model, shards, pvi.FixedPointUpdate(steps=3, damping=0.3)).posterior

    def error(alpha):
        update = pvi.PowerEPUpdate(alpha, 3, 0.3, filtered_start=False)
        return relative_difference(fitted(model, shards, update).posterior, limit)

    large, small = error(1e-3), error(1e-4)
    assert small < 1e-3
    np.testing.assert_allclose(large / small, 10.0, rtol=0.1)


@pytest.mark.slow
@EITHER_FAMILY
def test_stochastic_power_ep_tends_to_stochastic_global_vi(rng, family):
    """Property 7, on the same minibatches; GPflow's twenty nodes are no limit at 1e-4."""
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3, family=family)
    model.likelihood.quadrature = gpflow.quadrature.NDiagGHQuadrature(1, 100)
    settings = {"steps": 20, "damping": 0.1, "batch_size": 7}
    limit = fitted(model, [(X, Y)], pvi.FixedPointUpdate(**settings)).posterior

    def error(alpha):
        found = fitted(model, [(X, Y)], pvi.StochasticEPUpdate(alpha, **settings)).posterior
        return relative_difference(found, limit)

    large, small = error(1e-3), error(1e-4)
    assert small < 1e-3
    np.testing.assert_allclose(large / small, 10.0, rtol=0.1)


def relative_difference(q, p):
    pairs = zip(q.natural, p.natural, strict=True)
    return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs)


def test_the_energy_of_power_ep_tends_to_the_evidence_lower_bound(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    X, Y = X[:20], Y[:20]
    update = pvi.PowerEPUpdate(1e-4, sweeps=30, damping=0.5, filtered_start=False)
    found = fitted(model, [(X, Y)], update)
    q = found.posterior
    bound = model.expected_log_likelihood(q, X, Y, None) - q.kl_divergence(model.prior())
    np.testing.assert_allclose(found.history[-1].free_energy, bound, rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.5, slow(0.8)])
def test_sweeps_over_one_datum_minimise_the_alpha_divergence(alpha):
    """Algorithm 3: it is least where ``∫ p^α q^(1−α)`` with the tilted p is greatest."""
    model = linear.logistic_regression(2)
    X, Y = np.array([[2.0, 0.0]]), np.array([[1.0]])  # the second weight keeps its prior
    found = fitted(model, [(X, Y)], pvi.PowerEPUpdate(alpha, sweeps=60, damping=1.0)).posterior
    grid = np.linspace(-12, 12, 8001)
    log_p = scipy.stats.norm.logpdf(grid) - np.logaddexp(0.0, -2.0 * grid)

    def minus_overlap(numbers):
        log_q = scipy.stats.norm.logpdf(grid, numbers[0], np.exp(numbers[1]))
        return -np.log(np.sum(np.exp(alpha * log_p + (1.0 - alpha) * log_q)))

    mean, log_sd = scipy.optimize.minimize(minus_overlap, [0.0, 0.0]).x
    np.testing.assert_allclose(found.mean[0], mean, rtol=QUADRATURE)
    np.testing.assert_allclose(found.scale[0, 0], np.exp(log_sd), rtol=QUADRATURE)


# ---- distributed expectation propagation ----


def test_of_a_conjugate_model_weights_are_equal_and_distributed_ep_is_exact(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    update = pvi.DistributedEPUpdate(pvi.AnalyticUpdate(), num_samples=300)
    found = fitted(model, datasets.partition_iid(X, Y, 4), update)
    assert_same(found.posterior, pooled(model, X, Y), THROUGH_CHOLESKY)
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(found.history[-1].free_energy, product.log_integral(), rtol=1e-9)


@pytest.mark.slow
def test_distributed_ep_by_mcmc_has_the_moments_of_the_posterior(rng):
    """Two clients, whose chains begin far from their targets."""
    (X, Y), model = labelled_data(rng), linear.logistic_regression(2)
    X, Y = X[:24, :2], Y[:24]
    update = pvi.MomentSharingUpdate(samplers.NUTS(800), warm_up=100)
    found = server(model, datasets.partition_iid(X, Y, 2), update)
    far = Normal.from_mean_covariance(np.full(2, -2.0), 0.2 * np.eye(2)).as_arrays()
    found.warm_start(far)
    pvi.fit(found, pvi.Sequential(), 3)
    mean, sd, _ = exact_moments(X, Y)
    np.testing.assert_allclose((found.posterior.mean - mean) / sd, 0.0, atol=0.2)
    np.testing.assert_allclose(np.sqrt(found.posterior.variance) / sd, 1.0, atol=0.15)


@pytest.mark.parametrize("family", [Normal, slow(MeanFieldNormal)])
def test_distributed_ep_with_one_client_has_the_moments_of_the_posterior(rng, family):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(2, family=family)
    X, Y = X[:12, :2], Y[:12]
    update = pvi.DistributedEPUpdate(pvi.FixedPointUpdate(20, 0.5), num_samples=40_000)
    found = fitted(model, [(X, Y)], update)
    mean, sd, evidence = exact_moments(X, Y)
    np.testing.assert_allclose((found.posterior.mean - mean) / sd, 0.0, atol=0.01)
    np.testing.assert_allclose(found.posterior.variance / sd**2, 1.0, atol=0.02)
    np.testing.assert_allclose(found.history[-1].free_energy, evidence, atol=0.01)


def test_distributed_ep_says_when_its_proposal_is_poor(rng):
    update = pvi.DistributedEPUpdate(pvi.FixedPointUpdate(damping=0.01))
    poor = server(conjugate_model(), [regression_data(rng)], update)
    with pytest.raises(NoAnswerError, match="effective samples, wanted 200"):
        pvi.fit(poor)


# ---- one site for all data ----


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [1, 3])
def test_a_single_sweep_without_damping_is_averaged_ep(rng, num_clients):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    shards = datasets.partition_iid(X, Y, num_clients)
    tied = fitted(model, shards, pvi.StochasticEPUpdate(), rounds=3)
    assert_same(tied.posterior, fitted(model, shards, one_sweep(), rounds=3).posterior, ALGEBRA)


def test_a_latent_variable_of_a_piece_is_tied_over_its_data(rng, counting):
    """``q(θ, h_k) ∝ p(θ) Π_k p(h_k) f_k(θ)^{N_k} g_k(h_k)^{N_k}`` (supplement, B.2).

    The latent variable is a coordinate that the data of one piece see alone: a client keeps one
    factor of it, and for all others nothing. Of a conjugate model that is the exact posterior.
    """
    X = rng.standard_normal((16, 1))
    piece = np.repeat(np.arange(2), 8)
    inputs = np.hstack([X, np.eye(2)[piece]])  # θ, and h_k
    Y = inputs @ np.array([[0.5], [1.0], [-2.0]]) + 0.3 * rng.standard_normal((16, 1))
    model, shards = counting, [(inputs[piece == k], Y[piece == k]) for k in range(2)]
    tied = pvi.StochasticEPUpdate(steps=3)
    found = fitted(model, shards, tied, rounds=2)
    assert_same(found.posterior, pooled(model, inputs, Y), THROUGH_CHOLESKY)
    for k in range(2):
        _, precision = map(np.asarray, found.factors[f"c{k}"].natural)
        assert np.abs(precision[2 - k]).max() < 1e-9 < precision[1 + k, 1 + k]


@pytest.mark.parametrize("link", ["probit", slow("logistic")])
def test_averaged_ep_ends_where_q_is_the_mean_of_all_projections(rng, link):
    """Proposition 1 of the supplement, in natural parameters."""
    (X, Y), model = labelled_data(rng), getattr(linear, f"{link}_regression")(3, family=Normal)
    X, Y = X[:12], Y[:12]
    found = fitted(model, [(X, Y)], pvi.StochasticEPUpdate(steps=2), rounds=30)
    q, site = found.posterior.as_factor(), found.factors["c0"] ** (1.0 / len(X))
    cavity = (q / site).normalised()
    total = q**0.0
    for x, y in zip(X, Y, strict=True):
        one = cavity.moment_match(lambda q, x=x, y=y: model.log_tilted(q, x, y, 1.0))
        total = total * cavity.as_factor() * one
    assert_same(total ** (1.0 / len(X)), q, THROUGH_CHOLESKY)


@pytest.mark.slow
def test_stochastic_ep_comes_close_to_ep(rng):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    shards = datasets.partition_iid(X, Y, 3)
    passes = pvi.StochasticEPUpdate(steps=20, damping=1 / 20, batch_size=1)
    found = fitted(model, shards, passes, pvi.Sequential(damping=0.2), rounds=30).posterior
    mean, covariance = reference.probit_by_expectation_propagation(X, Y)
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(found.mean - mean) < 0.3 * sd).all()
    np.testing.assert_allclose(np.sqrt(found.variance), sd, rtol=0.15)


# ---- what may go wrong ----


def one_of_each(power, stochastic, quick):
    """One pair of a rule and a family; the others run with the slow tests."""
    pairs = [
        (power, Normal),
        (stochastic, MeanFieldNormal),
        (power, MeanFieldNormal),
        (stochastic, Normal),
    ]
    return [one if one == pairs[quick] else slow(*one) for one in pairs]


@pytest.mark.parametrize(
    ("update", "family"),
    one_of_each(pvi.PowerEPUpdate(sweeps=9, damping=1.0), pvi.StochasticEPUpdate(steps=9), 3),
)
def test_data_without_a_tilted_distribution_keep_their_sites(rng, family, update):
    (X, Y), deaf = regression_data(rng), DeafToSome(3, 0.09, family=family)
    found, some = server(deaf, [(X, Y)], update), Y[:, 0] > 0.0
    history = pvi.fit(found, pvi.Sequential())
    assert history[-1].skipped == 9 * np.sum(~some)
    assert found.version == 1
    if isinstance(update, pvi.PowerEPUpdate):
        assert_same(found.posterior, fitted(deaf, [(X[some], Y[some])], update).posterior, ALGEBRA)


@pytest.mark.parametrize(
    ("update", "family"),
    one_of_each(pvi.PowerEPUpdate(sweeps=2, damping=1.0), pvi.StochasticEPUpdate(steps=2), 0),
)
def test_a_site_under_an_improper_cavity_stays(family, update):
    model = linear.probit_regression(3, family=family)
    precision = model.prior().precision
    sure = family(np.array([1.0, 2.0, 3.0]), precision * 3.0)
    own = Factor(family, (np.full(3, 0.5), precision * 4.0))
    task = pvi.LocalTask(model, (np.ones((1, 3)), np.ones((1, 1))), sure, own, sure, seed=0)
    result = update(task)
    assert result.skipped == 2
    assert np.isnan(result.free_energy)
    assert_same(result.factor, own, ALGEBRA)


class NoDraws(linear.BayesianLinearRegression):
    """Knows expected log likelihoods only."""

    log_likelihood = property()


def test_a_model_without_likelihoods_of_draws_is_named(rng):
    update = pvi.DistributedEPUpdate(pvi.AnalyticUpdate())
    with pytest.raises(NoAnswerError, match="NoDraws has no log_likelihood"):
        pvi.fit(server(NoDraws(3), [regression_data(rng)], update))


@pytest.mark.parametrize(
    "update", [pvi.PowerEPUpdate(), pvi.StochasticEPUpdate(), pvi.AssumedDensityUpdate()]
)
def test_a_model_without_tilted_distributions_is_named(update):
    net = bnn.MeanFieldBNN([2, 3, 1], likelihood=gpflow.likelihoods.Gaussian())
    found = server(net, [(np.ones((4, 2)), np.ones((4, 1)))], update)
    with pytest.raises(NoAnswerError, match="MeanFieldBNN has no log_tilted"):
        pvi.fit(found)


ONE_STEP = pvi.PowerEPUpdate.one_step()


@pytest.fixture
def task(rng):
    """Of a client with a factor already."""
    X, Y = labelled_data(rng)
    own = Factor(Normal, (np.array([3.0, -2.0, 1.0]), np.diag([6.0, 5.0, 9.0])))
    return task_of(linear.probit_regression(3, family=Normal), X[:12], Y[:12], own)


def test_a_step_of_stochastic_ep_is_algorithm_4(task):
    """``q ← q^(1−Nρ/α) q_α^(Nρ/α)``, with the site that all data share."""
    (X, Y), alpha, rho, number = task.data, 0.5, 0.01, task.num_data
    row = next(task.minibatches(1))[0]
    q, site = task.posterior.as_factor(), task.own ** (1.0 / number)
    cavity = (q / site**alpha).normalised()
    matched = cavity.moment_match(lambda q: task.model.log_tilted(q, X[row], Y[row], alpha))
    projected = cavity.as_factor() * matched
    power = number * rho / alpha
    wanted = q ** (1.0 - power) * projected**power / task.model.prior().as_factor()
    found = pvi.StochasticEPUpdate(alpha, damping=rho, batch_size=1)(task).factor
    assert_same(found, wanted, THROUGH_CHOLESKY)


def test_with_single_data_as_pieces_it_is_stochastic_ep(task):
    found = pvi.TiedUpdate(ONE_STEP, pieces=12)(task)
    wanted = pvi.StochasticEPUpdate(steps=12, damping=1 / 12, batch_size=1)(task)
    assert_same(found.factor, wanted.factor, THROUGH_CHOLESKY)
    np.testing.assert_allclose(found.free_energy, wanted.free_energy, rtol=THROUGH_CHOLESKY)


def test_with_single_data_as_pieces_under_one_q_it_is_averaged_ep(task):
    found = pvi.TiedUpdate(ONE_STEP, pieces=12, passes=2, averaged=True)(task)
    assert_same(found.factor, pvi.StochasticEPUpdate(steps=2)(task).factor, THROUGH_CHOLESKY)


def test_of_a_conjugate_model_averaged_ep_is_exact_after_one_pass(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    task = task_of(model, X, Y)
    found = pvi.TiedUpdate(pvi.AnalyticUpdate(), pieces=7, averaged=True)(task)
    assert_same(model.prior().times([found.factor]), pooled(model, X, Y), ALGEBRA)
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(found.free_energy, product.log_integral(), rtol=1e-9)


def test_rounding_does_not_grow_from_pass_to_pass(rng):
    """A part that is not symmetric would become four times as large in each of them."""
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.DistributedEPUpdate(pvi.AnalyticUpdate(), num_samples=500, min_effective=10.0)
    task = task_of(model, X[:10], Y[:10])
    found = pvi.TiedUpdate(rule, pieces=5, passes=18, averaged=True)(task)
    precision = found.factor.natural[1]
    np.testing.assert_allclose(precision, precision.T, atol=1e-12 * np.abs(precision).max())


@pytest.mark.slow
def test_with_sampled_moments_it_is_near_the_posterior(rng):
    """Section C.2 of the supplement, with two pieces."""
    (X, Y), model = labelled_data(rng), linear.logistic_regression(2)
    X, Y = X[:40, :2], Y[:40]
    sampled = pvi.DistributedEPUpdate(num_samples=10_000)
    found = pvi.TiedUpdate(sampled, pieces=2, passes=4, averaged=True)(task_of(model, X, Y))
    q, (mean, sd, evidence) = model.prior().times([found.factor]), exact_moments(X, Y)
    np.testing.assert_allclose((q.mean - mean) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(np.sqrt(q.variance) / sd, 1.0, atol=0.05)
    np.testing.assert_allclose(found.free_energy, evidence, atol=0.05)


@dataclass(frozen=True)
class Noting:
    """Leaves the factor as it is, and two data out; notes what it was asked, and no evidence."""

    asked: list = field(default_factory=list)

    def __call__(self, task):
        self.asked.append(task)
        return pvi.LocalResult(task.own, steps=1, skipped=2)


def test_every_question_is_about_another_piece_with_another_seed(task):
    rule = Noting()
    found = pvi.TiedUpdate(rule, pieces=4, passes=5)(task)
    assert found.skipped == 2 * len(rule.asked) == 40
    assert np.isnan(found.free_energy), "of a rule without evidence"
    rows = [tuple(np.ravel(one.data[0])) for one in rule.asked]
    for asked in range(0, 20, 4):
        assert len(set(rows[asked : asked + 4])) == 4
    seeds = [one.seed for one in rule.asked]
    assert len(set(seeds)) == 20
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_more_pieces_than_data_are_refused(task):
    with pytest.raises(InvalidDataError, match="12 data cannot be cut into 13 pieces"):
        pvi.TiedUpdate(ONE_STEP, pieces=13)(task)
