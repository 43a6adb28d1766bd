"""One point at a time: exact within the budget, proper beyond it, and back into the ledger."""

import pickle
import threading

import gpflow
import numpy as np
import pytest
from gpflow import kernels as gk

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.online import state as st
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    assert_same_arrays,
    assert_same_predictions,
    evidence,
    exact_gp,
    kernel,
    known_model,
    regressor,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA


def learned(online, X, Y):
    for x, y in zip(X, Y, strict=True):
        assert online.update(x, y) is None
    return online


def predictions(online, X):
    return [np.stack(part) for part in zip(*(online.predict(x) for x in X), strict=True)]


def assert_predicts_as(online, model, X, tolerance=ALGEBRA):
    assert_same_arrays(predictions(online, X), model.predict_f(X), tolerance)


@pytest.fixture
def halves(rng):
    X, Y = smooth_data(rng, 60)
    return (X[:25], Y[:25]), (X[25:], Y[25:])


@pytest.fixture
def begun(halves):
    return begun_with(halves[0])


def begun_with(*batches):
    fitted = known_model(EVERY_INPUT)
    for batch in batches:
        fitted.update(batch)
    return fitted


def fixed_model(kernel, noise, mean_function=None):
    return sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(noise), mean_function,
        pseudo_points=EVERY_INPUT, hyperparameters=FIXED,
    )  # fmt: skip


@pytest.fixture(scope="module")
def untouched():
    """A model that no test changes."""
    return begun_with(smooth_data(np.random.default_rng(1), 40))


# ---- within the budget ----


@pytest.mark.parametrize(
    ("make", "noise"),
    [
        pytest.param(kernel, 0.05, id="numpy", marks=pytest.mark.slow),
        pytest.param(gk.ArcCosine, 0.05, id="compiled"),
        pytest.param(kernel, [0.05, 0.4], id="noise", marks=pytest.mark.slow),
        pytest.param(
            lambda: gk.SeparateIndependent([kernel(), gk.Matern52(lengthscales=[2.0, 0.7])]),
            [0.05, 0.4],
            id="kernels and noise",
        ),
    ],
)
def test_points_one_by_one_are_a_batch(halves, new_inputs, make, noise):
    """Of two outputs, with kernels and noise of their own or not."""
    shards = [(X, np.hstack([Y, Y**2])) for X, Y in halves]
    single, batches = (fixed_model(make(), noise, gpflow.functions.Constant(2.0)) for _ in range(2))
    single.update(shards[0])
    for shard in shards:
        batches.update(shard)
    online = learned(single.online(budget=100, false_alarms=0.0), *shards[1])
    assert_predicts_as(online, batches, new_inputs)
    assert single.absorb(online) == "online-1"
    assert_same_predictions(single, batches, new_inputs, ALGEBRA)
    assert evidence(single) == pytest.approx(evidence(batches), abs=1e-8)


def test_nothing_is_absorbed_twice(begun, halves, new_inputs):
    X, Y = halves[1]
    online = learned(begun.online(budget=100), X[:20], Y[:20])
    assert begun.absorb(online, "first") == "first"
    assert begun.absorb(online) is None
    learned(online, X[20:], Y[20:])
    assert begun.absorb(online, "second") == "second"
    assert_predicts_as(online, begun, new_inputs)
    begun.remove("second")
    begun.remove("first")
    assert_same_predictions(begun, begun_with(halves[0]), new_inputs, ALGEBRA)


def test_a_new_epsilon_is_adopted_with_what_was_learned(begun, halves, new_inputs):
    online = learned(begun.online(budget=100), *halves[1])
    for scales in ([0.5, 2.0], [1.5, 1.0]):
        begun.kernel.lengthscales.assign(scales)
        online.adopt(begun)
    everything = known_model(EVERY_INPUT)
    everything.kernel.lengthscales.assign([1.5, 1.0])
    for half in halves:
        everything.update(half)
    assert_predicts_as(online, everything, new_inputs)
    online.adopt(begun, keep=False)
    assert_predicts_as(online, begun, new_inputs)
    assert begun.absorb(online) is None


