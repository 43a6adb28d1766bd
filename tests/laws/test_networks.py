"""Networks: against exact limits, NumPy, quadrature and draws."""

from functools import partial

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, linear, pvi, samplers
from streaming_gp.bnn.moment_network import relu_moments
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.updates import power_ep
from tests.laws import LBFGS, eager, slow
from tests.oracles.reference import assert_same, labelled_data, server, task_of
from tests.tolerances import ALGEBRA, STANDARD_ERRORS

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
        graph = tf.function(partial(net.expected_log_likelihood, q, X, Y), autograph=False)
        return np.array([graph(tf.constant([s, 1])).numpy() for s in range(60)])

    few, better = estimates(one), estimates(many)
    error = np.sqrt(few.var() / len(few) + better.var() / len(better))
    assert abs(few.mean() - better.mean()) < STANDARD_ERRORS * error
    assert better.std() < 0.4 * few.std()


@pytest.mark.slow
def test_without_hidden_layers_it_is_the_linear_model(rng):
    """Adam on the network reaches the mean-field optimum that L-BFGS finds for the linear model."""
    X = rng.standard_normal((80, 2))
    Y = X @ np.array([[1.0], [-0.5]]) + 0.2 + 0.3 * rng.standard_normal((80, 1))
    net = network(gpflow.likelihoods.Gaussian(0.09), (2, 1), num_samples=50)
    update = pvi.VariationalUpdate(epochs=600, batch_size=80, learning_rate=0.02)
    found = server(net, [(X, Y)], update)
    pvi.fit(found)
    with_bias = np.concatenate([X, np.ones((80, 1))], 1)
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    optimum = server(model, [(with_bias, Y)], LBFGS)
    pvi.fit(optimum)
    sd = np.sqrt(optimum.posterior.variance)
    np.testing.assert_allclose(found.posterior.mean, optimum.posterior.mean, atol=0.2 * sd.min())
    np.testing.assert_allclose(np.sqrt(found.posterior.variance), sd, rtol=0.05)


@pytest.mark.parametrize(
    "optimiser", [slow(pvi.Adam(0.02)), pvi.VariationalOnlineNewton(0.1, 0.02)]
)
def test_both_optimisers_raise_the_free_energy(rng, optimiser):
    X = rng.standard_normal((200, 2))
    Y = (X[:, :1] * X[:, 1:] > 0.0).astype(float)
    net = network(gpflow.likelihoods.Softmax(2), (2, 20, 2))
    update = pvi.VariationalUpdate(epochs=40, batch_size=50, optimiser=optimiser)
    found = server(net, [(X, Y)], update)
    history = pvi.fit(found)
    probability = net.predict(found.posterior, X, num_samples=50)
    assert np.mean(probability.argmax(1) != Y[:, 0]) < 0.15
    assert np.isfinite(history[-1].free_energy)


def test_by_lbfgs_it_stays_a_network_of_float32_from_round_to_round(rng):
    net = network(sizes=(2, 3, 1))
    X = rng.standard_normal((20, 2))
    found = server(net, [(X[::2], X[::2, :1]), (X[1::2], X[1::2, :1])], LBFGS)
    history = pvi.fit(found, rounds=2)
    assert [one.accepted for one in history] == [2, 2]
    assert found.posterior.precision.dtype == np.float32


@eager
def test_a_fit_under_a_cavity_improper_in_a_few_coordinates_is_usable(rng):
    net = network(sizes=(2, 3, 1))
    X = rng.standard_normal((20, 2))
    X, Y = net.as_data(X, X[:, :1])
    q = net.initial(0)
    precision = np.zeros_like(q.precision)
    precision[:3] = q.precision[:3] + 5.0
    own = Factor(MeanFieldNormal, (precision * q.mean, precision))  # more than the posterior has
    task = pvi.LocalTask(net, (X, Y), q, own, q, seed=1)
    assert not task.cavity.is_proper
    result = pvi.VariationalUpdate(epochs=5, batch_size=20)(task)
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
        (
            lambda: bnn.MeanFieldBNN((3, 4, 1), gpflow.likelihoods.Gaussian()).as_data(
                np.zeros((5, 3)), np.zeros((5, 2))
            ),
            r"Y must have shape \[N, 1\] with N ≥ 1, got \[5, 2\]",
        ),
        (
            lambda: bnn.MeanFieldBNN((3, 4, 2), gpflow.likelihoods.Bernoulli()).as_data(
                np.zeros((5, 3)), np.zeros((5, 1))
            ),
            r"Y must have shape \[N, 2\] with N ≥ 1, got \[5, 1\]",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidDataError, match=message):
        make()


