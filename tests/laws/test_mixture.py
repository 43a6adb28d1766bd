"""Gaussian mixtures and the clutter problem at their exact limits, and beside scikit-learn."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import tensorflow as tf
from sklearn.mixture import BayesianGaussianMixture

import streaming_gp as sgp
from streaming_gp import expfam, linear, losses, mixture, pvi, samplers
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import DirichletNormalWishart, Factor, Normal
from streaming_gp.numerics.quadrature import normal_nodes
from tests.conftest import fitted_server
from tests.laws import LBFGS, slow
from tests.oracles.reference import assert_same, task_of
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

FIXED_POINT = 1e-6


def parted(Y, number):
    return [(None, part) for part in np.array_split(Y, number)]


def clusters(seed=0):
    rng = np.random.default_rng(seed)
    parts = [
        rng.multivariate_normal([0.0, 0.0], [[0.3, 0.1], [0.1, 0.2]], 60),
        rng.multivariate_normal([4.0, 1.0], [[0.5, -0.2], [-0.2, 0.6]], 80),
        rng.multivariate_normal([-2.0, 5.0], [[0.2, 0.0], [0.0, 0.3]], 60),
    ]
    Y = np.concatenate(parts)
    return Y[rng.permutation(len(Y))]


PRIOR_MEAN, PRIOR_COVARIANCE = np.array([1.0, 1.5]), np.array([[6.0, 0.5], [0.5, 4.0]])


def gaussian_mixture(centres=None):
    return mixture.GaussianMixture(
        3, 2, concentration=0.7, strength=0.5, mean=PRIOR_MEAN, dof=4.0,
        covariance=PRIOR_COVARIANCE / 4.0, centres=centres,
    )  # fmt: skip


VMP = pvi.FixedPointUpdate()


def test_the_optimum_is_scikit_learns():
    Y = clusters()
    model = gaussian_mixture(centres=[[0, 1], [3, 1], [-2, 4]])
    q = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 60).posterior
    other = BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=0.7, mean_precision_prior=0.5, mean_prior=PRIOR_MEAN,
        degrees_of_freedom_prior=4.0, covariance_prior=PRIOR_COVARIANCE, reg_covar=0.0, tol=1e-12,
        max_iter=5000, random_state=0,
    ).fit(Y)  # fmt: skip
    mine, theirs = np.argsort(q.components.mean[:, 0]), np.argsort(other.means_[:, 0])
    np.testing.assert_allclose(q.components.mean[mine], other.means_[theirs], rtol=FIXED_POINT)
    weights = np.asarray(q.weights.mean)[mine]
    np.testing.assert_allclose(weights, other.weights_[theirs], rtol=FIXED_POINT)
    covariances = np.asarray(q.components.scale_inverse / q.components.dof[:, None, None])[mine]
    np.testing.assert_allclose(covariances, other.covariances_[theirs], rtol=FIXED_POINT)
    bound = model.expected_log_likelihood(q, None, Y, None) - q.kl_divergence(model.prior())
    np.testing.assert_allclose(bound, other.lower_bound_ - constants(model, Y), rtol=FIXED_POINT)


def constants(model, Y):
    """What scikit-learn leaves out of its bound."""
    number, dimension = Y.shape
    multigamma = 3 * dimension * (dimension - 1) / 4.0 * np.log(np.pi)
    data = 0.5 * number * dimension * np.log(2.0 * np.pi)
    return float(model.prior().log_partition()) + data - multigamma


DURATIONS = {"c0": 3.0, "c1": 1.0, "c2": 1.0, "c3": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [(pvi.Synchronous(damping=0.6), 50), (pvi.Asynchronous(damping=0.6, durations=DURATIONS), 100)],
)
def test_clients_and_schedules_agree(schedule, rounds):
    Y = clusters()
    model = gaussian_mixture(centres=Y[:3])
    optimum = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 80).posterior
    found = fitted_server(model, parted(Y, 4), VMP, schedule, rounds).posterior
    assert_same(found, optimum, FIXED_POINT)


def test_one_step_is_a_step_of_variational_message_passing():
    """Property 5 for mixtures: responsibilities at q, then conjugate counts (Bishop 2006)."""
    Y = clusters()
    model = gaussian_mixture(centres=Y[:3])
    r = model.responsibilities(model.initial(0), Y)
    q = fitted_server(model, parted(Y, 5), VMP, pvi.Synchronous(damping=1.0), 1).posterior
    counts = r.sum(axis=0)
    np.testing.assert_allclose(q.concentration, 0.7 + counts, rtol=ALGEBRA)
    np.testing.assert_allclose(q.components.strength, 0.5 + counts, rtol=ALGEBRA)
    np.testing.assert_allclose(q.components.dof, 4.0 + counts, rtol=ALGEBRA)
    mean = (0.5 * PRIOR_MEAN + r.T @ Y) / (0.5 + counts)[:, None]
    np.testing.assert_allclose(q.components.mean, mean, rtol=THROUGH_CHOLESKY)


def messages(prior, start, Y, sweeps):
    """Variational message passing (Winn & Bishop 2005), datum by datum, in natural parameters: the
    responsibility of each datum at q (Bishop 2006, eqs. 10.46, 10.64 to 10.66), then its message.
    """
    total = [np.array(part, float) for part in prior.natural]
    sent = [[np.zeros_like(part) for part in total] for _ in Y]
    for sweep in range(sweeps):
        for n, y in enumerate(Y):
            q = start if sweep == n == 0 else DirichletNormalWishart(*total)
            alpha, parts = np.asarray(q.concentration), q.components
            W = np.linalg.inv(np.asarray(parts.scale_inverse))
            dof, away = np.asarray(parts.dof), y - np.asarray(parts.mean)
            log_pi = scipy.special.digamma(alpha) - scipy.special.digamma(alpha.sum())
            halves = 0.5 * (dof[:, None] + 1.0 - np.arange(1, 3))
            log_precision = scipy.special.digamma(halves).sum(1) + 2.0 * np.log(2.0)
            log_precision += np.linalg.slogdet(W)[1]
            distance = dof * np.einsum("kd,kde,ke->k", away, W, away) + 2.0 / parts.strength
            r = scipy.special.softmax(log_pi + 0.5 * (log_precision - distance))
            message = [r, r, r[:, None] * y, r, r[:, None, None] * np.outer(y, y)]
            total = [a + b - c for a, b, c in zip(total, message, sent[n], strict=True)]
            sent[n] = message
    return total


def test_a_client_for_each_datum_passes_the_messages_of_the_literature():
    Y = clusters()[:12]
    model = gaussian_mixture(centres=Y[:3])
    found = fitted_server(model, parted(Y, len(Y)), VMP, pvi.Sequential(), 2).posterior
    wanted = messages(model.prior(), model.initial(0), Y, 2)
    for a, b in zip(found.natural, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_the_closed_natural_gradient_is_that_of_the_expectation():
    Y = clusters()[:20]
    model = gaussian_mixture(centres=Y[:3])
    q = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 2).posterior
    closed = model.natural_gradient(q, None, Y, None)
    generic = q.natural_gradient(lambda q: model.expected_log_likelihood(q, None, Y, None))
    for a, b in zip(closed.natural, generic.natural, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


class Differentiated(mixture.GaussianMixture):
    """A mixture that does not know its own natural gradient."""

    natural_gradient = None


@pytest.mark.slow
def test_compiled_differentiation_takes_the_same_step():
    Y = clusters()[:20]
    posteriors = []
    for kind in (mixture.GaussianMixture, Differentiated):
        model = kind(2, 2, centres=Y[:2], covariance=PRIOR_COVARIANCE, dof=4.0)
        posteriors.append(fitted_server(model, parted(Y, 2), VMP, pvi.Sequential(), 1).posterior)
    assert_same(*posteriors, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "divergence", [expfam.KL(), expfam.Renyi(1.0 - 1e-8), expfam.Renyi(1.0 + 1e-8)]
)
def test_an_optimiser_ends_where_message_passing_does(divergence):
    Y = clusters()[:40]
    model = gaussian_mixture(centres=[[0, 1], [3, 1], [-2, 4]])
    optimum = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 100).posterior
    rule = pvi.VariationalUpdate(
        batch_size=None, optimiser=pvi.LBFGS(max_iterations=2000), divergence=divergence
    )
    found = fitted_server(model, parted(Y, 1), rule, pvi.Sequential(), 1).posterior
    bounds = [
        model.expected_log_likelihood(q, None, Y, None) - q.kl_divergence(model.prior())
        for q in (found, optimum)
    ]
    np.testing.assert_allclose(*bounds, rtol=FIXED_POINT)


def test_a_stream_of_clusters_claims_one_component_for_each():
    rng = np.random.default_rng(1)
    model = mixture.GaussianMixture(
        5, 2, concentration=0.5, strength=0.05, covariance=9.0 * np.eye(2), dof=4.0
    )
    centres = np.array([[0.0, 0.0], [5.0, 1.0], [-3.0, 4.0]])
    batches = [(None, centre + 0.6 * rng.standard_normal((40, 2))) for centre in centres]
    update = mixture.BirthUpdate(attempts=3)
    server = pvi.Server(model.prior(), pvi.make_clients(model, batches, update))
    for number, name in enumerate(server.clients):
        pvi.fit(server, pvi.Sequential(order=[name]))
        assert model.claimed(server.posterior).sum() == number + 1
    q = server.posterior
    found = np.asarray(q.components.mean)[model.claimed(q)]
    by_first = (points[np.argsort(points[:, 0])] for points in (found, centres))
    np.testing.assert_allclose(*by_first, atol=0.4)


def test_births_are_for_mixtures(rng):
    model = linear.BayesianLinearRegression(2)
    clients = pvi.make_clients(model, [(np.eye(2), np.ones((2, 1)))], mixture.BirthUpdate())
    with pytest.raises(NoAnswerError, match="not for BayesianLinearRegression"):
        pvi.fit(pvi.Server(model.prior(), clients))


def test_responsibilities_and_predictive_density():
    Y = clusters()
    model = gaussian_mixture(centres=[[0, 1], [3, 1], [-2, 4]])
    q = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 15).posterior
    r = model.responsibilities(q, Y)
    np.testing.assert_allclose(r.sum(axis=1), 1.0, rtol=ALGEBRA)
    nearest = np.argmin(np.linalg.norm(Y[:, None] - q.components.mean, axis=2), axis=1)
    assert (np.argmax(r, axis=1) == nearest).mean() > 0.98
    draws = np.asarray(q.sample(20_000, seed=0))
    point = Y[:1]
    total = np.zeros(len(draws))
    for k in range(3):
        weight, mu, precision = draws[:, k, 0], draws[:, k, 1:3], draws[:, k, 3:].reshape(-1, 2, 2)
        away = point - mu
        square = np.einsum("nd,nde,ne->n", away, precision, away)
        total += weight * np.sqrt(np.linalg.det(precision)) / (2 * np.pi) * np.exp(-square / 2)
    error = 4.0 * total.std() / np.sqrt(len(draws))
    assert abs(np.exp(model.predict_log_density(q, point)[0]) - total.mean()) < error


def test_data_that_a_mixture_cannot_take_are_refused(rng):
    model = gaussian_mixture()
    with pytest.raises(InvalidDataError, match="a mixture has no inputs"):
        pvi.make_clients(model, [(np.zeros((3, 1)), np.zeros((3, 2)))], VMP)
    with pytest.raises(InvalidDataError, match=r"Y must have shape \[N, 2\]"):
        pvi.make_clients(model, [(None, np.zeros((3, 1)))], VMP)
    with pytest.raises(InvalidDataError, match="the prior is no distribution"):
        mixture.GaussianMixture(2, 3, dof=1.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [5.0]}, r"mean must be finite, \[2\] or a number"),
        ({"covariance": [[1.0]]}, "covariance must be symmetric and positive definite"),
        ({"covariance": [1.0, 2.0]}, "covariance must be symmetric and positive definite"),
        ({"covariance": [[1.0, 0.9], [0.0, 1.0]]}, "covariance must be symmetric"),
        ({"centres": [[0.0, 0.0]]}, r"centres must have shape \[3, 2\], got \[1, 2\]"),
    ],
)
def test_a_prior_of_another_shape_is_refused(options, message):
    with pytest.raises(InvalidDataError, match=message):
        mixture.GaussianMixture(3, 2, **options)


def test_a_spoiled_answer_of_a_mixture_is_refused():
    Y = clusters()
    model = gaussian_mixture(centres=Y[:3])
    server = fitted_server(model, parted(Y, 3), VMP, pvi.Sequential(), 2)
    before = server.posterior.natural

    def spoiled(value):
        ask = server.ask("c0")
        answer = server.clients["c0"].answer(ask)
        natural = (np.full(3, value), *answer.factor.natural[1:])
        factor = expfam.Factor(DirichletNormalWishart, natural)
        answer = replace(answer, factor=factor)
        return server.accept([answer], pvi.Damping(1.0, 3)).refused["c0"]

    assert "not finite" in spoiled(np.nan)
    assert "improper" in spoiled(-1e3)
    for a, b in zip(before, server.posterior.natural, strict=True):
        np.testing.assert_array_equal(a, b)


GRID = np.linspace(-15.0, 15.0, 30_001)
SHARE, WIDE = 0.3, 3.0
Y = np.array([[1.5], [-4.0], [2.2], [0.7]])
OWN = Factor(Normal, (np.array([2.0]), np.array([[1.5]])))


@pytest.fixture(scope="module")
def model():
    return mixture.ClutterModel(mixture.Clutter([[1.0]], SHARE, 0.0, [[WIDE**2]]), 10.0)


@pytest.fixture(scope="module")
def step(model):
    """One step of stochastic EP: the cavity without a site, the new site, and the datum."""
    task = task_of(model, np.empty((len(Y), 0)), Y, OWN)
    y = Y[next(task.minibatches(1))]
    tied = pvi.StochasticEPUpdate(steps=1, damping=1 / len(Y), batch_size=1)(task).factor
    cavity = task.posterior.exchanged([OWN ** (1.0 / len(Y))], [])
    return cavity, tied / OWN ** (1.0 - 1.0 / len(Y)), y


def joint_tilted(cavity, y):
    """``q_1(θ) p(y | h, θ) p(h)`` of the grid of θ and of h = signal, clutter: [2, G], of sum 1."""
    prior = scipy.stats.norm(cavity.mean[0], np.sqrt(cavity.variance[0])).pdf(GRID)
    signal = (1.0 - SHARE) * scipy.stats.norm(GRID, 1.0).pdf(y)
    clutter = np.full_like(GRID, SHARE * scipy.stats.norm(0.0, WIDE).pdf(y))
    joint = prior * np.stack([signal, clutter])
    return joint / joint.sum()


def divergence(joint, mean, variance, signal):
    """KL of the joint from ``N(θ; mean, variance) g(h)``, on the grid."""
    own = scipy.stats.norm(mean, np.sqrt(variance)).logpdf(GRID)
    log_g = np.log([signal, 1.0 - signal])
    return np.sum(joint * (np.log(joint) - own - log_g[:, None]))


def test_a_step_minimises_the_divergence_of_parameters_and_label_together(model, step):
    """No change of mean, variance or P(signal) makes it smaller: not to first order either."""
    cavity, site, y = step
    q = cavity.times([site])
    found = np.array([q.mean[0], q.variance[0], model.responsibilities(cavity, y)[0]])
    joint = joint_tilted(cavity, y[0, 0])
    least = divergence(joint, *found)
    for k in range(3):
        change = 1e-3 * np.eye(3)[k]
        up, down = (divergence(joint, *(found + sign * change)) - least for sign in (1.0, -1.0))
        assert min(up, down) > 0.0
        np.testing.assert_allclose(up, down, rtol=0.05)


def test_labels_of_other_data_do_not_matter_and_none_is_kept(model, step):
    cavity, _, y = step
    together = model.responsibilities(cavity, np.concatenate([Y, y]))
    np.testing.assert_allclose(together[-1:], model.responsibilities(cavity, y), rtol=1e-12)
    assert (together > 0.0).all()
    assert (together < 1.0).all()


def test_without_clutter_all_is_signal():
    plain = mixture.ClutterModel(mixture.Clutter([[1.0]]), 10.0)
    found = plain.responsibilities(plain.prior(), Y)
    np.testing.assert_allclose(found, 1.0, rtol=THROUGH_CHOLESKY)


PLACES = np.linspace(-20.0, 20.0, 40_001)


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
    log_p = by_hand(PLACES[:, None], Y.T, 0.5, clutter).sum(axis=1)
    log_p += scipy.stats.norm(0.0, np.sqrt(10.0)).logpdf(PLACES)
    density = np.exp(log_p - log_p.max())
    density /= scipy.integrate.simpson(density, x=PLACES)
    mean = scipy.integrate.simpson(PLACES * density, x=PLACES)
    return mean, np.sqrt(scipy.integrate.simpson((PLACES - mean) ** 2 * density, x=PLACES))


def test_expectations_are_integrals():
    model, Y = one_dimensional()
    q = Normal.from_mean_covariance(np.array([1.3]), np.array([[0.4]]))
    weight = scipy.stats.norm(1.3, np.sqrt(0.4)).pdf(PLACES)
    values = by_hand(PLACES[:, None], Y.T, 0.5, 2.0).sum(axis=1)
    expected = scipy.integrate.simpson(weight * values, x=PLACES)
    found = model.expected_log_likelihood(q, np.empty((len(Y), 0)), Y, None)
    np.testing.assert_allclose(found, expected, rtol=THROUGH_CHOLESKY)


@pytest.mark.parametrize(
    "family", [one if one is Normal else slow(one) for one in expfam.GAUSSIANS]
)
def test_without_clutter_it_is_conjugate(rng, family):
    Y, prior_mean = rng.standard_normal((12, 3)) + 1.0, np.array([0.5, 0.0, -1.0])
    likelihood = mixture.Clutter(0.5 * np.eye(3))
    model = mixture.ClutterModel(likelihood, 10.0, family, prior_mean=prior_mean)
    found = fitted_server(model, parted(Y, 2), LBFGS, pvi.Sequential(), 1).posterior
    precision = 0.1 + len(Y) / 0.5
    mean = (0.1 * prior_mean + Y.sum(axis=0) / 0.5) / precision
    np.testing.assert_allclose(found.mean, mean, rtol=FIXED_POINT)
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
        assert_same(found, optimum, 1e-5)


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


def tilted(model, cavity, y, alpha):
    return model.log_tilted(cavity, None, tf.constant(y), alpha)


@pytest.mark.parametrize("alpha", [0.05, 1.0, 2.0])
@pytest.mark.parametrize(("variance", "y"), [(0.2, 1.0), (100.0, 6.0)])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_tilted_integrals_of_powers_are_integrals(alpha, variance, y, share):
    model, _ = one_dimensional(share=share)
    cavity = Normal.from_mean_covariance(np.array([0.4]), np.array([[variance]]))
    fine = np.linspace(-60.0, 60.0, 60_001)
    log_p = alpha * by_hand(fine, y, share, 2.0) + scipy.stats.norm(0.4, variance**0.5).logpdf(fine)
    expected = np.log(scipy.integrate.simpson(np.exp(log_p), x=fine))
    np.testing.assert_allclose(tilted(model, cavity, np.array([y]), alpha), expected, atol=2e-6)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_tilted_integrals_of_powers_in_two_dimensions(family):
    """Against nodes under the cavity, which is as wide as the signal."""
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
    there = np.log(np.sum(weights * np.exp(log_p)))
    for alpha in (1.0, 1.0 + 1e-9):
        np.testing.assert_allclose(tilted(model, cavity, y, alpha), there, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_power_ep_ends_where_no_tilted_moment_moves(alpha):
    """The moments of ``cavity p(y | θ)^α`` are those of q, with ``cavity = q / t^α``."""
    model, Y = one_dimensional(number=8)
    found = fitted_server(model, [(None, Y)], pvi.PowerEPUpdate(alpha, 150), pvi.Sequential(), 1)
    single = fitted_server(
        model, parted(Y, 8), pvi.PowerEPUpdate(alpha, sweeps=30), pvi.Sequential(), 12
    )
    assert_same(found.posterior, single.posterior, 1e-5)
    q = single.posterior
    for name, client in single.clients.items():
        cavity = (q.as_factor() / single.factors[name] ** alpha).normalised()
        log_p = alpha * by_hand(PLACES, client.data[1], 0.5, 2.0)[0]
        log_p += cavity.log_prob(PLACES[:, None]).numpy()
        density = np.exp(log_p - log_p.max())
        density /= scipy.integrate.simpson(density, x=PLACES)
        mean = scipy.integrate.simpson(PLACES * density, x=PLACES)
        np.testing.assert_allclose(mean, q.mean[0], atol=1e-5)
        square = scipy.integrate.simpson((PLACES - mean) ** 2 * density, x=PLACES)
        np.testing.assert_allclose(square, q.variance[0], rtol=1e-5)


def test_the_prior_mean_can_be_set():
    prior = mixture.ClutterModel(mixture.Clutter([[0.5]]), 2.5, prior_mean=1.0).prior()
    np.testing.assert_allclose([prior.mean[0], prior.variance[0]], [1.0, 2.5])
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
@pytest.mark.parametrize("family", expfam.GAUSSIANS)
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
    assert_same(whole.posterior, fewer.posterior, 1e-6)
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
    density = scipy.stats.norm(0.0, np.sqrt(0.7)).pdf(PLACES)
    expected = np.log(scipy.integrate.simpson(density**1.5, x=PLACES))
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