def test_a_variational_model_absorbs_at_its_mean_and_resumes(halves, new_inputs, tmp_path):
    fitted = regressor(journal=tmp_path / "journal")
    fitted.update(halves[0])
    before = np.array(fitted.hyperparameter_posterior.mean)
    online = learned(fitted.online(budget=100), *halves[1])
    fitted.absorb(online, "online")
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before, atol=ALGEBRA)
    at_mean = fixed_model(kernel(), 0.1)
    gpflow.utilities.multiple_assign(at_mean, gpflow.utilities.read_values(fitted))
    factors = {
        n: sgp.gp.PseudoPointFactor(f.pseudo_observations) for n, f in fitted.factors.items()
    }
    at_mean.update(halves[0])
    at_mean.adopt(at_mean.ledger.without("batch-0").with_factors(factors))
    assert_predicts_as(online, at_mean, new_inputs, tolerance=1e-8)
    resumed = sgp.StreamingGP.resume(
        tmp_path / "journal", kernel(), gpflow.likelihoods.Gaussian(0.1)
    )
    assert_same_predictions(resumed, fitted, new_inputs, 0.0)


# ---- beyond the budget ----


@pytest.fixture
def crowded(begun, halves):
    return learned(begun.online(budget=20), *halves[1])


def test_a_budget_holds(crowded, begun, new_inputs):
    assert crowded.num_points == crowded.budget == 20
    mean, variance = predictions(crowded, new_inputs)
    assert np.isfinite(mean).all()
    assert ((variance > 0.0) & (variance < 1.0)).all()
    assert begun.absorb(crowded) == "online-1"
    assert len(begun.factors["online-1"].Z) <= 20


class Oracle:
    """What an online object does, by whole factorisations, for one output around 2."""

    def __init__(self, online):
        (self.prior, state), *_ = online._parts
        used = state.is_used
        self.Z, self.U = state.Z[used], state.U[used, 0]
        lower = np.tril(state.S[:, :, 0][np.ix_(used, used)])
        self.S, self.relevance = lower + np.tril(lower, -1).T, state.relevance[used]

    def moments(self, x):
        K, k = self.prior.among(self.Z), self.prior.kernel.covariance(self.Z, x[None])[:, 0]
        q = np.linalg.solve(K, k)
        return q, 2.0 + q @ self.U, 1.0 - k @ q + q @ self.S @ q

    def learn(self, x, y):
        prior, (noise,) = self.prior, self.prior.noise
        q, mean, variance = self.moments(x)
        correlation = np.abs(prior.kernel.covariance(self.Z, x[None])[:, 0])
        fading = np.exp(-1.0 / prior.memory) * self.relevance
        self.relevance = np.append(np.maximum(fading, correlation), 1.0)
        gain = np.append(self.S @ q, variance + prior.nugget)
        S = np.block([[self.S, gain[:-1, None]], [gain[None]]])
        self.S = S - np.outer(gain, gain) / (variance + noise)
        self.U = np.append(self.U, mean - 2.0) + gain * (y[0] - mean) / (variance + noise)
        self.Z = np.vstack([self.Z, x])
        if len(self.Z) > prior.budget:
            precision = np.diag(np.linalg.inv(prior.among(self.Z)))
            least = np.argmin(np.log1p(1.0 / (noise * precision)) * self.relevance)
            stays = np.arange(len(self.Z)) != least
            self.Z, self.U, self.relevance = self.Z[stays], self.U[stays], self.relevance[stays]
            self.S = self.S[np.ix_(stays, stays)]


def test_changes_of_low_rank_are_the_whole_computation(begun, halves, new_inputs):
    """The points go that matter least, what is left is the marginal of the others, and reflections
    lose nothing."""
    online = begun.online(budget=20, false_alarms=0.0)
    oracle = Oracle(online)
    for x, y in zip(*halves[1], strict=True):
        online.update(x, y)
        oracle.learn(x, y)
    for x in new_inputs:
        _, mean, variance = oracle.moments(x)
        np.testing.assert_allclose(np.ravel(online.predict(x)), (mean, variance), atol=1e-8)
    (prior, state), *_ = online._parts
    used = state.is_used
    inverse = (state.root.T @ state.root)[np.ix_(used, used)]
    np.testing.assert_allclose(inverse @ prior.among(state.Z[used]), np.eye(20), atol=1e-8)
    np.testing.assert_allclose(state.precision[used], inverse.diagonal(), rtol=1e-8)


