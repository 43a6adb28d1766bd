"""Hyperparameters learned across clients."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, IsotropicNormal, MeanFieldNormal, Normal
from streaming_gp.pvi.model import bounded_precision, newton_step
from tests.laws import LBFGS
from tests.oracles.reference import assert_same, inputs, labelled_data, server


@pytest.mark.parametrize("groups", [None, range(4)], ids=["one", "each"])
@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_prior_variances_learned_from_q_are_those_of_most_evidence(rng, family, groups):
    """Orthogonal inputs: the mean field is exact as well, and the evidence a product over weights,
    the maximum of which is known.
    """
    X = np.linalg.qr(rng.standard_normal((20, 4)))[0] * 5.0
    Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.3 * rng.standard_normal((20, 1))
    model = linear.BayesianLinearRegression(4, 0.09, family=family)
    found = server(model, [(X[i::2], Y[i::2]) for i in range(2)], pvi.FixedPointUpdate())
    rule = pvi.PriorVariance(groups=groups)
    pvi.fit(found, pvi.Synchronous(damping=1.0), 15, hyperparameters=rule)
    most = (X.T @ Y[:, 0] / 25.0) ** 2 - 0.09 / 25.0
    wanted = np.full(4, np.mean(most)) if groups is None else most
    np.testing.assert_allclose(found.prior.variance, wanted, rtol=1e-6)


def likeliest(X, Y, covariance, start, prior_variance):
    """Maximum likelihood of a linear model's noise: ``covariance(numbers)`` is that of Y - f."""

    def objective(numbers):
        L = np.linalg.cholesky(covariance(numbers) + prior_variance * X @ X.T)
        white = scipy.linalg.solve_triangular(L, Y, lower=True)
        return np.sum(np.log(np.diag(L))) + 0.5 * np.sum(np.square(white))

    options = {"xatol": 1e-4, "fatol": 1e-8, "maxiter": 4000}
    return scipy.optimize.minimize(objective, start, method="Nelder-Mead", options=options).x


@pytest.fixture(scope="module")
def precise():
    """Three shards of unequal size, the last one noisier, and the likeliest noise variance."""
    rng = np.random.default_rng(0)
    X, level = inputs(rng, 300), np.where(np.arange(300) < 240, 0.1, 0.15)[:, None]
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + level * rng.standard_normal((300, 1))
    shards = [(X[rows], Y[rows]) for rows in np.split(np.arange(300), [60, 240])]
    (best,) = likeliest(X, Y, lambda log: np.exp(log[0]) * np.eye(300), [-4.0], 10.0)
    return shards, np.exp(best)


SCHEDULES = [pvi.Sequential(), pvi.Synchronous(), pvi.Asynchronous()]


@pytest.fixture(scope="module")
def shared():
    """One model for all these tests, as its graphs cost seconds."""
    return linear.BayesianLinearRegression(3, prior_variance=10.0)


def starting(model, noise_variance):
    model.likelihood.variance.assign(noise_variance)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("start", [1e-3, 0.1, 10.0])
def test_the_noise_variance_learned_across_clients_is_the_likeliest(
    precise, shared, start, schedule
):
    (shards, best), model = precise, starting(shared, start)
    found = server(model, shards, pvi.AnalyticUpdate())
    history = pvi.fit(found, schedule, 20, hyperparameters=pvi.LikelihoodParameters())
    assert model.noise_variance == pytest.approx(best, rel=0.01)
    assert not any(one.refused for one in history)


@pytest.mark.slow
def test_a_start_beyond_the_range_of_exponentials_is_left_behind(precise, shared):
    (shards, best), model = precise, starting(shared, 1e4)
    found = server(model, shards, pvi.AnalyticUpdate())
    pvi.fit(found, pvi.Sequential(), 28, hyperparameters=pvi.LikelihoodParameters())
    assert model.noise_variance == pytest.approx(best, rel=0.01)


def test_clients_that_are_asked_now_and_then_count_by_what_they_said_last(precise, shared):
    (shards, best), model = precise, starting(shared, 0.1)
    found = server(model, shards, pvi.AnalyticUpdate())
    schedule = pvi.Synchronous(damping=1.0, fraction=1 / 3)
    pvi.fit(found, schedule, 16, hyperparameters=pvi.LikelihoodParameters())
    assert model.noise_variance == pytest.approx(best, rel=0.01)


