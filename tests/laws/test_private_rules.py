"""Private clients: what is clipped, noised, answered, and spent."""

import json
from dataclasses import replace
from functools import cache

import gpflow
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp import bnn, datasets, linear, losses, pvi, samplers
from streaming_gp.errors import (
    BudgetSpentError,
    ImproperError,
    InvalidDataError,
    NoAnswerError,
)
from streaming_gp.expfam import GAUSSIANS, Factor, MeanFieldNormal, Normal, NormalWishart
from streaming_gp.pvi import privacy
from streaming_gp.pvi.privacy import NoisyGradients, epsilon_of, to_coordinates
from streaming_gp.pvi.privacy.changes import from_coordinates
from streaming_gp.pvi.privacy.gradients import clipped_sum_of
from streaming_gp.pvi.privacy.rule import Draws, secure_draws, seeded_draws
from tests.laws import LBFGS, slow
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    random_member,
    regression_data,
    server,
    task_of,
)
from tests.tolerances import ALGEBRA, STANDARD_ERRORS, THROUGH_NUGGET

FREE = privacy.Budget(np.inf)
KINDS = {"changes": privacy.PrivateChanges, "averaging": privacy.LocalAveraging}


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([*GAUSSIANS, NormalWishart]), st.integers(0, 50))
def test_coordinates_go_there_and_back(family, seed):
    q, one, other = (random_member(family, seed + k) for k in range(3))
    change = one / other
    found = from_coordinates(q, to_coordinates(q, change))
    for a, b in zip(found.natural, change.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("family", GAUSSIANS)
def test_their_length_is_that_of_the_fisher_metric(family):
    q, tiny = random_member(family, 0).as_arrays(), 1e-4
    direction = random_member(family, 1) / random_member(family, 2)
    near = family(*(a + tiny * b for a, b in zip(q.natural, direction.natural, strict=True)))
    length = np.linalg.norm(to_coordinates(q, direction**tiny))
    np.testing.assert_allclose(float(q.kl_divergence(near)), 0.5 * length**2, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_and_clipping_clients_reach_the_pooled_posterior(rng, kind):
    (X, Y), model = regression_data(rng), conjugate_model()
    parts = {"parts": 2} if kind == "averaging" else {}
    rule = KINDS[kind](
        pvi.AnalyticUpdate(), budget=FREE, clip=np.inf, noise_multiplier=0.0, insecure_seed=0,
        **parts,
    )  # fmt: skip
    found = server(model, datasets.partition_iid(X, Y, 3), rule)
    pvi.fit(found, pvi.Synchronous(damping=1.0), rounds=2)
    assert_same(found.posterior, pooled(model, X, Y), 1e-7)


def moments(task):
    """The likelihood of a linear regression, as independent coordinates."""
    X, Y = task.data
    natural = (X.T @ Y[:, 0], np.sum(X**2, axis=0))
    return pvi.LocalResult(Factor(MeanFieldNormal, natural))


def change_of(rule, task, X, Y):
    """By how much the answer for these data changes the client's factor, as it is clipped."""
    return to_coordinates(task.posterior, rule(replace(task, data=(X, Y))).factor / task.own)


def task_of_size(number):
    model = linear.BayesianLinearRegression(number, 0.09, family=MeanFieldNormal)
    own = Factor(MeanFieldNormal, (np.ones(number), np.ones(number)))
    found = task_of(model, np.ones((1, number)), np.ones((1, 1)), own)
    return replace(found, posterior=found.posterior.as_arrays())


@pytest.fixture(scope="module")
def task():
    return task_of_size(2)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_the_scale_that_the_accountant_is_told(rng, kind, monkeypatch):
    monkeypatch.setattr("streaming_gp.pvi.privacy.rule.epsilon_of", lambda *_: 1.0)
    task, X, Y = task_of_size(50), rng.standard_normal((20, 50)), rng.standard_normal((20, 1))
    clip, sigma, noise = 0.3, 0.8, []
    for seed in range(20):
        pair = [
            KINDS[kind](moments, budget=FREE, clip=clip, noise_multiplier=size, insecure_seed=seed)
            for size in (sigma, 0.0)
        ]
        noise.append(change_of(pair[0], task, X, Y) - change_of(pair[1], task, X, Y))
    sensitivity = 2.0 * clip / (10 if kind == "averaging" else 1)
    bound = STANDARD_ERRORS / np.sqrt(2.0 * np.size(noise))
    assert bound < 0.09, "else a factor of 1.1 would pass"
    np.testing.assert_allclose(np.std(noise), sigma * sensitivity, rtol=bound)
    assert pair[0].release == privacy.Release(sigma)


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_of_neighbours_that_a_search_finds_is_further_apart_than_the_bound(rng, task, kind):
    """Changes: any two data sets. Averaging: one row is exchanged, in the same parts."""
    clip, options = 0.5, {"parts": 4} if kind == "averaging" else {}
    rule = KINDS[kind](
        moments, budget=FREE, clip=clip, noise_multiplier=0.0, insecure_seed=3, **options
    )
    X, Y = 0.1 * rng.standard_normal((8, 2)), 0.1 * rng.standard_normal((8, 1))
    largest = 0.0

    def apart(numbers):
        nonlocal largest
        found = []
        for row in (numbers[:3], numbers[3:]):
            exchanged = X.copy(), Y.copy()
            where = slice(None) if kind == "changes" else slice(0, 1)
            exchanged[0][where], exchanged[1][where] = row[:2], row[2]
            found.append(change_of(rule, task, *exchanged))
        largest = max(largest, float(np.linalg.norm(found[0] - found[1])))
        return -largest

    scipy.optimize.differential_evolution(
        apart, [(-20.0, 20.0)] * 6, maxiter=10, popsize=6, seed=0, polish=False
    )
    bound = 2.0 * clip / options.get("parts", 1)
    assert 0.7 * bound < largest < bound * (1.0 + 1e-9)


def test_changes_that_are_not_finite_are_none(task):
    rule = privacy.PrivateChanges(moments, budget=FREE, noise_multiplier=0.0)
    assert not change_of(rule, task, np.full((1, 2), np.nan), np.ones((1, 1))).any()


SEED, FLOAT32 = np.array([1, 2], np.int32), {"rtol": 1e-4, "atol": 1e-6}


@cache
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


compiled_sum = cache(clipped_sum_of)


def summed(model, q, X, Y, weights, clip, by_spread=1.0, loss=None):
    numbers = tf.convert_to_tensor(q.unconstrained())
    kind = numbers.dtype.as_numpy_dtype
    total = compiled_sum(model, loss)
    return total(type(q), numbers, X, Y, kind(weights), SEED, kind(clip), kind(by_spread)).numpy()


@cache
def without_a_formula():
    model = linear.logistic_regression(4, family=MeanFieldNormal)
    assert not isinstance(model, privacy.ClippedGradientModel)
    return model, model.prior()


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (network, None),
        (many_heads, losses.GammaLoss(1.2)),
        (without_a_formula, None),
        slow(bounded, losses.GammaLoss(1.2)),
    ],
)
def test_sums_are_clipped_row_by_row(rng, make, loss):
    net, q = make()
    X, Y = rows(net, rng)
    numbers = tf.convert_to_tensor(q.unconstrained())
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        member = MeanFieldNormal.from_unconstrained(numbers)
        value = -net.expected_loss(member, X, Y, SEED, loss or losses.NegativeLogLikelihood())
    whole = tape.gradient(value, numbers)
    close = {"rtol": 1e-9, "atol": 1e-12} if whole.dtype == tf.float64 else FLOAT32
    found = summed(net, q, X, Y, np.ones(6), np.inf, loss=loss)
    np.testing.assert_allclose(found, whole, **FLOAT32)
    each = [summed(net, q, X, Y, row, np.inf, loss=loss) for row in np.eye(6)]
    norms = [np.linalg.norm(one) for one in each]
    clip = np.median(norms)
    wanted = sum(one * min(1.0, clip / norm) for one, norm in zip(each, norms, strict=True))
    found = summed(net, q, X, Y, np.ones(6), clip, loss=loss)
    np.testing.assert_allclose(found, wanted, **close)


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