def arrays(online):
    """Copies of all that a state is made of."""
    (_, state), *_ = online._parts
    values = {**vars(state.copy()), "S": state.S[:, :, 0].copy()}
    return {name: value for name, value in values.items() if name != "base"}


def assert_same_state(online, before):
    for name, value in arrays(online).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_prediction_changes_nothing(crowded, new_inputs):
    before = arrays(crowded)
    predictions(crowded, new_inputs)
    assert_same_state(crowded, before)


def test_a_refused_observation_leaves_the_state_as_it_was(crowded):
    before = arrays(crowded)
    with pytest.raises(NumericalError):
        crowded.update([0.0, 0.0], 1e200)
    assert_same_state(crowded, before)


def test_a_model_of_many_points_starts_on_few(begun, halves):
    begun.update(halves[1])
    X = np.concatenate([half[0] for half in halves])
    assert_predicts_as(begun.online(budget=45), begun, X, tolerance=1e-3)


def test_points_that_no_input_comes_near_are_left_behind(begun):
    online = begun.online(budget=30)
    walk = np.stack([np.linspace(0.0, 40.0, 400), np.zeros(400)], axis=1)
    values = np.sin(walk[:, :1])
    learned(online, walk, values)
    (_, state), *_ = online._parts
    assert state.Z[state.is_used, 0].min() > 5.0
    mean, variance = exact_gp((walk, values)).predict_f(walk[-5:])
    for x, m, v in zip(walk[-5:], mean, variance, strict=True):
        np.testing.assert_allclose(online.predict(x), (m, v), atol=0.01)


HOUR, STAMP = 3600.0, 1.7e9
SINCE = {
    "many scales": lambda: gk.RationalQuadratic(lengthscales=HOUR),
    "cosine": lambda: gk.Cosine(lengthscales=9.0 * HOUR) + gk.Constant(),
    "sum": lambda: gk.Matern52(lengthscales=HOUR) + gk.Constant() + gk.White(0.1),
    "product": lambda: (
        gk.SquaredExponential(lengthscales=5.0 * HOUR)
        * gk.Periodic(gk.Matern32(), period=7.0 * HOUR)
        + gk.Matern52(lengthscales=HOUR)
    ),
}


def over_time(kernel, start):
    """A model of 60 of 120 hours from a start, and what comes after."""
    rng = np.random.default_rng(0)
    since = np.sort(rng.uniform(0.0, 20.0 * HOUR, (120, 1)), axis=0)
    Y = np.sin(since / HOUR) + 0.1 * rng.standard_normal(since.shape)
    model, X = fixed_model(kernel, 0.01), start + since
    model.update((X[:60], Y[:60]))
    return model, X[60:], Y[60:]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(make, id=name, marks=[pytest.mark.slow] * (name != "product"))
        for name, make in SINCE.items()
    ],
)
def test_inputs_may_be_time_stamps(kernel):
    """Seconds since 1970: nothing but differences matters, wherever the stream has gone."""
    found, before = [], []
    for start in (0.0, STAMP):
        model, X, Y = over_time(kernel(), start)
        before.append([np.asarray(part) for part in model.predict_f(X - 30.0)])
        online = learned(model.online(budget=50, false_alarms=0.0), X[:50], Y[:50])
        found.append(predictions(online, X[50:]))
    np.testing.assert_allclose(*found, atol=1e-5)
    np.testing.assert_allclose(*before, atol=1e-5)


