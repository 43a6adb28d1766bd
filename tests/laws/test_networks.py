"""Networks of given weights: layer by layer against NumPy, many at once against one at a time."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import bnn, pvi, samplers
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal

SINGLE = 2e-5
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
    np.testing.assert_allclose(net.outputs(tf.constant(theta), X), expected, atol=10 * SINGLE)


def test_layers_with_tanh_between_are_what_they_say(rng):
    layers = [bnn.Dense(2), bnn.Dense(1)]
    net = bnn.Network([3], layers, gpflow.likelihoods.Gaussian(), activation="tanh")
    theta, X = rng.standard_normal((1, 11)).astype(np.float32), np.eye(3, dtype=np.float32)
    h = np.tanh(X @ theta[0, :6].reshape(3, 2) + theta[0, 6:8])
    expected = h @ theta[0, 8:10, None] + theta[0, 10]
    np.testing.assert_allclose(net.outputs(tf.constant(theta), X)[0], expected, atol=10 * SINGLE)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_many_networks_are_so_many_single_ones(rng, make):
    net = make()
    theta, (X, Y) = draws(net, rng), data_of(net, rng)
    together = net.log_likelihood(tf.constant(theta), X, Y)
    alone = [net.log_likelihood(tf.constant(one[None]), X, Y)[0] for one in theta]
    np.testing.assert_allclose(together, alone, rtol=SINGLE)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_the_log_likelihood_is_that_of_the_likelihood(rng, make):
    """By the quick way for Softmax, and by GPflow's own for any other."""
    net = make()
    theta, (X, Y) = draws(net, rng), data_of(net, rng)
    F = tf.cast(net.outputs(tf.constant(theta), X), tf.float64)
    expected = [tf.reduce_sum(net.likelihood.log_prob(X, f, tf.cast(Y, tf.int32))) for f in F]
    np.testing.assert_allclose(net.log_likelihood(tf.constant(theta), X, Y), expected, rtol=SINGLE)
    other = make(gpflow.likelihoods.Gaussian(0.3))
    targets = rng.standard_normal((5, 4)).astype(np.float32)
    expected = [tf.reduce_sum(other.likelihood.log_prob(X, f, targets)) for f in F]
    found = other.log_likelihood(tf.constant(theta), X, targets)
    np.testing.assert_allclose(found, expected, rtol=SINGLE)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_gradients_are_those_of_differences_also_where_compiled(rng, make):
    net = make(gpflow.likelihoods.Gaussian(0.3))
    X, Y = data_of(net, rng)[0], rng.standard_normal((5, 4)).astype(np.float32)
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
    np.testing.assert_allclose(net.predict_by(theta, X), np.mean(each, axis=0), atol=SINGLE)
    logits = net.outputs(tf.constant(theta[:1]), tf.constant(X, tf.float32))[0]
    np.testing.assert_allclose(each[0], tf.nn.softmax(logits), atol=SINGLE)
    np.testing.assert_allclose(each[0].sum(axis=1), 1.0, atol=SINGLE)


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
    server = pvi.Server(net.prior(), pvi.make_clients(net, shards, rule), checks=checks)
    server.warm_start(net.initial(0))
    history = pvi.fit(server, pvi.Asynchronous(damping=damping), rounds)
    assert not history[-1].refused
    predicted = net.predict_by(np.asarray(server.posterior.mean)[None], shards[0][0])
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
    with pytest.raises(InvalidDataError, match=r"must be .*positive.*, got"):
        make(wrong)


def test_sizes_of_inputs_are_positive_integers():
    with pytest.raises(InvalidDataError, match="input_shape must be a positive integer, got '4'"):
        bnn.Network(("4", 4, 1), [bnn.Dense(3)], gpflow.likelihoods.Softmax(3))