@pytest.mark.parametrize("make", [network, without_a_formula])
def test_rows_whose_gradients_are_not_finite_count_as_zero(rng, make):
    model, q = make()
    X, Y = rows(model, rng)
    clean = summed(model, q, X, Y, np.array([1, 1, 1, 1, 1, 0.0]), 1.0)
    X[5] = np.nan
    np.testing.assert_allclose(summed(model, q, X, Y, np.ones(6), 1.0), clean, rtol=1e-5, atol=1e-9)


def distance(model, q, one, others, clip):
    """How far the clipped sums of two data sets are apart, of which one has one row more."""
    X, Y = (np.concatenate(parts) for parts in zip(others, one, strict=True))
    without = np.r_[np.ones(len(X) - 1), 0.0]
    sums = [summed(model, q, X, Y, weights, clip) for weights in (np.ones(len(X)), without)]
    return float(np.linalg.norm(sums[0] - sums[1]))


@pytest.mark.parametrize("make", [network, without_a_formula])
def test_no_row_that_a_search_finds_moves_the_sum_by_more_than_the_bound(rng, make):
    clip, (model, q) = 0.7, make()
    others = rows(model, rng, 4)
    largest = 0.0

    def moved(numbers):
        nonlocal largest
        X, Y = model.as_data(numbers[None, :4], np.array([[float(numbers[4] > 0.0)]]))
        largest = max(largest, distance(model, q, (X, Y), others, clip))
        return -largest

    scipy.optimize.differential_evolution(
        moved, [(-1e3, 1e3)] * 5, maxiter=3, popsize=4, seed=0, polish=False
    )
    assert 0.99 * clip < largest < clip * (1.0 + 1e-5)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_noise_of_gradients_has_the_scale_that_the_accountant_is_told(rng, rate):
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