FLOAT32 = 2e-5
"""What float32 leaves, relative to the largest number."""


def convolutional(likelihood=None, **settings):
    layers = [bnn.Convolution(3, size=3), bnn.MaxPool(2), bnn.Convolution(2, size=1), bnn.Dense(4)]
    return bnn.Network((4, 6, 2), layers, likelihood or gpflow.likelihoods.Softmax(4), **settings)


def dense(likelihood=None, **settings):
    return bnn.MeanFieldBNN((48, 5, 4), likelihood or gpflow.likelihoods.Softmax(4), **settings)


def draws(net, rng, num=3):
    return 0.5 * rng.standard_normal((num, net.num_parameters)).astype(np.float32)


def data_of(net, rng, rows=5):
    return net.as_data(rng.standard_normal((rows, 48)), rng.integers(0, 4, (rows, 1)))


def by_hand(theta, X):
    """Outputs of the convolutional network of these weights."""
    kernel, bias = theta[:54].reshape(3, 3, 2, 3), theta[54:57]
    images = np.pad(X.reshape(-1, 4, 6, 2), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    h = np.maximum(np.einsum("nyxcij,ijcf->nyxf", windows, kernel) + bias, 0.0)
    h = h.reshape(-1, 2, 2, 3, 2, 3).max(axis=(2, 4))
    h = np.maximum(h @ theta[57:63].reshape(3, 2) + theta[63:65], 0.0)
    return h.reshape(len(X), -1) @ theta[65:113].reshape(12, 4) + theta[113:]


def test_a_convolutional_network_is_what_its_layers_say(rng):
    net = convolutional()
    theta, (X, _) = draws(net, rng), data_of(net, rng)
    assert net.num_parameters == theta.shape[1] == 117
    expected = np.stack([by_hand(one, X) for one in theta])
    np.testing.assert_allclose(net.outputs(tf.constant(theta), X), expected, atol=10 * FLOAT32)


def test_layers_with_tanh_between_are_what_they_say(rng):
    layers = [bnn.Dense(2), bnn.Dense(1)]
    net = bnn.Network([3], layers, gpflow.likelihoods.Gaussian(), activation="tanh")
    theta, X = rng.standard_normal((1, 11)).astype(np.float32), np.eye(3, dtype=np.float32)
    h = np.tanh(X @ theta[0, :6].reshape(3, 2) + theta[0, 6:8])
    expected = h @ theta[0, 8:10, None] + theta[0, 10]
    np.testing.assert_allclose(net.outputs(tf.constant(theta), X)[0], expected, atol=10 * FLOAT32)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_many_networks_are_so_many_single_ones(rng, make):
    net = make()
    theta, (X, Y) = draws(net, rng), data_of(net, rng)
    together = net.log_likelihood(tf.constant(theta), X, Y)
    alone = [net.log_likelihood(tf.constant(one[None]), X, Y)[0] for one in theta]
    np.testing.assert_allclose(together, alone, rtol=FLOAT32)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_the_log_likelihood_is_that_of_the_likelihood(rng, make):
    """By the quick way for Softmax, and by GPflow's own for any other."""
    net = make()
    theta, (X, Y) = draws(net, rng), data_of(net, rng)
    F = tf.cast(net.outputs(tf.constant(theta), X), tf.float64)
    expected = [tf.reduce_sum(net.likelihood.log_prob(X, f, tf.cast(Y, tf.int32))) for f in F]
    np.testing.assert_allclose(net.log_likelihood(tf.constant(theta), X, Y), expected, rtol=FLOAT32)
    other = make(gpflow.likelihoods.Gaussian(0.3))
    targets = rng.standard_normal((5, 4)).astype(np.float32)
    expected = [tf.reduce_sum(other.likelihood.log_prob(X, f, targets)) for f in F]
    found = other.log_likelihood(tf.constant(theta), X, targets)
    np.testing.assert_allclose(found, expected, rtol=FLOAT32)


def test_gradients_are_those_of_differences_also_where_compiled(rng):
    net = convolutional(gpflow.likelihoods.Gaussian(0.3))
    X, Y = data_of(convolutional(), rng)[0], rng.standard_normal((5, 4)).astype(np.float32)
    theta, direction = draws(net, rng, 1), draws(net, rng, 1)

    @tf.function(jit_compile=True)
    def slope(theta):
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = net.log_likelihood(theta, X, Y)[0]
        return tf.reduce_sum(tape.gradient(value, theta) * direction)

    both = tf.constant(np.concatenate([theta + 1e-3 * direction, theta - 1e-3 * direction]))
    up, down = net.log_likelihood(both, X, Y).numpy().astype(float)
    np.testing.assert_allclose(slope(tf.constant(theta)), (up - down) / 2e-3, rtol=0.02)


def test_the_mean_prediction_is_the_mean_of_predictions(rng):
    net = convolutional()
    theta, X = draws(net, rng), rng.standard_normal((1002, 48))
    each = [net.predict_by(one[None], X) for one in theta]
    np.testing.assert_allclose(net.predict_by(theta, X), np.mean(each, axis=0), atol=FLOAT32)
    logits = net.outputs(tf.constant(theta[:1]), tf.constant(X, tf.float32))[0]
    np.testing.assert_allclose(each[0], tf.nn.softmax(logits), atol=FLOAT32)
    np.testing.assert_allclose(each[0].sum(axis=1), 1.0, atol=FLOAT32)


def test_a_narrow_posterior_predicts_as_its_mean(rng):
    for net in (dense(), convolutional()):
        theta, (X, Y) = draws(net, rng, 1), data_of(net, rng)
        q = MeanFieldNormal.from_mean_variance(theta[0], np.full_like(theta[0], 1e-10))
        expected = net.predict_by(theta, X)
        np.testing.assert_allclose(net.predict(q, X, num_samples=3), expected, atol=1e-3)
        density = np.log(expected[np.arange(5), Y[:, 0].astype(int)])
        np.testing.assert_allclose(net.predict_log_density(q, (X, Y), 3), density, atol=1e-2)


def test_fits_start_within_the_limits_of_glorot_and_bengio():
    net = convolutional()
    mean = np.asarray(net.initial(3).mean)
    limit = np.sqrt(6.0 / (9 * 2 + 9 * 3))
    assert 0.8 * limit < np.abs(mean[:54]).max() <= limit * (1.0 + 1e-5)
    assert (mean[54:57] == 0.0).all()
    assert (mean[113:] == 0.0).all()


SNEP = pvi.SNEPUpdate(
    samplers.AdaptiveSGLD(0.01, batch_size=50), beta=0.5, learning_rate=0.1, min_variance=1e-2
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "rounds", "damping"),
    [
        (pvi.VariationalUpdate(epochs=20, batch_size=50, learning_rate=0.02), 3, None),
        (SNEP, 30, 1.0),
    ],
    ids=["variational inference", "SNEP"],
)
def test_a_convolutional_network_learns_which_half_is_bright(rng, rule, rounds, damping):
    """Asynchronously."""
    side = rng.integers(0, 2, (200, 1))
    X = rng.standard_normal((200, 4, 6, 2))
    X[:, :, :3] += 1.5 * side[:, :, None, None]
    shards = [(X[k::2].reshape(100, 48), side[k::2]) for k in range(2)]
    net = convolutional(initial_scale=0.1)
    checks = pvi.Checks(max_shift=np.inf, max_precision_loss=np.inf)
    found = server(net, shards, rule, checks=checks)
    found.warm_start(net.initial(0))
    history = pvi.fit(found, pvi.Asynchronous(damping=damping), rounds)
    assert not history[-1].refused
    predicted = net.predict_by(np.asarray(found.posterior.mean)[None], shards[0][0])
    assert np.mean(predicted.argmax(1) != shards[0][1][:, 0]) < 0.1


