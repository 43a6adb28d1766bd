"""One point at a time: exact within the budget, proper beyond it, and back into the ledger."""

import threading

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.online import state as st
from tests.oracles.builders import (
    EVERY_INPUT,
    assert_same_predictions,
    evidence,
    exact_gp,
    kernel,
    known_model,
    regressor,
    rough_kernel,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_NUGGET


def learned(online, X, Y):
    for x, y in zip(X, Y, strict=True):
        assert online.update(x, y) is None
    return online


def predictions(online, X):
    return [np.stack(part) for part in zip(*(online.predict(x) for x in X), strict=True)]


def assert_predicts_as(online, model, X, tolerance=ALGEBRA):
    for mine, its in zip(predictions(online, X), model.predict_f(X), strict=True):
        np.testing.assert_allclose(mine, its, atol=tolerance)


@pytest.fixture
def halves(data):
    X, Y = data
    return (X[:40], Y[:40]), (X[40:], Y[40:])


@pytest.fixture
def begun(halves):
    return begun_with(halves[0])


def begun_with(batch):
    fitted = known_model(EVERY_INPUT)
    fitted.update(batch)
    return fitted


@pytest.fixture(scope="module")
def untouched():
    """A model that no test changes."""
    return begun_with(smooth_data(np.random.default_rng(1), 40))


# ---- within the budget ----


@pytest.mark.parametrize(
    ("outputs", "make"),
    [
        pytest.param(1, kernel, id="1-numpy"),
        pytest.param(2, rough_kernel, id="2-compiled"),
        pytest.param(1, rough_kernel, id="1-compiled", marks=pytest.mark.slow),
        pytest.param(2, kernel, id="2-numpy", marks=pytest.mark.slow),
    ],
)
def test_points_one_by_one_are_a_batch(halves, new_inputs, make, outputs):
    shards = [(X, np.hstack([Y, Y**2])[:, :outputs]) for X, Y in halves]

    def model():
        return sgp.StreamingGP(
            make(), gpflow.likelihoods.Gaussian(0.05), gpflow.functions.Constant(2.0),
            pseudo_points=EVERY_INPUT, hyperparameters=sgp.FixedHyperparameters(),
        )  # fmt: skip

    single, batches = model(), model()
    single.update(shards[0])
    for shard in shards:
        batches.update(shard)
    online = learned(single.online(budget=100), *shards[1])
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
    again = known_model(EVERY_INPUT)
    again.update(halves[0])
    assert_same_predictions(begun, again, new_inputs, ALGEBRA)


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
    at_mean = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=EVERY_INPUT,
        hyperparameters=sgp.FixedHyperparameters(),
    )  # fmt: skip
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
    return learned(begun.online(budget=30), *halves[1])


def test_a_budget_holds(crowded, begun, new_inputs):
    assert crowded.num_points == crowded.budget == 30
    mean, variance = predictions(crowded, new_inputs)
    assert np.isfinite(mean).all()
    assert ((variance > 0.0) & (variance < 1.0)).all()
    assert begun.absorb(crowded) == "online-1"
    assert len(begun.factors["online-1"].Z) <= 30


def test_changes_of_low_rank_are_the_whole_computation(crowded, new_inputs):
    before = predictions(crowded, new_inputs)
    crowded._state = st.refreshed(crowded._prior, crowded._state)
    crowded._projection = None
    np.testing.assert_allclose(predictions(crowded, new_inputs), before, atol=1e-8)