@pytest.mark.parametrize(("byte", "number"), [(b"\x00", 2.0**-53), (b"\xff", 1.0 - 2.0**-53)])
def test_secure_numbers_lie_between_zero_and_one_whatever_the_bits(monkeypatch, byte, number):
    monkeypatch.setattr("os.urandom", lambda size: byte * size)
    assert (secure_draws().uniform(3) == number).all()


def test_rows_are_sampled_alone_at_their_rate():
    draws, rate, runs = seeded_draws(1), 0.3, 4000
    taken = np.zeros((runs, 5))
    for run in taken:
        run[draws.sample(5, rate)] = 1.0
    error = np.sqrt(rate * (1.0 - rate) / runs)
    np.testing.assert_allclose(taken.mean(axis=0), rate, atol=STANDARD_ERRORS * error)
    off = np.corrcoef(taken.T) - np.eye(5)
    assert np.abs(off).max() < STANDARD_ERRORS / np.sqrt(runs)


ADAM = pvi.VariationalUpdate(epochs=3, batch_size=None, learning_rate=0.05)
RULES = {
    "full covariance": ADAM,
    "adam": ADAM,
    "newton": replace(ADAM, optimiser=pvi.VariationalOnlineNewton()),
    "sgd": replace(ADAM, optimiser=pvi.SGD(1e-3)),
    "fixed point": pvi.FixedPointUpdate(steps=3, damping=0.5),
    "averaging": pvi.AveragingUpdate(1 / 3, ADAM),
    "split prior": pvi.SplitPriorUpdate(pvi.FixedPointUpdate(steps=2), 1 / 3),
}


WITH_OTHERS_ALIKE = {"full covariance", "adam", "sgd", "averaging"}