@pytest.mark.parametrize(
    ("shape", "layers", "message"),
    [
        ((48,), [bnn.Convolution(3)], "wants images"),
        ((5, 6, 1), [bnn.MaxPool(2)], "does not divide images of 5 by 6"),
        ((4, 4, 1), [bnn.Dense(3), bnn.MaxPool(2)], "wants images"),
        ((4, 4, 1), [], "at least one layer"),
    ],
)
def test_layers_that_do_not_fit_are_refused(shape, layers, message):
    with pytest.raises(InvalidDataError, match=message):
        bnn.Network(shape, layers, gpflow.likelihoods.Softmax(3))


@pytest.mark.parametrize("wrong", ["2", 2.0, True, 0, None])
@pytest.mark.parametrize(
    "make", [bnn.Dense, bnn.Convolution, lambda n: bnn.Convolution(3, n), bnn.MaxPool]
)
def test_sizes_of_layers_are_positive_integers(make, wrong):
    with pytest.raises(InvalidDataError, match=r"must be (an integer|.*positive.*), got"):
        make(wrong)


def test_sizes_of_inputs_are_positive_integers():
    with pytest.raises(InvalidDataError, match=r"positive integers as input_shape, got .'4', 4"):
        bnn.Network(("4", 4, 1), [bnn.Dense(3)], gpflow.likelihoods.Softmax(3))