def test_several_parameters_of_a_likelihood_are_learned_together(rng):
    """Noise whose standard deviation depends on the inputs: four numbers, two of them coupled."""
    X = inputs(rng, 200)
    X[:, 2] = 1.0
    scale = 0.5 + 0.1 * X[:, :1]
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + scale * rng.standard_normal((200, 1))

    def covariance(numbers):
        return np.diag(np.square(X @ numbers))

    best = likeliest(X, Y, covariance, [0.0, 0.0, 1.0], 1.0)
    linear_scale = gpflow.functions.Linear(np.zeros((3, 1)), np.ones(1))
    likelihood = gpflow.likelihoods.Gaussian(scale=linear_scale)
    model = linear.GeneralisedLinearModel(3, likelihood)
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.FixedPointUpdate())
    history = pvi.fit(found, pvi.Sequential(), 15, hyperparameters=pvi.LikelihoodParameters())
    assert history[-1].metrics["gradient_norm"] < 1e-6
    learned = (X @ best, X @ linear_scale.A.numpy()[:, 0] + linear_scale.b.numpy())
    np.testing.assert_allclose(np.abs(learned[1]), np.abs(learned[0]), rtol=0.01)


@pytest.mark.slow
def test_a_scale_under_quadrature_is_learned_to_where_the_free_energy_is_largest(rng):
    X = inputs(rng, 120)
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * rng.standard_t(3.0, (120, 1))

    model = linear.GeneralisedLinearModel(3, gpflow.likelihoods.StudentT(1.0, 3.0))

    def free_energy(log_scale):
        model.likelihood.scale.assign(np.exp(log_scale))
        return pvi.fit(server(model, [(X, Y)], LBFGS), pvi.Sequential())[-1].free_energy

    found = server(model, datasets.partition_iid(X, Y, 2), LBFGS)
    pvi.fit(found, pvi.Sequential(), 10, hyperparameters=pvi.LikelihoodParameters())
    learned = model.likelihood.scale.numpy()
    grid = np.log(learned) + np.array([-0.1, 0.0, 0.1])
    parabola = np.polyfit(grid, [free_energy(one) for one in grid], 2)
    best = np.exp(-parabola[1] / (2.0 * parabola[0]))
    assert learned == pytest.approx(best, rel=0.01)