@pytest.mark.parametrize("name", [slow(one) if one in WITH_OTHERS_ALIKE else one for one in RULES])
def test_without_noise_and_clipping_the_rule_is_the_rule(rng, name):
    family = Normal if name == "full covariance" else MeanFieldNormal
    model = linear.logistic_regression(3, family=family)
    shards = datasets.partition_iid(*labelled_data(rng), 2)
    rule, posteriors = RULES[name], []
    private = privacy.PrivateGradients(rule, budget=FREE, clip=np.inf, noise_multiplier=0.0)
    for each in (rule, private):
        found = server(model, shards, each)
        pvi.fit(found, pvi.Synchronous(), 1 if name == "split prior" else 2)
        posteriors.append(found.posterior)
    assert_same(*posteriors, ALGEBRA)


@pytest.mark.parametrize("rule", [ADAM, pvi.FixedPointUpdate()])
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


STEPS = pvi.FixedPointUpdate(steps=2)


@pytest.fixture
def told(monkeypatch):
    """An accountant that is quick, and needs no further library: ε is a tenth of the releases."""

    def counted(spent, delta):
        return 0.1 * sum(number for _, number in spent)

    monkeypatch.setattr("streaming_gp.pvi.privacy.rule.epsilon_of", counted)


@pytest.fixture(scope="module")
def model():
    """One for all who ask, as its gradients are compiled once."""
    return linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)


@pytest.fixture
def shards(rng):
    X, Y = regression_data(rng)
    return [(X[k::3], Y[k::3]) for k in range(3)]


def private(epsilon=np.inf, **settings):
    return privacy.PrivateGradients(
        STEPS, budget=privacy.Budget(epsilon), clip=1.0, noise_multiplier=1e-3, **settings
    )


def test_history_says_what_each_client_has_spent_and_one_that_has_nothing_left_declines(
    model, shards, told
):
    clients = {
        f"c{k}": pvi.Client(f"c{k}", model, shards[k], private(epsilon))
        for k, epsilon in enumerate([0.5, 1.0, np.inf])
    }
    found = pvi.Server(model.prior(), clients, checks=pvi.NO_LIMITS)
    history = pvi.fit(found, pvi.Synchronous(), rounds=4)
    spent = [[round(one.epsilon[name], 9) for one in history] for name in clients]
    assert spent == [[0.2, 0.4, 0.4, 0.4], [0.2, 0.4, 0.6, 0.8], [0.2, 0.4, 0.6, 0.8]]
    assert [list(one.failed) for one in history] == [[], [], ["c0"], ["c0"]]
    assert "budget is spent" in history[2].failed["c0"]
    assert [one.accepted for one in history] == [3, 3, 2, 2]
    assert history.to_records()[-1]["epsilon"] == dict(history[-1].epsilon)


def test_what_a_server_refuses_has_been_told_all_the_same(model, shards, told):
    found = server(model, shards, private(), checks=pvi.Checks(max_shift=1e-9))
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError):
        pvi.fit(found, rounds=1)
    assert found.history[-1].refused
    assert set(found.history[-1].epsilon.values()) == {0.2}


def test_a_saved_server_remembers_what_was_spent(model, shards, told, tmp_path):
    clients = pvi.make_clients(model, shards, private())
    found = pvi.Server(model.prior(), clients, checks=pvi.NO_LIMITS)
    pvi.fit(found, rounds=2, checkpoint=tmp_path / "run.npz")
    again = pvi.Server.load(tmp_path / "run.npz", model.prior(), clients, checks=pvi.NO_LIMITS)
    history = pvi.fit(again, rounds=1)
    assert {round(value, 9) for value in history[-1].epsilon.values()} == {0.6}