NOISE = 0.09


@pytest.fixture
def noisy():
    return bnn.NoisyMomentNetwork(2, (4,), NOISE, noise_spread=0.7)


@pytest.fixture
def q(noisy, rng):
    size = noisy.num_parameters
    mean = np.append(rng.standard_normal(size - 1), -1.5)
    return MeanFieldNormal.from_mean_variance(mean, np.append(np.full(size - 1, 0.3), 0.4))


def over_log_noise(function, mean=-1.5, variance=0.4):
    """The expectation, by adaptive quadrature."""
    return scipy.integrate.quad(
        lambda s: scipy.stats.norm.pdf(s, mean, np.sqrt(variance)) * function(np.exp(s)),
        mean - 10.0, mean + 10.0, epsabs=0.0, epsrel=1e-11,
    )[0]  # fmt: skip


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_log_tilted_is_the_integral_over_output_and_noise(noisy, q, alpha):
    x, y = np.array([0.5, -1.0]), np.array([0.2])
    mean, variance = (float(moment[0, 0]) for moment in noisy.predictor(q, x[None]))

    def power(noise):  # of N(y; f, σ²), which is a Gaussian of variance σ²/α and a constant
        constant = (2.0 * np.pi * noise) ** (0.5 * (1.0 - alpha)) / np.sqrt(alpha)
        return constant * scipy.stats.norm.pdf(0.2, mean, np.sqrt(variance + noise / alpha))

    wanted = np.log(over_log_noise(power))
    np.testing.assert_allclose(noisy.log_tilted(q, x, y, alpha), wanted, rtol=1e-6)