@pytest.mark.slow
def test_a_network_that_learns_its_noise_is_as_good_as_with_the_best_fixed_one(rng):
    X = rng.uniform(-2.0, 2.0, (600, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal((600, 1))
    shards, held_out = [(X[i:300:3], Y[i:300:3]) for i in range(3)], (X[300:], Y[300:])

    def scores(start, rule=None):
        """Root-mean-square error and mean log density on held-out data."""
        net = bnn.MeanFieldBNN([1, 30, 1], gpflow.likelihoods.Gaussian(start), num_samples=4)
        update = pvi.VariationalUpdate(epochs=20, batch_size=50, learning_rate=0.01)
        found = server(net, shards, update)
        pvi.fit(found, rounds=40, hyperparameters=rule)
        residual = net.predict(found.posterior, held_out[0]) - held_out[1]
        density = net.predict_log_density(found.posterior, held_out)
        return np.sqrt(np.mean(np.square(residual))), np.mean(density)

    fixed = np.array([scores(noise_variance) for noise_variance in (0.007, 0.01, 0.014)])
    error, density = scores(0.5, pvi.LikelihoodParameters())
    assert error < 1.1 * np.min(fixed[:, 0])
    assert density > np.max(fixed[:, 1]) - 0.1


def test_a_run_that_learns_goes_on_from_its_file_as_if_never_stopped(precise, shared, tmp_path):
    (shards, _), model = precise, shared
    schedule = pvi.Synchronous(fraction=0.5)

    def run(rounds, **settings):
        found = server(starting(model, 1.0), shards, pvi.AnalyticUpdate())
        learn(found, rounds, **settings)
        return found

    def learn(one, rounds, **settings):
        pvi.fit(one, schedule, rounds, hyperparameters=pvi.LikelihoodParameters(), **settings)

    whole, part = run(3), run(2, checkpoint=tmp_path / "run.npz")
    starting(model, 1.0)
    again = pvi.Server.load(tmp_path / "run.npz", part.prior, part.clients)
    learn(again, 1)
    np.testing.assert_array_equal(again.hyperparameters, whole.hyperparameters)
    assert_same(again.posterior, whole.posterior, 0.0)


def test_a_client_that_is_removed_says_no_more_of_the_hyperparameters(precise, shared):
    (shards, _), model = precise, starting(shared, 1.0)
    found = server(model, shards, pvi.AnalyticUpdate())
    pvi.fit(found, hyperparameters=pvi.LikelihoodParameters())
    found.remove("c1")
    assert set(found.hyperparameter_factors) == {"c0", "c2"}


class Misleading(pvi.Client):
    """Says nothing true of the hyperparameters."""

    lie = None

    def answer(self, ask):
        return replace(super().answer(ask), hyperparameters=self.lie)


LIES = {
    "nothing": (None, "no factor of the family Normal"),
    "shape": (Factor(Normal, (np.ones(2), np.eye(2))), "shapes"),
    "nan": (Factor(Normal, (np.ones(1), np.full((1, 1), np.nan))), "not finite"),
    "steep": (Factor(Normal, (np.full(1, 1e12), np.eye(1))), "for each data point"),
    "sure": (Factor(Normal, (np.ones(1), np.full((1, 1), 1e12))), "for each data point"),
    "text": ("noise", "wanted a factor or None"),
}


@pytest.mark.parametrize(("lie", "message"), LIES.values(), ids=LIES)
def test_a_lie_about_hyperparameters_is_refused_and_the_others_go_on(precise, shared, lie, message):
    (shards, _), model = precise, starting(shared, 1.0)
    clients = pvi.make_clients(model, shards, pvi.AnalyticUpdate())
    honest = clients["c1"]
    clients["c1"] = Misleading("c1", model, honest.data, honest.update)
    object.__setattr__(clients["c1"], "lie", lie)
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, hyperparameters=pvi.LikelihoodParameters())
    assert set(history[-1].refused) == {"c1"}
    assert message in history[-1].refused["c1"]
    assert set(found.factors) == set(found.hyperparameter_factors) == {"c0", "c2"}


@pytest.mark.parametrize("wrong", [[0.1, 0.2], [], [np.nan], [[0.1]]])
def test_a_question_with_hyperparameters_of_another_model_changes_nothing(precise, shared, wrong):
    (shards, _), model = precise, starting(shared, 0.3)
    client = pvi.make_clients(model, shards, pvi.AnalyticUpdate())["c0"]
    ask = pvi.Server(model.prior(), [client]).ask("c0")
    with pytest.raises(InvalidDataError, match=r"has 1 parameters to learn.* got"):
        client.answer(replace(ask, hyperparameters=np.array(wrong)))
    assert model.noise_variance == pytest.approx(0.3)


def test_a_step_goes_uphill_however_the_curvature_is_and_no_further_than_the_bound():
    def step(start, gradient, curvatures, bound=1.0):
        where, slope = np.full(3, start), np.array(gradient)
        return newton_step(slope, bounded_precision(where, slope, np.diag(curvatures), bound))

    np.testing.assert_allclose(step(0.0, [0.1, 0.1, 9.0], [0.5, -0.5, 1.0]), [0.2, 0.2, 1.0])
    np.testing.assert_allclose(step(0.0, [0.1, 0.1, 9.0], np.zeros(3), 0.5), 0.5)
    np.testing.assert_allclose(step(0.0, np.zeros(3), np.zeros(3)), 0.0)
    np.testing.assert_allclose(step(40.0, [-9.0, -1.0, 1.0], [1.0, 0.0, 0.0]), [-9.0, -20.0, 20.0])


def test_models_without_trainable_parameters_learn_none(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], LBFGS)
    with pytest.raises(InvalidDataError, match="no trainable_variables"):
        pvi.fit(found, hyperparameters=pvi.LikelihoodParameters())


FAMILY_AND_PRIOR = [
    Normal(np.array([0.5, 0.0, 0.0]), np.diag([1.0, 0.5, 2.0])),
    MeanFieldNormal(np.array([0.5, 0.0, 0.0]), np.array([1.0, 0.5, 2.0])),
]


@pytest.mark.parametrize("prior", FAMILY_AND_PRIOR, ids=["full", "mean field"])
def test_variances_of_groups_go_to_where_their_gradient_vanishes(prior):
    """``Σ_{i in g} ∂/∂log c E_q[log N(θ_i; m_i, c v_i)] = 0``, with a prior mean, and a rate."""
    model = linear.BayesianLinearRegression(3, family=type(prior))
    clients = pvi.make_clients(model, [(np.eye(3), np.ones((3, 1)))], pvi.FixedPointUpdate())
    found = pvi.Server(prior, clients)
    pvi.fit(found, pvi.Sequential())
    q, (mean, variance) = found.posterior, (prior.mean, prior.variance)
    second = (q.mean - mean) ** 2 + q.variance
    half = pvi.PriorVariance(rate=0.5, groups=[0, 1, 1]).learn(found)
    growth = np.array([second[0] / variance[0], np.mean(second[1:] / variance[1:])])
    np.testing.assert_allclose(
        found.prior.variance, variance * np.sqrt(growth[[0, 1, 1]]), rtol=1e-9
    )
    np.testing.assert_allclose(found.prior.mean, mean, rtol=1e-9)
    assert half["prior_variance_0"] == pytest.approx(found.prior.variance[0])
    assert half["prior_variance_1"] == pytest.approx(np.mean(found.prior.variance[1:]))