def test_a_record_counts_whatever_a_server_says(model, shards, told, tmp_path):
    """A second server asks from the beginning; the client knows better."""
    rule = private(0.5, record=str(tmp_path / "spent"))
    for _ in range(2):
        pvi.fit(server(model, shards, rule, checks=pvi.NO_LIMITS), rounds=1)
    (entry,) = json.loads((tmp_path / "spent" / "c0.json").read_text())
    assert entry["number"] == 4
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="spent"):
        pvi.fit(server(model, shards, rule), rounds=1)
    for path in (tmp_path / "spent").iterdir():
        path.write_text("{}")
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="record"):
        pvi.fit(server(model, shards, rule), rounds=1)


def test_nothing_but_the_factor_and_what_was_spent_leaves(model, shards, told):
    client = pvi.Client("c0", model, shards[0], private())
    ask = pvi.Server(model.prior(), {"c0": client}).ask("c0")
    answer = client.answer(ask)
    assert answer.num_data == 0
    assert answer.factor.log_scale == 0.0
    assert np.isnan(answer.free_energy)
    assert (answer.steps, answer.skipped, dict(answer.diagnostics)) == (2, 0, {"epsilon": 0.2})


def test_errors_say_nothing_of_the_data(model, shards, told):
    def broken(task):
        raise InvalidDataError(f"row {task.data[0][0]} is odd")

    rule = privacy.PrivateChanges(broken, budget=FREE)
    with pytest.raises(privacy.PrivateFitError) as error:
        rule(task_of(model, *shards[0]))
    assert "row" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_hyperparameters_are_not_learned_from_private_data(model, shards, told):
    found = server(model, shards, private(), checks=pvi.NO_LIMITS)
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="noise"):
        pvi.fit(found, rounds=1, hyperparameters=pvi.LikelihoodParameters())


def test_pseudo_inputs_that_were_chosen_among_data_do_not_leave(rng):
    X = rng.standard_normal((20, 1))
    gp = sgp.StreamingGP(
        kernel=gpflow.kernels.SquaredExponential(),
        likelihood=gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(3),
        hyperparameters=sgp.FixedHyperparameters(),
    )
    rule = privacy.PrivateChanges(sgp.GPUpdate(), budget=FREE, noise_multiplier=0.0)
    found = pvi.Server(gp.prior(), pvi.make_clients(gp, [(X, np.sin(X))], rule))
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="grid"):
        pvi.fit(found, rounds=1)


def test_noise_is_another_one_each_time_unless_a_seed_is_given(model, shards, told):
    task = task_of(model, *shards[0])
    secure, seeded = private(), private(insecure_seed=3)
    assert not np.array_equal(*(secure(task).factor.natural[0] for _ in range(2)))
    np.testing.assert_array_equal(*(seeded(task).factor.natural[0] for _ in range(2)))


def test_the_accountant_is_told_the_rule_s_own_noise(model, shards):
    pytest.importorskip("dp_accounting", reason="the privacy extra is not installed")
    rule = privacy.PrivateGradients(
        pvi.VariationalUpdate(epochs=1), budget=FREE, noise_multiplier=2.0, sampling_rate=0.25
    )
    found = server(model, shards, rule, checks=pvi.NO_LIMITS)
    history = pvi.fit(found, rounds=2)
    wanted = epsilon_of(((privacy.Release(2.0, 0.25), 8),), 1e-5)
    assert set(history[-1].epsilon.values()) == {wanted}
    assert rule.epsilon_after(2) == wanted


def answers_of(rule, model, data, number):
    task = task_of(model, *data)
    return [rule(task).factor.natural for _ in range(number)]