def test_the_expected_log_likelihood_is_that_of_outputs_and_noise(noisy, q, rng):
    X, Y = rng.standard_normal((3, 2)), rng.standard_normal((3, 1))
    mean, variance = (moment.numpy() for moment in noisy.predictor(q, X))
    squared = np.sum((Y - mean) ** 2 + variance)
    wanted = over_log_noise(
        lambda noise: -0.5 * (3.0 * np.log(2.0 * np.pi * noise) + squared / noise)
    )
    found = noisy.expected_log_likelihood(q, X, Y, seed=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_predictions_average_over_the_noise(noisy, q, rng):
    X, Y = rng.standard_normal((3, 2)), rng.standard_normal((3, 1))
    f_mean, f_variance = (moment.numpy() for moment in noisy.predictor(q, X))
    mean, variance = noisy.predict(q, X)
    np.testing.assert_array_equal(mean, f_mean)
    np.testing.assert_allclose(variance, f_variance + over_log_noise(lambda s: s), rtol=1e-8)
    for row, found in enumerate(noisy.predict_log_density(q, (X, Y))):
        point = Y[row, 0], f_mean[row, 0], f_variance[row, 0]
        wanted = over_log_noise(
            lambda s, p=point: scipy.stats.norm.pdf(p[0], p[1], np.sqrt(p[2] + s))
        )
        np.testing.assert_allclose(found, np.log(wanted), rtol=1e-6)
        np.testing.assert_allclose(noisy.log_tilted(q, X[row], Y[row], 1.0), found, rtol=1e-9)


@pytest.mark.slow
def test_a_noise_that_is_known_gives_what_the_network_without_learning_gives(rng):
    """The limit of a narrow prior, in a pass of EP."""
    X, Y = rng.standard_normal((6, 2)), rng.standard_normal((6, 1))
    known = bnn.MomentNetwork(2, (), NOISE)
    narrow = bnn.NoisyMomentNetwork(2, (), NOISE, noise_spread=1e-5)
    update = pvi.PowerEPUpdate(sweeps=1, damping=1.0, sequential=True)
    wanted = known.prior().times([update(task_of(known, X, Y)).factor])
    found = narrow.prior().times([update(task_of(narrow, X, Y)).factor])
    np.testing.assert_allclose(found.mean[:-1], wanted.mean, rtol=1e-6)
    np.testing.assert_allclose(found.variance[:-1], wanted.variance, rtol=1e-6)
    np.testing.assert_allclose(found.mean[-1], np.log(NOISE), atol=1e-6)


@pytest.mark.parametrize(
    "update",
    [
        pvi.PowerEPUpdate(sweeps=5, damping=1.0, sequential=True),
        slow(pvi.StochasticEPUpdate(steps=1000, damping=1 / 100, batch_size=1)),
    ],
)
def test_the_noise_of_a_linear_model_is_found(rng, update):
    """The posterior of log σ² has a standard deviation of √(2/N)."""
    X = rng.standard_normal((100, 1))
    Y = 0.5 * X + 0.3 * rng.standard_normal((100, 1))
    model = bnn.NoisyMomentNetwork(1, ())
    q = model.prior().times([update(task_of(model, X, Y)).factor])
    residual = Y - np.polynomial.Polynomial.fit(X[:, 0], Y[:, 0], 1)(X)
    empirical = np.log(np.mean(residual**2))
    assert abs(q.mean[-1] - empirical) < np.sqrt(2.0 / 100)
    assert 0.5 < np.sqrt(q.variance[-1]) / np.sqrt(2.0 / 100) < 1.5


def test_a_spread_that_is_not_positive_ends_with_one_line():
    with pytest.raises(InvalidDataError, match="noise_spread"):
        bnn.NoisyMomentNetwork(2, noise_spread=0.0)


def test_there_is_nothing_beside_q_to_learn(noisy):
    assert noisy.trainable_variables == ()
    assert noisy.num_parameters == len(noisy.prior().mean)


def regression(rng, number=30):
    X = rng.standard_normal((number, 2))
    return X, np.sin(2.0 * X[:, :1]) + 0.3 * rng.standard_normal((number, 1))


def some_q(model, rng, variance=0.3):
    mean = rng.standard_normal(model.num_parameters)
    return MeanFieldNormal.from_mean_variance(mean, variance * rng.uniform(0.5, 1.5, len(mean)))


# ---- the forward pass ----


@pytest.mark.parametrize("r", [-6.0, -1.0, 0.0, 0.4, 3.0, 8.0])
def test_relu_moments_are_integrals(r):
    sd = 0.7
    found = relu_moments(tf.constant(r * sd, tf.float64), tf.constant(sd**2, tf.float64))

    def moment(power):
        def integrand(a):
            return (sd * (r + a)) ** power * scipy.stats.norm.pdf(a)

        options = {"epsabs": 0.0, "epsrel": 1e-12, "limit": 500}
        return scipy.integrate.quad(integrand, -r, -r + 40.0, **options)[0]

    mean = moment(1)
    np.testing.assert_allclose(found[0], mean, rtol=1e-9)
    np.testing.assert_allclose(found[1], moment(2) - mean**2, rtol=1e-7)


@pytest.mark.parametrize("r", [30.0, 1e4, 1e8])
def test_a_unit_that_is_surely_active_passes_its_moments_on(r):
    found = relu_moments(tf.constant(r, tf.float64), tf.constant(1.0, tf.float64))
    np.testing.assert_allclose(found, [r, 1.0], rtol=1e-14)


@pytest.mark.parametrize("r", [-10.0, -20.0, -30.0])
def test_moments_of_a_unit_that_is_hardly_ever_active_keep_their_digits(r):
    """Of the series of Mills' ratio: sd φ(r) / r² (1 − 3/r² + 15/r⁴), and twice that over |r|."""
    found = relu_moments(tf.constant(r, tf.float64), tf.constant(1.0, tf.float64))
    density = scipy.stats.norm.pdf(r)
    mean = density / r**2 * (1.0 - 3.0 / r**2 + 15.0 / r**4 - 105.0 / r**6)
    variance = 2.0 * density / abs(r) ** 3 * (1.0 - 6.0 / r**2 + 45.0 / r**4)
    np.testing.assert_allclose(found[0], mean, rtol=1000.0 / r**8)
    np.testing.assert_allclose(found[1], variance, rtol=500.0 / r**6)


@pytest.mark.parametrize("r", [-1e8, -1e3, -30.0, 30.0, 1e3, 1e8])
def test_gradients_are_finite_however_sure_a_unit_is(r):
    given = tf.constant(r, tf.float64), tf.constant(1.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.add_n(relu_moments(*given))
    by_mean, by_variance = tape.gradient(total, given)
    np.testing.assert_allclose(by_mean, float(r > 0), atol=1e-12)
    np.testing.assert_allclose(by_variance, float(r > 0), atol=1e-12)


def drawn_outputs(model, q, X, num, rng):
    """Of networks with drawn weights, by NumPy: [S, N]."""
    theta = rng.normal(q.mean, np.sqrt(q.variance), (num, model.num_parameters))
    h, start = np.broadcast_to(X, (num, *X.shape)), 0
    for m, n in zip(model.sizes[:-1], model.sizes[1:], strict=True):
        W = theta[:, start : start + (m + 1) * n].reshape(num, m + 1, n)
        h = (h if start == 0 else np.maximum(h, 0.0)) @ W[:, :-1] + W[:, -1:]
        h, start = h / np.sqrt(m + 1), start + (m + 1) * n
    return h[..., 0]


def test_with_one_hidden_layer_moments_are_those_of_drawn_networks(rng):
    """Hidden units are independent there, so that nothing is neglected."""
    model, num = bnn.MomentNetwork(2, (4,), NOISE), 200_000
    q, X = some_q(model, rng), rng.standard_normal((3, 2))
    mean, variance = (moment.numpy()[:, 0] for moment in model.predictor(q, X))
    drawn = drawn_outputs(model, q, X, num, rng)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(variance.max() / num))
    centred = (drawn - drawn.mean(0)) ** 2
    np.testing.assert_array_less(np.abs(centred.mean(0) - variance), 5 * centred.std(0) / num**0.5)


def test_with_two_hidden_layers_the_mean_of_sure_networks_is_that_of_their_means(rng):
    model = bnn.MomentNetwork(2, (4, 3), NOISE)
    q, X = some_q(model, rng, 1e-12), rng.standard_normal((5, 2))
    drawn = drawn_outputs(model, q, X, 1, rng)
    np.testing.assert_allclose(model.predictor(q, X)[0][:, 0], drawn[0], atol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_log_tilted_is_the_integral_over_the_output(rng, alpha):
    model = bnn.MomentNetwork(2, (4,), NOISE)
    q, x, y = some_q(model, rng), np.array([0.5, -1.0]), np.array([0.2])
    mean, variance = (float(moment[0, 0]) for moment in model.predictor(q, x[None]))
    f = mean + np.sqrt(variance) * np.linspace(-12.0, 12.0, 20_001)
    log_power = alpha * scipy.stats.norm.logpdf(0.2, f, np.sqrt(NOISE))
    density = scipy.stats.norm.pdf(f, mean, np.sqrt(variance)) * np.exp(log_power)
    wanted = np.log(scipy.integrate.trapezoid(density, f))
    np.testing.assert_allclose(model.log_tilted(q, x, y, alpha), wanted, rtol=1e-8)


def test_predictions_are_of_y(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (4,), NOISE), regression(rng)
    q = some_q(model, rng)
    mean, variance = model.predict(q, X)
    np.testing.assert_allclose(variance, model.predictor(q, X)[1] + NOISE, rtol=ALGEBRA)
    wanted = scipy.stats.norm.logpdf(Y, mean, np.sqrt(variance))[:, 0]
    np.testing.assert_allclose(model.predict_log_density(q, (X, Y)), wanted, rtol=1e-9)
    for x, y, log_density in zip(X[:3], Y[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(model.log_tilted(q, x, y, 1.0), log_density, rtol=1e-9)


# ---- learning ----


SEQUENTIAL = pvi.PowerEPUpdate(sweeps=1, damping=1.0, sequential=True)


def one_weight_at_a_time(rng, number=12):
    """Inputs that are zero but for one entry, without bias: then a mean-field q is exact."""
    X = np.eye(3)[rng.integers(0, 3, number)]
    return X, rng.standard_normal((number, 1))


@pytest.mark.parametrize(
    "update",
    [
        slow(SEQUENTIAL),
        pvi.PowerEPUpdate(0.5, 1, 1.0, sequential=True),
        slow(pvi.AssumedDensityUpdate()),
    ],
)
def test_of_a_linear_model_with_separate_weights_one_pass_is_exact(rng, update):
    X, Y = one_weight_at_a_time(rng)
    model = linear.BayesianLinearRegression(3, NOISE, family=MeanFieldNormal)
    full = linear.BayesianLinearRegression(3, NOISE)
    wanted = full.prior().as_factor() * full.likelihood_factor(X, Y)
    found = update(task_of(model, X, Y))
    q = model.prior().times([found.factor])
    np.testing.assert_allclose(q.mean, wanted.normalised().mean, rtol=1e-9)
    np.testing.assert_allclose(q.variance, wanted.normalised().variance, rtol=1e-9)
    np.testing.assert_allclose(found.free_energy, wanted.log_integral(), rtol=1e-9)


def test_without_hidden_layers_a_datum_gives_the_posterior_of_linear_regression(rng):
    """Its marginals: the first datum's projection is exact."""
    model, (X, Y) = bnn.MomentNetwork(2, (), NOISE), regression(rng, 1)
    prior = model.prior()
    q = prior.times([prior.moment_match(lambda p: model.log_tilted(p, X[0], Y[0], 1.0))])
    row = np.append(X[0], 1.0) / np.sqrt(3.0)
    covariance = np.eye(3) - np.outer(row, row) / (row @ row + NOISE)
    mean = prior.mean + covariance @ row * (Y[0, 0] - row @ prior.mean) / NOISE
    np.testing.assert_allclose(q.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(q.variance, np.diag(covariance), rtol=1e-9)


def moments_by_hand(model, task, rows, passes, keeps):
    """EP, SEP and ADF of one datum after another: nothing but single moment matches.

    :param keeps: "all" sites, "one" or "none".
    """
    X, Y = task.data
    N = task.num_data
    q = task.posterior.as_factor()
    unit = q**0.0
    sites = dict.fromkeys(range(N), unit)
    shared = unit
    for row in rows.reshape(-1)[: passes * N]:
        old = {"all": sites[row], "one": shared, "none": unit}[keeps]
        x, y, cavity = X[row], Y[row], (q / old).normalised()
        new = cavity.moment_match(lambda p, x=x, y=y: model.log_tilted(p, x, y, 1.0))
        q = q / old * new
        if keeps == "one":
            fresh = shared ** (1.0 - 1.0 / N) * new ** (1.0 / N)
            q = task.posterior.as_factor() * fresh**N
            shared = fresh
        sites[row] = new
    return q


def updates(number, passes):
    return {
        "all": pvi.PowerEPUpdate(sweeps=passes, damping=1.0, sequential=True),
        "one": pvi.StochasticEPUpdate(steps=passes * number, damping=1.0 / number, batch_size=1),
        "none": pvi.AssumedDensityUpdate(passes),
    }


@pytest.fixture(scope="module")
def small_network():
    """One model, whose loops are compiled once for each size of data."""
    return bnn.MomentNetwork(2, (3,), NOISE)


@pytest.mark.parametrize("keeps", ["all", *(slow(name) for name in ("one", "none"))])
def test_the_compiled_loop_is_one_moment_match_after_another(rng, small_network, keeps):
    model, (X, Y), passes = small_network, regression(rng, 4), 2
    task = task_of(model, X, Y)
    rows = power_ep.minibatches(task, 1, 8)
    if keeps == "all":
        rows = np.tile(rows[:4], (passes, 1))  # EP keeps to one order
    wanted = moments_by_hand(model, task, rows, passes, keeps)
    found = task.posterior.as_factor() * updates(4, passes)[keeps](task).factor
    assert_same(found, wanted, 1e-9)


@pytest.mark.slow
def test_sequential_and_parallel_sweeps_end_at_the_same_sites(rng):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    task = task_of(model, X, Y)
    parallel = pvi.PowerEPUpdate(sweeps=60, damping=0.7, filtered_start=False)(task)
    sequential = pvi.PowerEPUpdate(sweeps=30, damping=1.0, sequential=True)(task)
    assert_same(sequential.factor, parallel.factor, 1e-8)
    np.testing.assert_allclose(sequential.free_energy, parallel.free_energy, rtol=1e-9)


def test_stochastic_ep_keeps_one_site_where_ep_keeps_one_for_each_datum(
    rng, small_network, monkeypatch
):
    """Counted in the arrays that a sweep is given and gives back."""
    kept, sweep = [], power_ep.sweep

    def counting(step, task, factor, rows, sites=None):
        found = sweep(step, task, factor, rows, sites)
        kept.append([0 if one is None else size_of(one) for one in (found[0], found[1])])
        return found

    model, (X, Y) = small_network, regression(rng, 4)
    monkeypatch.setattr(power_ep, "sweep", counting)
    for keeps, passes in (("one", 2), ("all", 1)):  # power EP sweeps in each pass anew
        updates(4, passes)[keeps](task_of(model, X, Y))
    (shared, none), (_, sites) = kept
    assert shared == 2 * 8 * model.num_parameters
    assert none == 0
    assert sites == 4 * shared


def size_of(factor):
    return sum(np.asarray(eta).nbytes for eta in factor.natural)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["all", "one", "none"])
def test_a_network_learns_a_curve(rng, keeps):
    model, (X, Y) = bnn.MomentNetwork(2, (20,), NOISE), regression(rng, 200)
    found = server(model, [(X, Y)], updates(200, 10)[keeps])
    history = pvi.fit(found, pvi.Sequential(), 1)
    assert not history[-1].failed
    assert not history[-1].refused
    X_test, Y_test = regression(rng, 300)
    error = np.mean((model.predict(found.posterior, X_test)[0] - Y_test) ** 2)
    assert error < 2.0 * NOISE < 0.4 * Y_test.var()


@eager
def test_other_rules_take_the_network_as_well(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (5,), NOISE), regression(rng, 50)
    update = pvi.VariationalUpdate(epochs=10, batch_size=None, learning_rate=0.05)
    found = server(model, [(X, Y)], update)
    before = float(model.expected_log_likelihood(found.posterior, X, Y, None))
    pvi.fit(found, pvi.Sequential(), 1)
    assert float(model.expected_log_likelihood(found.posterior, X, Y, None)) > before