@pytest.mark.usefixtures("eager")
def test_points_far_from_the_first_ones_keep_their_digits():
    model, X, Y = over_time(gk.Matern52(lengthscales=HOUR), 0.0)
    online, later = model.online(budget=200, false_alarms=0.0), STAMP + X
    learned(online, later[:50], Y[:50])
    rows, kernel = (X[:50], Y[:50]), gk.Matern52(lengthscales=HOUR)
    wanted = gpflow.models.GPR(rows, kernel, noise_variance=0.01).predict_f(X[50:])
    np.testing.assert_allclose(predictions(online, later[50:]), wanted, atol=1e-5)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "kernel",
    [
        lambda: gk.Linear(1e-10) * gk.SquaredExponential(lengthscales=HOUR),
        lambda: gk.Polynomial(2.0, 1e-10) + gk.Matern32(lengthscales=HOUR),
    ],
    ids=["linear", "polynomial"],
)
def test_a_kernel_that_loses_its_digits_far_from_zero_is_refused(kernel):
    model, X, Y = over_time(kernel(), 0.0)
    online = learned(model.online(), X[:5], Y[:5])
    with pytest.raises(NumericalError, match=r"inputs reach 1\.7"):
        online.update(1e3 * STAMP + X[5], Y[5])
    learned(online, X[5:], Y[5:])
    with pytest.raises(InvalidDataError, match=r"inputs reach 1\.7"):
        over_time(kernel(), 1e3 * STAMP)


@pytest.mark.usefixtures("eager")
def test_noise_that_depends_on_the_input_is_refused(halves):
    noise = gpflow.functions.Linear(A=[[0.0], [0.1]], b=[1.0])
    model = known_model(EVERY_INPUT, gpflow.likelihoods.Gaussian(scale=noise))
    model.update(halves[0])
    with pytest.raises(InvalidDataError, match="function of x"):
        model.online()


# ---- a world that changes ----


def test_what_was_forgotten_is_the_exact_posterior_of_a_function_that_changed(
    begun, halves, new_inputs
):
    """Under the covariance ``k(x, x') √(1 − c)`` between before a change and after it."""
    online, size = begun.online(budget=100, false_alarms=0.0), 0.3
    X, Y = halves[1]
    learned(online, X[:20], Y[:20])
    (prior, state), *_ = online._parts
    st.forget(prior, state, 0, size)
    online._at = None
    learned(online, X[20:], Y[20:])
    inputs, targets = (np.concatenate([half[part] for half in halves]) for part in (0, 1))
    epoch = (np.arange(len(inputs)) >= 45).astype(float)
    share = np.sqrt(1.0 - size) ** np.abs(epoch[:, None] - epoch)
    k = kernel()
    K, targets = k(inputs).numpy() * share + 0.05 * np.eye(len(inputs)), targets - 2.0
    between = k(inputs, new_inputs).numpy() * np.sqrt(1.0 - size) ** (1.0 - epoch)[:, None]
    solved = np.linalg.solve(K, np.hstack([targets, between]))
    mean, variance = between.T @ solved[:, :1], 1.0 - np.sum(between * solved[:, 1:], axis=0)
    found = predictions(online, new_inputs)
    np.testing.assert_allclose(found[0], 2.0 + mean, atol=1e-8)
    np.testing.assert_allclose(found[1][:, 0], variance, atol=1e-8)


def changing(function, before=300, after=600, noise=0.1, known=0.1, seed=0, **options):
    """Squared errors in predicted deviations, one after another, of an object that goes on from a
    function of x and time which begins to change at time zero, and its alarms.

    :param known: The deviation of the noise as the model has it.
    """
    rng = np.random.default_rng(seed)

    def observed(number, time):
        X = rng.uniform(-3.0, 3.0, (number, 1))
        return X, function(X, time) + noise * rng.standard_normal(X.shape)

    model = fixed_model(gk.SquaredExponential(), known**2)
    model.update(observed(before, np.zeros((before, 1))))
    alarms, squares = [], []
    online = model.online(on_alarm=alarms.append, **options)
    for x, y in zip(*observed(after, np.arange(1.0, after + 1.0)[:, None]), strict=True):
        mean, variance = online.predict(x)
        squares.append(float((y[0] - mean[0]) ** 2 / (variance[0] + noise**2)))
        online.update(x, y)
    return np.array(squares), alarms, online