def accuracy(with_row, without, direction):
    """Of the best threshold on the first halves, on the second: how often it tells who was in."""
    first, second = (
        np.concatenate([np.asarray([a @ direction for a, _ in side]) for side in pair])
        for pair in ((with_row[::2], without[::2]), (with_row[1::2], without[1::2]))
    )
    label = np.repeat([True, False], len(first) // 2)
    best = max(first, key=lambda bar: np.mean((first >= bar) == label))
    return float(np.mean((second >= best) == label))


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "is_hidden"), [(3.73, True), (0.2, False)])
def test_membership_is_told_no_better_than_epsilon_allows(rng, told, sigma, is_hidden):
    """ε = 1 at δ = 1e-5 for one release with σ = 3.73. Whoever guesses is right for a share of
    ``(e^ε + δ) / (1 + e^ε)`` at most (Kairouz, Oh & Viswanath 2015); with less noise for a larger
    one.
    """
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    X, Y = rng.standard_normal((12, 3)), rng.integers(0, 2, (12, 1)).astype(float)
    X[-1], Y[-1] = [50.0, 0.0, 0.0], 1.0
    rule = privacy.PrivateGradients(
        pvi.FixedPointUpdate(), budget=FREE, clip=1.0, noise_multiplier=sigma
    )
    runs = 150
    sides = [answers_of(rule, model, (X[:rows], Y[:rows]), runs) for rows in (12, 11)]
    right, bound = accuracy(*sides, np.array([1.0, 0.0, 0.0])), np.exp(1.0) / (1.0 + np.exp(1.0))
    error = 0.5 / np.sqrt(runs)
    assert (right < bound + 4.0 * error) == is_hidden


def test_clients_on_one_grid_reach_the_sparse_posterior_of_all_their_data(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal((60, 1))
    kernel, grid = gpflow.kernels.Matern32(1.3, 0.8), np.linspace(-3.0, 3.0, 9)[:, None]
    model = linear.GPOnInputs(kernel, gpflow.likelihoods.Gaussian(0.04), grid)
    found = server(model, [(X[k::3], Y[k::3]) for k in range(3)], pvi.FixedPointUpdate())
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    oracle = gpflow.models.SGPR((X, Y), kernel, gpflow.inducing_variables.InducingPoints(grid))
    oracle.likelihood.variance.assign(0.04)
    new = np.linspace(-2.9, 2.9, 20)[:, None]
    for a, b in zip(model.predict(found.posterior, new), oracle.predict_y(new), strict=True):
        np.testing.assert_allclose(a, b, rtol=THROUGH_NUGGET, atol=THROUGH_NUGGET)


def test_it_predicts_at_inputs_of_several_columns(rng):
    grid = rng.standard_normal((5, 2))
    model = linear.GPOnInputs(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), grid
    )
    assert model.num_inputs == 2
    assert model.prior().mean.shape == (5,)
    mean, variance = model.predict(model.prior(), rng.standard_normal((4, 2)))
    np.testing.assert_allclose(mean, 0.0)
    np.testing.assert_allclose(variance, 1.1, rtol=THROUGH_NUGGET)


LOCAL_RULES = {
    "analytic": pvi.AnalyticUpdate(),
    "fixed point": pvi.FixedPointUpdate(steps=3, damping=0.5),
    "variational": LBFGS,
    "minibatches": pvi.VariationalUpdate(epochs=2, batch_size=1),
    "expectation propagation": pvi.PowerEPUpdate(sweeps=3),
    "stochastic": pvi.StochasticEPUpdate(steps=8, batch_size=1),
    "tied": pvi.TiedUpdate(pvi.AnalyticUpdate(), 2),
    "sampled": pvi.DistributedEPUpdate(pvi.AnalyticUpdate(), num_samples=500, min_effective=1.0),
}


WITH_PARTS_ALIKE = {
    "variational", "minibatches", "expectation propagation", "stochastic", "sampled",
}  # fmt: skip
"""What is clipped is the change of each part, by whatever rule it came."""


