"""Gaussian mixtures at their exact limits, and beside scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.mixture import BayesianGaussianMixture

from streaming_gp import expfam, linear, mixture, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import DirichletNormalWishart
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY, assert_same_naturals, fitted_server

FIXED_POINT = 1e-6
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


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


@pytest.mark.parametrize("number", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_optimum_is_scikit_learns(number):
    Y = clusters()
    model = gaussian_mixture(centres=[[0, 1], [3, 1], [-2, 4]])
    q = fitted_server(model, parted(Y, number), VMP, pvi.Sequential(), 60).posterior
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


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        (pvi.Synchronous(damping=0.6), 50),
        pytest.param(
            pvi.Asynchronous(damping=0.6, durations=DURATIONS), 100, marks=pytest.mark.slow
        ),
    ],
)
def test_clients_and_schedules_agree(schedule, rounds):
    Y = clusters()
    model = gaussian_mixture(centres=Y[:3])
    optimum = fitted_server(model, parted(Y, 1), VMP, pvi.Sequential(), 80).posterior
    found = fitted_server(model, parted(Y, 4), VMP, schedule, rounds).posterior
    assert_same_naturals(found, optimum, FIXED_POINT)


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
    assert_same_naturals(*posteriors, 1e-5)


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
    q = fitted_server(model, parted(Y, 2), VMP, pvi.Sequential(), 30).posterior
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


def test_a_mixture_s_server_is_saved_and_goes_on(tmp_path):
    Y = clusters()
    model = gaussian_mixture(centres=Y[:3])
    whole = fitted_server(model, parted(Y, 3), VMP, pvi.Sequential(), 6)
    half = fitted_server(model, parted(Y, 3), VMP, pvi.Sequential(), 3)
    half.save(tmp_path / "server")
    again = pvi.Server.load(tmp_path / "server", model.prior(), half.clients)
    assert isinstance(again.posterior, DirichletNormalWishart)
    pvi.fit(again, pvi.Sequential(), 3)
    for a, b in zip(again.posterior.natural, whole.posterior.natural, strict=True):
        np.testing.assert_array_equal(a, b)


def test_data_that_a_mixture_cannot_take_are_refused(rng):
    model = gaussian_mixture()
    with pytest.raises(InvalidDataError, match="a mixture has no inputs"):
        pvi.make_clients(model, [(np.zeros((3, 1)), np.zeros((3, 2)))], VMP)
    with pytest.raises(InvalidDataError, match=r"Y must have shape \[N, 2\]"):
        pvi.make_clients(model, [(None, np.zeros((3, 1)))], VMP)
    with pytest.raises(InvalidDataError, match="the prior is no distribution"):
        mixture.GaussianMixture(2, 3, dof=1.5)


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