CHANGES = {
    "sign": lambda X, t: np.where(t > 0.0, -1.0, 1.0) * np.sin(2.0 * X),
    "small": lambda X, t: np.sin(2.0 * X) + 0.2 * (t > 0.0),
    "drift": lambda X, t: np.sin(2.0 * X + 0.01 * t),
}


@pytest.mark.parametrize("function", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed_and_forgotten(function):
    squares, alarms, online = changing(function)
    assert alarms
    assert online.alarm is alarms[-1]
    assert alarms[0].output == 0
    assert alarms[0].observation < 150
    assert squares[200:].mean() < 1.5


def test_nothing_is_forgotten_while_nothing_changes():
    squares, alarms, _ = changing(lambda X, t: np.sin(2.0 * X), after=600)
    assert not alarms
    assert 0.8 < squares.mean() < 1.2
    unwatched, _, _ = changing(lambda X, t: np.sin(2.0 * X), after=600, false_alarms=0.0)
    np.testing.assert_array_equal(squares, unwatched)


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_the_model_takes_for_less_is_no_change(seed):
    """It is 1.5 times as large in variance, all the time."""
    squares, alarms, _ = changing(
        lambda X, t: np.sin(2.0 * X), after=2000, known=0.1 / np.sqrt(1.5), seed=seed
    )
    assert not alarms
    assert 0.9 < squares.mean() < 1.1


def test_a_change_is_noticed_where_the_noise_is_taken_for_less():
    for function in CHANGES.values():
        squares, alarms, _ = changing(function, known=0.1 / np.sqrt(1.5))
        assert alarms[0].observation < 150
        assert squares[200:].mean() < 1.5


def test_false_alarms_are_as_rare_as_they_were_promised():
    """Functions of the prior itself, 50 observations at a rate of a thousandth: at most one of
    twenty has an alarm in the mean."""
    rng, number = np.random.default_rng(0), 0
    X = rng.uniform(-3.0, 3.0, (60, 1))
    chol = np.linalg.cholesky(gk.SquaredExponential()(X).numpy() + 0.01 * np.eye(60))
    model = fixed_model(gk.SquaredExponential(), 0.01)
    for _ in range(40):
        Y = chol @ rng.standard_normal((60, 1))
        model.fade(0.0)
        model.update((X[:10], Y[:10]), learn=False)
        alarms = []
        learned(model.online(100, false_alarms=1e-3, on_alarm=alarms.append), X[10:], Y[10:])
        number += bool(alarms)
    assert number <= 2 + 4.0 * np.sqrt(2.0)


def test_no_single_observation_is_a_change():
    outlier = lambda X, t: np.sin(2.0 * X) + 20.0 * (t == 300.0)  # noqa: E731
    squares, alarms, _ = changing(outlier)
    assert squares[299] > 1000.0
    assert all(alarm.observation > 300 for alarm in alarms)  # which have learned from it


def test_a_change_warns_once_where_nobody_listens(begun, halves):
    online = begun.online()
    X, Y = halves[1]
    with pytest.warns(sgp.errors.ChangeWarning, match="output 0 has changed after") as found:
        learned(online, np.tile(X, (3, 1)), np.tile(5.0 - Y, (3, 1)))
    assert len(found) == 1
    assert online.alarm.size > 0.1
    with pytest.warns(sgp.errors.ChangeWarning, match="is not forgotten: fade or remove"):
        begun.absorb(online)


def test_outputs_with_noise_of_their_own_forget_on_their_own(halves):
    shards = [(X, np.hstack([Y, Y**2])) for X, Y in halves]
    model = fixed_model(kernel(), [0.05, 0.04])
    model.update(shards[0])
    alarms = []
    online, still = model.online(on_alarm=alarms.append), model.online(false_alarms=0.0)
    X, Y = shards[1]
    Y = Y + np.array([0.0, 5.0])
    learned(still, X, Y)
    learned(online, X, Y)
    assert {alarm.output for alarm in alarms} == {1}
    for x in X:
        ours, others = (np.stack(one.predict(x)) for one in (online, still))
        np.testing.assert_allclose(ours[:, 0], others[:, 0], atol=1e-12)
        assert ours[1, 1] > others[1, 1]


# ---- threads, and what is refused ----


def test_nothing_is_lost_while_a_model_is_adopted(begun, halves, new_inputs):
    online = begun.online(budget=100)
    thread = threading.Thread(target=learned, args=(online, *halves[1]))
    thread.start()
    while thread.is_alive():
        online.adopt(begun)
        online.predict(new_inputs[0])
    thread.join()
    begun.update(halves[1])
    assert_predicts_as(online, begun, new_inputs)


def test_an_object_that_learned_in_another_process_is_adopted(begun, halves, new_inputs):
    far = pickle.loads(pickle.dumps(begun.online(budget=100)))  # as pipes between processes do
    assert far.model is None
    learned(far, *halves[1])
    online = begun.online(budget=50)
    with pytest.raises(InvalidDataError, match="keep=False"):
        online.adopt(far)
    online.adopt(far, keep=False)
    assert online.budget == 100
    begun.update(halves[1])
    assert_predicts_as(online, begun, new_inputs)


@pytest.mark.usefixtures("eager")
def test_a_kernel_of_tensorflow_stays_in_its_process(halves):
    model = sgp.StreamingGP(gk.ArcCosine(), gpflow.likelihoods.Gaussian(0.05))
    model.update(halves[0], learn=False)
    with pytest.raises(InvalidDataError, match="stays in its process"):
        pickle.dumps(model.online())


BAD = {
    "short": ([0.0], 1.0),
    "matrix": ([[0.0, 0.0]], 1.0),
    "not finite": ([0.0, np.nan], 1.0),
    "words": (["a", "b"], 1.0),
    "y not finite": ([0.0, 0.0], np.inf),
    "y long": ([0.0, 0.0], [1.0, 2.0]),
}


@pytest.mark.parametrize(("x", "y"), BAD.values(), ids=BAD)
def test_a_bad_observation_changes_nothing(untouched, new_inputs, x, y):
    online = untouched.online(budget=50)
    with pytest.raises(InvalidDataError):
        online.update(x, y)
    assert online.num_points == 40
    assert_predicts_as(online, untouched, new_inputs)


@pytest.mark.usefixtures("eager")
def test_models_that_cannot_learn_point_by_point_say_so(data, untouched):
    with pytest.raises(InvalidDataError, match="learned a batch"):
        known_model(EVERY_INPUT).online()
    labels = known_model(EVERY_INPUT, gpflow.likelihoods.Bernoulli())
    X, Y = data[0][:10], data[1][:10]
    labels.update((X, (Y > 0).astype(float)), learn=False)
    with pytest.raises(InvalidDataError, match="Gaussian noise, got Bernoulli"):
        labels.online()
    for options in (
        {"budget": 0}, {"budget": 2.5}, {"memory": 0.0}, {"false_alarms": -0.1},
        {"false_alarms": 2.0},
    ):  # fmt: skip
        with pytest.raises(InvalidDataError):
            untouched.online(**options)
    frozen = known_model(sgp.ConditionalPseudoPoints(5, optimise_locations=False))
    frozen.update((X, Y), learn=False)
    with pytest.raises(InvalidDataError, match="stand alone"):
        frozen.online()


def test_only_the_model_that_it_came_from_absorbs_an_object(begun, halves):
    online = learned(begun.online(), *halves[1])
    other = known_model(EVERY_INPUT)
    with pytest.raises(InvalidDataError, match="another model"):
        other.absorb(online)
    with pytest.raises(InvalidDataError, match="taken"):
        begun.absorb(online, "batch-0")
    assert list(begun.factors) == ["batch-0"]


def test_very_precise_observations_are_put_on_fewer_points(rng):
    """What is left of the variance there is less than rounding leaves of a difference."""
    X = rng.uniform(-2.0, 2.0, (200, 2))
    model = fixed_model(gk.SquaredExponential(50.0, [1.0, 1.0]), 1e-5)
    f = np.sin(2.0 * X[:, :1]) * np.cos(X[:, 1:])
    model.update((X, f))
    online = model.online(budget=80)
    mean, variance = predictions(online, X)
    assert (variance > 0.0).all()
    assert np.max(np.abs(mean - f)) < 0.1