@pytest.mark.parametrize(
    "name", [slow(one) if one in WITH_PARTS_ALIKE else one for one in LOCAL_RULES]
)
def test_one_row_moves_the_mean_of_parts_by_no_more_than_its_noise_is_made_for(rng, name):
    """Whether it is left out or exchanged for another."""
    model, parts, clip = linear.BayesianLinearRegression(2, 0.09), 2, 0.1
    X = rng.standard_normal((8, 2))
    Y = X @ np.array([[1.0], [-1.0]])
    exchanged = (np.r_[X[:-1], [[30.0, -40.0]]], np.r_[Y[:-1], [[1e4]]])
    rule = privacy.LocalAveraging(
        LOCAL_RULES[name], budget=FREE, clip=clip, noise_multiplier=0.0, parts=parts
    )
    numbers = rng.random(8)
    whole, *others = (
        rule.private_factor(task_of(model, *data), Draws(lambda size: numbers[:size]))
        for data in ((X, Y), (X[:-1], Y[:-1]), exchanged)
    )
    for other in others:
        moved = np.linalg.norm(to_coordinates(model.prior(), whole / other))
        assert 0.0 < moved <= 2.0 * clip / parts * (1.0 + 1e-6)


@pytest.mark.parametrize(
    "rule",
    [
        pvi.VariationalUpdate(stateful=True),
        pvi.PersonalUpdate(pvi.AnalyticUpdate(), folder="/kept"),
        pvi.SNEPUpdate(samplers.AdaptiveSGLD()),
        pvi.MomentSharingUpdate(samplers.NUTS()),
        pvi.DownpourUpdate(),
        pvi.TiedUpdate(pvi.SNEPUpdate(samplers.AdaptiveSGLD()), 2),
        pvi.SplitPriorUpdate(pvi.VariationalUpdate(stateful=True), 0.5),
    ],
)
def test_rules_with_a_memory_are_not_averaged_over_parts(rule):
    with pytest.raises(InvalidDataError, match="a rule without a memory"):
        privacy.LocalAveraging(rule, budget=FREE)


WITHIN = [
    lambda rule: pvi.TiedUpdate(rule, 2),
    lambda rule: pvi.DistributedEPUpdate(rule),
    lambda rule: pvi.SplitPriorUpdate(rule, 0.5),
    lambda rule: pvi.PersonalUpdate(rule),
    lambda rule: bnn.NewHeads(rule),
    lambda rule: privacy.SummedChanges(pvi.TiedUpdate(rule, 2), sites=3, record="kept"),
]


@pytest.mark.parametrize("around", WITHIN)
def test_a_private_rule_is_within_none_that_tells_more(model, shards, around):
    """Of its data or their number, of hyperparameters, or of errors, as all of them do."""
    message = "around PrivateGradients would tell more .* as in PrivateChanges"
    with pytest.raises(InvalidDataError, match=message):
        pvi.make_clients(model, shards, around(private()))
    with pytest.raises(InvalidDataError, match=message):
        pvi.Site("c0", model, around(private()), 10)


def test_of_a_sum_of_private_changes_a_missing_record_is_warned_of(model, shards, told, tmp_path):
    rule = privacy.SummedChanges(private(), sites=3, record=str(tmp_path))
    found = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    with pytest.warns(UserWarning, match="keeps no record"):
        pvi.fit(found, pvi.Synchronous())


def test_a_visit_to_a_peer_that_came_to_nothing_has_been_paid_for(model, shards, told):
    """Its noise, many times what the prior knows, makes no distribution of q."""
    rule = privacy.PrivateChanges(
        STEPS, budget=privacy.Budget(0.1), noise_multiplier=100.0, insecure_seed=0
    )
    (peer,) = pvi.make_peers(model, shards[:1], rule)
    baton = pvi.Baton(model.prior())
    with pytest.raises(ImproperError):
        peer.visit(baton)
    with pytest.raises(BudgetSpentError):
        peer.visit(baton)


def test_what_was_paid_for_is_used_however_far_the_noise_takes_it(model, shards, told):
    """At the defaults; an answer that would make the posterior improper is shortened."""
    rule = privacy.PrivateChanges(
        pvi.FixedPointUpdate(), budget=FREE, clip=1.0, noise_multiplier=5.0, insecure_seed=1
    )
    found = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    with pytest.warns(UserWarning, match="keeps no record"):
        history = pvi.fit(found, pvi.Synchronous(damping=1.0), rounds=10)
    assert [one.accepted for one in history] == [3] * 10
    assert found.posterior.is_proper
