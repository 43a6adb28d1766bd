"""Clipping row by row, sampling, and the scale of the noise."""

import gpflow
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, datasets, linear, losses, pvi
from streaming_gp.expfam import MeanFieldNormal, Normal
from streaming_gp.pvi import privacy
from streaming_gp.pvi.compiled import compiled_for
from streaming_gp.pvi.privacy.gradients import NoisyGradients, clipped_sum_of
from streaming_gp.pvi.privacy.rule import Draws, secure_draws, seeded_draws
from tests.oracles.reference import assert_same, labelled_data, server
from tests.tolerances import ALGEBRA, STANDARD_ERRORS

FREE = privacy.Budget(np.inf)
SEED = np.array([1, 2], np.int32)


def network():
    net = bnn.MeanFieldBNN([4, 5, 3], gpflow.likelihoods.Softmax(3), initial_scale=0.3)
    return net, net.initial(0)


def bounded():
    likelihood = gpflow.likelihoods.Softmax(3)
    net = bnn.MeanFieldBNN([4, 5, 3], likelihood, initial_scale=0.3, activation="tanh")
    return net, net.initial(0)


def many_heads():
    net = bnn.MultiHeadBNN([4, 5, 2], 2, gpflow.likelihoods.Softmax(2), initial_scale=0.3)
    return net, net.initial(0)


def rows(net, rng, number=6):
    X = rng.standard_normal((number, net.num_inputs))
    X[:, 0] = rng.integers(0, 2, number)
    return net.as_data(X, rng.integers(0, 2, (number, 1)))


def summed(model, q, X, Y, weights, clip, by_spread=1.0, loss=None):
    numbers = tf.convert_to_tensor(q.unconstrained())
    kind = numbers.dtype.as_numpy_dtype
    total = compiled_for(model, ("test", loss), lambda model: clipped_sum_of(model, loss))
    return total(type(q), numbers, X, Y, kind(weights), SEED, kind(clip), kind(by_spread)).numpy()


@pytest.mark.parametrize("make", [network, bounded, many_heads])
@pytest.mark.parametrize("loss", [None, losses.GammaLoss(1.2)])
def test_networks_clip_as_row_by_row(rng, make, loss):
    net, q = make()
    X, Y = rows(net, rng)
    numbers = tf.convert_to_tensor(q.unconstrained())
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        member = MeanFieldNormal.from_unconstrained(numbers)
        value = -net.expected_loss(member, X, Y, SEED, loss or losses.NegativeLogLikelihood())
    whole = tape.gradient(value, numbers)
    np.testing.assert_allclose(
        summed(net, q, X, Y, np.ones(6), np.inf, loss=loss), whole, rtol=1e-4, atol=1e-6
    )
    each = [summed(net, q, X, Y, row, np.inf, loss=loss) for row in np.eye(6)]
    norms = [np.linalg.norm(one) for one in each]
    clip = np.median(norms)
    wanted = sum(one * min(1.0, clip / norm) for one, norm in zip(each, norms, strict=True))
    found = summed(net, q, X, Y, np.ones(6), clip, loss=loss)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_without_spread_the_norm_is_that_of_means(rng):
    net, q = network()
    X, Y = rows(net, rng)
    for row in np.eye(6):
        whole, means = (summed(net, q, X, Y, row, np.inf, spread) for spread in (1.0, 0.0))
        assert not means[1].any()
        np.testing.assert_array_equal(means[0], whole[0])
        clip = 0.5 * np.linalg.norm(means)
        clipped = summed(net, q, X, Y, row, clip, 0.0)
        np.testing.assert_allclose(np.linalg.norm(clipped), clip, rtol=1e-5)


@pytest.mark.parametrize("make", [network, lambda: (None, None)])
def test_rows_whose_gradients_are_not_finite_count_as_zero(rng, make):
    model, q = make()
    if model is None:
        model = linear.logistic_regression(4, family=MeanFieldNormal)
        q = model.prior()
    X, Y = rows(model, rng) if model is not None else (None, None)
    clean = summed(model, q, X, Y, np.array([1, 1, 1, 1, 1, 0.0]), 1.0)
    X[5] = np.nan
    np.testing.assert_allclose(summed(model, q, X, Y, np.ones(6), 1.0), clean, rtol=1e-5, atol=1e-9)


def distance(model, q, one, others, clip):
    """How far the clipped sums of two data sets are apart, of which one has one row more."""
    X, Y = (np.concatenate(parts) for parts in zip(others, one, strict=True))
    without = np.r_[np.ones(len(X) - 1), 0.0]
    sums = [summed(model, q, X, Y, weights, clip) for weights in (np.ones(len(X)), without)]
    return float(np.linalg.norm(sums[0] - sums[1]))


