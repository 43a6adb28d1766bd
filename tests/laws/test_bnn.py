"""Mean-field networks: exact where they are linear, held to drawn weights elsewhere."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import bnn, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from tests.conftest import STANDARD_ERRORS

SINGLE = 2e-4
"""What float32 leaves of sums over tens of terms."""


BETWEEN = {"relu": lambda a: np.maximum(a, 0.0), "tanh": np.tanh}


def network(likelihood=None, sizes=(3, 4, 2), **settings):
    return bnn.MeanFieldBNN(sizes, likelihood or gpflow.likelihoods.Gaussian(0.1), **settings)


def somewhere(net, rng):
    mean = 0.5 * rng.standard_normal(net.num_parameters)
    variance = rng.uniform(0.01, 0.3, net.num_parameters)
    return MeanFieldNormal.from_mean_variance(
        mean.astype(np.float32), variance.astype(np.float32)
    ).as_arrays()


def with_drawn_weights(net, q, X, num, rng):
    """Outputs [S, N, L] of networks whose weights are drawn, not their activations."""
    theta = q.mean + np.sqrt(q.variance) * rng.standard_normal((num, net.num_parameters))
    h, start = np.broadcast_to(X, (num, *X.shape)), 0
    for m, n in zip(net.sizes[:-1], net.sizes[1:], strict=True):
        W = theta[:, start : start + m * n].reshape(num, m, n)
        b = theta[:, start + m * n : start + (m + 1) * n]
        a = h @ W + b[:, None]
        h, start = BETWEEN[net.activation](a), start + (m + 1) * n
    return a


@pytest.mark.parametrize("activation", BETWEEN)
def test_drawn_activations_have_the_moments_of_drawn_weights(activation, rng):
    net = network(activation=activation)
    q, X = somewhere(net, rng), rng.standard_normal((5, 3)).astype(np.float32)
    drawn = net.functions(q, tf.constant(X), tf.constant([1, 2]), 40_000).numpy()
    weights = with_drawn_weights(net, q, X, 40_000, rng)
    error = np.sqrt(drawn.var(0) / len(drawn) + weights.var(0) / len(weights))
    difference = np.abs(drawn.mean(0) - weights.mean(0))
    assert (difference < STANDARD_ERRORS * error).all()
    np.testing.assert_allclose(drawn.var(0), weights.var(0), rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "labels"),
    [(gpflow.likelihoods.Softmax(3), 3), (gpflow.likelihoods.Gaussian(0.2), None)],
)
def test_the_expected_log_likelihood_is_unbiased(rng, likelihood, labels):
    net = network(likelihood, (3, 4, 3))
    q, X = somewhere(net, rng), rng.standard_normal((6, 3)).astype(np.float32)
    Y = rng.standard_normal((6, 3)) if labels is None else rng.integers(0, labels, (6, 1))
    X, Y = net.as_data(X, Y)
    estimates = [
        net.expected_log_likelihood(q, tf.constant(X), tf.constant(Y), tf.constant([s, 0])).numpy()
        for s in range(400)
    ]
    F = tf.constant(with_drawn_weights(net, q, X, 4000, rng).reshape(-1, 3))
    many = tf.constant(np.tile(Y, (4000, 1)), tf.float64 if labels is None else tf.int32)
    drawn = likelihood.log_prob(tf.zeros([len(F), 0]), F, many).numpy().reshape(4000, 6).sum(1)
    error = np.sqrt(np.var(estimates) / 400 + np.var(drawn) / 4000)
    assert abs(np.mean(estimates) - np.mean(drawn)) < STANDARD_ERRORS * error


def test_more_samples_change_the_spread_and_not_the_scale(rng):
    one, many = network(), network(num_samples=50)
    q, X = somewhere(one, rng), rng.standard_normal((6, 3)).astype(np.float32)
    X, Y = one.as_data(X, rng.standard_normal((6, 2)))

    def estimates(net):
        seeds = (tf.constant([s, 1]) for s in range(100))
        return np.array([net.expected_log_likelihood(q, X, Y, seed).numpy() for seed in seeds])

    few, better = estimates(one), estimates(many)
    error = np.sqrt(few.var() / len(few) + better.var() / len(better))
    assert abs(few.mean() - better.mean()) < STANDARD_ERRORS * error
    assert better.std() < 0.4 * few.std()


def test_without_hidden_layers_it_is_the_linear_model(rng):
    """Adam on the network reaches the mean-field optimum that L-BFGS finds for the linear model."""
    X = rng.standard_normal((80, 2))
    Y = X @ np.array([[1.0], [-0.5]]) + 0.2 + 0.3 * rng.standard_normal((80, 1))
    net = network(gpflow.likelihoods.Gaussian(0.09), (2, 1), num_samples=50)
    update = pvi.VariationalUpdate(epochs=600, batch_size=80, learning_rate=0.02)
    found = pvi.Server(net.prior(), pvi.make_clients(net, [(X, Y)], update))
    pvi.fit(found)
    with_bias = np.concatenate([X, np.ones((80, 1))], 1)
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    exact = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
    optimum = pvi.Server(model.prior(), pvi.make_clients(model, [(with_bias, Y)], exact))
    pvi.fit(optimum)
    sd = np.sqrt(optimum.posterior.variance)
    np.testing.assert_allclose(found.posterior.mean, optimum.posterior.mean, atol=0.2 * sd.min())
    np.testing.assert_allclose(np.sqrt(found.posterior.variance), sd, rtol=0.05)


@pytest.mark.parametrize(
    "optimiser",
    [
        pytest.param(pvi.Adam(0.02), marks=pytest.mark.slow),
        pvi.VariationalOnlineNewton(0.1, 0.02),
    ],
)
def test_both_optimisers_raise_the_free_energy(rng, optimiser):
    X = rng.standard_normal((200, 2))
    Y = (X[:, :1] * X[:, 1:] > 0.0).astype(float)
    net = network(gpflow.likelihoods.Softmax(2), (2, 20, 2))
    update = pvi.VariationalUpdate(epochs=60, batch_size=50, optimiser=optimiser)
    found = pvi.Server(net.prior(), pvi.make_clients(net, [(X, Y)], update))
    history = pvi.fit(found)
    probability = net.predict(found.posterior, X, num_samples=50)
    assert np.mean(probability.argmax(1) != Y[:, 0]) < 0.15
    assert np.isfinite(history[-1].free_energy)


def test_a_fit_under_a_cavity_improper_in_a_few_coordinates_is_usable(rng):
    net = network(sizes=(2, 3, 1))
    X = rng.standard_normal((40, 2))
    X, Y = net.as_data(X, X[:, :1])
    q = net.initial(0)
    precision = np.zeros_like(q.precision)
    precision[:3] = q.precision[:3] + 5.0
    own = Factor(MeanFieldNormal, (precision * q.mean, precision))  # more than the posterior has
    task = pvi.LocalTask(net, (X, Y), q, own, q, seed=1)
    assert not task.cavity.is_proper
    result = pvi.VariationalUpdate(epochs=20, batch_size=20)(task)
    assert np.isfinite(result.free_energy)
    assert (task.cavity * result.factor).is_proper


def test_predictions_are_probabilities_whatever_the_number_of_rows(rng):
    net = network(gpflow.likelihoods.Softmax(3), (3, 4, 3))
    q = somewhere(net, rng)
    X = rng.standard_normal((1003, 3))
    probability = net.predict(q, X, num_samples=20, seed=3)
    assert probability.shape == (1003, 3)
    np.testing.assert_allclose(probability.sum(1), 1.0, atol=SINGLE)
    np.testing.assert_array_equal(probability, net.predict(q, X, num_samples=20, seed=3))
    labels = rng.integers(0, 3, (1003, 1))
    density = np.exp(net.predict_log_density(q, (X, labels), num_samples=20, seed=3))
    np.testing.assert_allclose(density, probability[np.arange(1003), labels[:, 0]], rtol=SINGLE)


@pytest.mark.parametrize(
    "q", [Normal(np.zeros(26), np.eye(26)), MeanFieldNormal(np.zeros(5), np.ones(5)), "posterior"]
)
@pytest.mark.parametrize("method", ["predict", "predict_log_density"])
@pytest.mark.parametrize("net", [network(), bnn.MomentNetwork(3, (4,))], ids=["draws", "moments"])
def test_posteriors_of_another_family_or_size_are_named(net, method, q):
    X = np.zeros((2, 3))
    given = X if method == "predict" else (X, np.zeros((2, 1)))
    with pytest.raises(InvalidDataError, match=r"wanted as posterior a MeanFieldNormal with .*got"):
        getattr(net, method)(q, given)


def test_prior_and_start_have_one_entry_for_each_weight_and_bias():
    net = network(sizes=(784, 200, 10), likelihood=gpflow.likelihoods.Softmax(10))
    assert net.num_parameters == 785 * 200 + 201 * 10
    prior, start = net.prior(), net.initial(4)
    assert prior.precision.shape == start.precision.shape == (159_010,)
    assert start.precision_mean.dtype == np.float32
    np.testing.assert_array_equal(start.mean, net.initial(4).mean)
    assert np.abs(start.mean[: 784 * 200]).max() <= np.sqrt(6.0 / 984.0) * (1 + 1e-5)
    assert (np.asarray(start.mean)[784 * 200 : 785 * 200] == 0.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: network(sizes=(3,)), "two or more positive integers as sizes, got "),
        (lambda: network(sizes=(3, "2", 1)), r"positive integers as sizes, got \(3, '2', 1\)"),
        (lambda: network(sizes=(3, 2.5, 1)), "positive integers as sizes"),
        (lambda: network(sizes=(3, True, 1)), "positive integers as sizes"),
        (lambda: network(sizes="321"), "positive integers as sizes"),
        (lambda: network(num_samples=0), "num_samples"),
        (lambda: network(prior_variance=0.0), "must be positive"),
        (lambda: network(activation="step"), "activation must be in .*, got 'step'"),
        (lambda: network().as_data(np.zeros((4, 2)), np.zeros((4, 2))), "X must have shape"),
        (
            lambda: network(gpflow.likelihoods.Softmax(2)).as_data(np.zeros((1, 3)), [[2]]),
            "class labels 0 to 1",
        ),
        (
            lambda: network(gpflow.likelihoods.Softmax(3)).as_data(np.zeros((1, 3)), [[2]]),
            "the network has 2 outputs, where its Softmax likelihood wants 3",
        ),
        (
            lambda: bnn.MultiHeadBNN((3, 4), 2, gpflow.likelihoods.Softmax(2)).as_data(
                np.zeros((1, 4)), [[1]]
            ),
            "the network has 4 outputs, where its Softmax likelihood wants 2",
        ),
        (lambda: network().predict(network().prior(), np.full((2, 3), np.nan)), "X must be finite"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidDataError, match=message):
        make()