@pytest.mark.parametrize("x", [[0.1, 0.2], [5.0, 5.0]], ids=["near", "far"])
def test_a_point_that_goes_at_once_is_projected_on_the_others(crowded, new_inputs, x):
    prior, one = crowded._prior, crowded._state
    other, y = st.copied(one), np.array([1.5])
    points = [st._Point(prior, st.project(prior, s, np.array(x)), y) for s in (one, other)]
    st._add_and_remove(prior, one, points[0])
    st._add(prior, other, points[1])
    st._remove(other, points[1].slot)
    for z in new_inputs:
        found, wanted = (st.moments(prior, st.project(prior, s, z)) for s in (one, other))
        np.testing.assert_allclose(found, wanted, atol=1e-8)
    for found, wanted in zip(*(st._information(prior, s.own) for s in (one, other)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_point_that_goes_leaves_the_marginal_of_the_others(crowded):
    prior, state = crowded._prior, crowded._state
    others = state.Z[state.is_used][1:]
    before = [st.moments(prior, st.project(prior, state, z)) for z in others]
    st._remove(state, int(np.argmax(state.is_used)))
    for z, wanted in zip(others, before, strict=True):
        found = st.moments(prior, st.project(prior, state, z))
        np.testing.assert_allclose(found, wanted, atol=THROUGH_NUGGET)


def test_a_prediction_changes_nothing(crowded, new_inputs):
    prior, state = crowded._prior, crowded._state
    before = st.copied(state)
    for z in new_inputs:
        st.moments(prior, st.project(prior, state, z))
    for name, value in before._asdict().items():
        np.testing.assert_array_equal(getattr(state, name), value)


def test_a_refused_observation_leaves_the_state_as_it_was(crowded):
    prior, state = crowded._prior, crowded._state
    before = st.copied(state)
    with pytest.raises(NumericalError):
        st.observe(prior, st.project(prior, state, np.zeros(2)), np.array([1e200]))
    for name, value in before._asdict().items():
        np.testing.assert_array_equal(getattr(state, name), value)


def test_a_model_of_many_points_starts_on_few(begun, halves):
    begun.update(halves[1])
    X = np.concatenate([half[0] for half in halves])
    assert_predicts_as(begun.online(budget=60), begun, X, tolerance=1e-3)


def test_points_that_no_input_comes_near_are_left_behind(begun):
    online = begun.online(budget=30)
    walk = np.stack([np.linspace(0.0, 40.0, 400), np.zeros(400)], axis=1)
    values = np.sin(walk[:, :1])
    learned(online, walk, values)
    assert online._state.Z[online._state.is_used, 0].min() > 5.0
    mean, variance = exact_gp((walk, values)).predict_f(walk[-5:])
    for x, m, v in zip(walk[-5:], mean, variance, strict=True):
        np.testing.assert_allclose(online.predict(x), (m, v), atol=0.01)


def test_inputs_may_be_time_stamps():
    """Seconds since 1970: distances are counted from the first point."""
    rng, hour = np.random.default_rng(0), 3600.0
    since = np.sort(rng.uniform(0.0, 20.0 * hour, (120, 1)), axis=0)
    Y = np.sin(since / hour) + 0.1 * rng.standard_normal(since.shape)
    found = []
    for start in (0.0, 1.7e9):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=hour), gpflow.likelihoods.Gaussian(0.01),
            hyperparameters=sgp.FixedHyperparameters(),
        )  # fmt: skip
        X = start + since
        model.update((X[:60], Y[:60]))
        online = learned(model.online(budget=50), X[60:110], Y[60:110])
        found.append(predictions(online, X[110:]))
    np.testing.assert_allclose(*found, atol=1e-6)


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


def test_models_that_cannot_learn_point_by_point_say_so(data, untouched):
    with pytest.raises(InvalidDataError, match="learned a batch"):
        known_model(EVERY_INPUT).online()
    labels = known_model(EVERY_INPUT, gpflow.likelihoods.Bernoulli())
    X, Y = data[0][:10], data[1][:10]
    labels.update((X, (Y > 0).astype(float)), learn=False)
    with pytest.raises(InvalidDataError, match="Gaussian noise, got Bernoulli"):
        labels.online()
    for options in ({"budget": 0}, {"budget": 2.5}, {"memory": 0.0}):
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
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=50.0, lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(1e-5),
        pseudo_points=EVERY_INPUT,
        hyperparameters=sgp.FixedHyperparameters(),
    )
    f = np.sin(2.0 * X[:, :1]) * np.cos(X[:, 1:])
    model.update((X, f))
    online = model.online(budget=80)
    mean, variance = predictions(online, X)
    assert (variance > 0.0).all()
    assert np.max(np.abs(mean - f)) < 0.1