@pytest.mark.parametrize("make", [network, lambda: None])
def test_no_row_that_a_search_finds_moves_the_sum_by_more_than_the_bound(rng, make):
    clip = 0.7
    model, q = make() or (linear.logistic_regression(4, family=MeanFieldNormal), None)
    q = q or model.prior()
    others = rows(model, rng, 4)
    largest = 0.0

    def moved(numbers):
        nonlocal largest
        X, Y = model.as_data(numbers[None, :4], np.array([[float(numbers[4] > 0.0)]]))
        largest = max(largest, distance(model, q, (X, Y), others, clip))
        return -largest

    scipy.optimize.differential_evolution(
        moved, [(-1e3, 1e3)] * 5, maxiter=6, popsize=4, seed=0, polish=False
    )
    assert 0.99 * clip < largest < clip * (1.0 + 1e-5)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_noise_has_the_scale_that_the_accountant_is_told(rng, rate):
    model = linear.logistic_regression(3000, family=MeanFieldNormal)
    X, Y = rng.standard_normal((20, 3000)), rng.integers(0, 2, (20, 1)).astype(float)
    q, clip, sigma = model.prior(), 0.4, 1.7

    def estimate(sigma):
        release = privacy.Release(sigma, rate)
        gradients = NoisyGradients(clip, release, seeded_draws(5), False)
        task = pvi.LocalTask(model, (X, Y), q, None, q, 0)
        return gradients(task, None, q).numpy()

    noise = (estimate(sigma) - estimate(0.0)) * rate / clip
    bound = STANDARD_ERRORS / np.sqrt(2.0 * noise.size)
    assert bound < 0.04, "else a factor of 1.1 would pass"
    np.testing.assert_allclose(noise.std(), sigma, rtol=bound)
    assert abs(noise.mean()) < STANDARD_ERRORS * sigma / np.sqrt(noise.size)


def test_secure_numbers_are_normal_and_never_the_same():
    draws, number = secure_draws(), 40_000
    one, other = draws.normal(number), draws.normal(number)
    assert scipy.stats.kstest(one, "norm").pvalue > 1e-6
    assert not np.intersect1d(one, other).size
    assert abs(np.corrcoef(one, other)[0, 1]) < STANDARD_ERRORS / np.sqrt(number)
    worst = Draws(lambda size: np.array([2.0**-53, 1.0 - 2.0**-53]))
    assert np.isfinite(worst.normal(2)).all()


def test_rows_are_sampled_alone_at_their_rate():
    draws, rate, runs = seeded_draws(1), 0.3, 4000
    taken = np.zeros((runs, 5))
    for run in taken:
        run[draws.sample(5, rate)] = 1.0
    error = np.sqrt(rate * (1.0 - rate) / runs)
    np.testing.assert_allclose(taken.mean(axis=0), rate, atol=STANDARD_ERRORS * error)
    off = np.corrcoef(taken.T) - np.eye(5)
    assert np.abs(off).max() < STANDARD_ERRORS / np.sqrt(runs)


RULES = {
    "adam": pvi.VariationalUpdate(epochs=8, batch_size=None, learning_rate=0.05),
    "newton": pvi.VariationalUpdate(
        epochs=8, batch_size=None, optimiser=pvi.VariationalOnlineNewton()
    ),
    "sgd": pvi.VariationalUpdate(epochs=8, batch_size=None, optimiser=pvi.SGD(1e-3)),
    "fixed point": pvi.FixedPointUpdate(steps=3, damping=0.5),
    "averaging": pvi.AveragingUpdate(1 / 3, pvi.VariationalUpdate(epochs=4, batch_size=None)),
    "split prior": pvi.SplitPriorUpdate(pvi.FixedPointUpdate(steps=2), 1 / 3),
}


@pytest.mark.parametrize("name", RULES)
def test_without_noise_and_clipping_the_rule_is_the_rule(rng, name):
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    rule, posteriors = RULES[name], []
    private = privacy.PrivateGradients(rule, budget=FREE, clip=np.inf, noise_multiplier=0.0)
    for each in (rule, private):
        found = server(model, shards, each)
        pvi.fit(found, pvi.Synchronous(), 1 if name == "split prior" else 3)
        posteriors.append(found.posterior)
    assert_same(*posteriors, ALGEBRA)


def test_without_noise_and_clipping_full_covariances_are_the_same_too(rng):
    model = linear.logistic_regression(3)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    posteriors = []
    rule = RULES["adam"]
    for each in (
        rule,
        privacy.PrivateGradients(rule, budget=FREE, clip=np.inf, noise_multiplier=0.0),
    ):
        found = server(model, shards, each)
        pvi.fit(found, rounds=2)
        posteriors.append(found.posterior)
    assert isinstance(posteriors[0], Normal)
    assert_same(*posteriors, ALGEBRA)


@pytest.mark.parametrize("rule", [RULES["adam"], pvi.FixedPointUpdate()])
def test_means_alone_move_and_spreads_stay(rng, rule):
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    private = privacy.PrivateGradients(
        rule, budget=FREE, clip=1.0, noise_multiplier=0.0, means_only=True
    )
    found = server(model, shards, private)
    start = MeanFieldNormal(np.zeros(3), np.full(3, 50.0))
    found.warm_start(start)
    pvi.fit(found, rounds=2)
    np.testing.assert_allclose(found.posterior.precision, start.precision, rtol=ALGEBRA)
    assert np.abs(found.posterior.mean).min() > 1e-4


def test_models_without_a_formula_are_clipped_row_by_row(rng):
    model = linear.logistic_regression(4, family=MeanFieldNormal)
    X, Y = rows(model, rng)
    assert not isinstance(model, privacy.ClippedGradientModel)
    each = [summed(model, model.prior(), X, Y, row, np.inf) for row in np.eye(6)]
    norms = [np.linalg.norm(one) for one in each]
    clip = np.median(norms)
    wanted = sum(one * min(1.0, clip / norm) for one, norm in zip(each, norms, strict=True))
    found = summed(model, model.prior(), X, Y, np.ones(6), clip)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