def test_gradients_at_the_optimum_are_eqs_71_and_73(rng):
    """``∂F_2m/∂η_q = (∂²A/∂η²) η_m`` for each client; and of the free energy by the prior's
    variance ``(μ_q − μ_0)ᵀ ∂η_0/∂v``.
    """
    X = rng.standard_normal((12, 2))
    Y = X @ np.array([[1.0], [-2.0]]) + 0.3 * rng.standard_normal((12, 1))
    model = linear.BayesianLinearRegression(2, 0.09, 0.7)
    found = server(model, [(X[:5], Y[:5]), (X[5:], Y[5:])], pvi.FixedPointUpdate())
    pvi.fit(found, pvi.Sequential(), 2)
    q, prior = found.posterior, found.prior
    natural = [tf.constant(part) for part in q.natural]
    for name, factor in found.factors.items():
        x, y = map(tf.constant, found.clients[name].data)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(natural)
            expected = model.expected_log_likelihood(type(q)(*natural), x, y, None)
            # η_m held, the gradient of μᵀη_m by η_q is (∂²A/∂η²) η_m
            means = type(q)(*natural).mean_parameters()
            held = tf.add_n(
                [tf.reduce_sum(a * b) for a, b in zip(means, factor.natural, strict=True)]
            )
        pairs = zip(tape.gradient(expected, natural), tape.gradient(held, natural), strict=True)
        for by_likelihood, by_factor in pairs:
            np.testing.assert_allclose(by_likelihood, by_factor, rtol=1e-8, atol=1e-12)

    def evidence(variance):
        K = variance * X @ X.T + 0.09 * np.eye(len(X))
        return scipy.stats.multivariate_normal.logpdf(Y[:, 0], np.zeros(len(X)), K)

    slope = (evidence(0.7 + 1e-5) - evidence(0.7 - 1e-5)) / 2e-5
    gap = np.asarray(q.mean_parameters()[1]) - np.asarray(prior.mean_parameters()[1])
    found_slope = np.trace(gap) * -1.0 / 0.7**2  # η_0 is (0, I / v)
    np.testing.assert_allclose(found_slope, slope, rtol=1e-6)


def test_each_layer_of_a_network_has_a_variance_of_its_own():
    net = bnn.MeanFieldBNN([2, 5, 1], gpflow.likelihoods.Gaussian())
    clients = pvi.make_clients(net, [(np.ones((4, 2)), np.ones((4, 1)))], pvi.FixedPointUpdate())
    found = pvi.Server(net.prior(), clients)
    found.warm_start(net.initial(0))
    learned = pvi.PriorVariance(groups=net.layer_of_weights).learn(found)
    layers = np.split(np.square(net.initial(0).mean) + net.initial(0).variance, [15])
    assert learned["prior_variance_0"] == pytest.approx(np.mean(layers[0]), rel=1e-5)
    assert learned["prior_variance_1"] == pytest.approx(np.mean(layers[1]), rel=1e-5)


@pytest.mark.parametrize(
    ("prior", "groups", "message"),
    [
        (Normal(np.zeros(2), np.array([[1.0, 0.1], [0.1, 1.0]])), None, "independent coordinates"),
        (Normal(np.zeros(2), np.eye(2)), [0, 2], "count from 0 without gaps"),
        (Normal(np.zeros(2), np.eye(2)), [0, 1, 1], r"groups must be \[2\]"),
        (IsotropicNormal(np.zeros(2), np.array(1.0)), [0, 1], "IsotropicNormal has one variance"),
    ],
)
def test_priors_and_groups_that_do_not_go_together_are_refused(prior, groups, message):
    model = linear.BayesianLinearRegression(2, family=type(prior))
    clients = pvi.make_clients(model, [(np.eye(2), np.ones((2, 1)))], pvi.FixedPointUpdate())
    with pytest.raises(InvalidDataError, match=message):
        pvi.PriorVariance(groups=groups).learn(pvi.Server(prior, clients))
