"""The river estimators: river's own checks, and what they add to them."""

import pickle

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.laws import slow
from tests.tolerances import THROUGH_CHOLESKY

pd = pytest.importorskip("pandas", reason="the river extra is not installed")
pytest.importorskip("river", reason="the river extra is not installed")

from river import checks, drift, evaluate, metrics, multiclass, proba  # noqa: E402

from streaming_gp.river import StreamingGPClassifier, StreamingGPRegressor  # noqa: E402

QUICK = {
    "hyperparameters": sgp.FixedHyperparameters(),
    "optimiser": sgp.LocalOptimiser(max_iterations=2, rounds=1),
    "batch_size": 50,
}
SEGMENTS = ("brickface", "cement", "foliage", "grass", "path", "sky", "window")
POINTS = sgp.PrivatePseudoPoints(5, budget=20)


def rows(rng, number):
    X = rng.uniform(-3.0, 3.0, (number, 2))
    y = 100.0 + 10.0 * np.sin(X[:, 0]) + 0.1 * rng.standard_normal(number)
    return [({"a": a, "b": b}, target) for (a, b), target in zip(X, y, strict=True)]


def learned(model, data):
    for x, y in data:
        model.learn_one(x, y)
    return model


def as_frame(data):
    return pd.DataFrame([x for x, _ in data]), pd.Series([y for _, y in data])


@pytest.fixture(scope="module")
def data():
    return rows(np.random.default_rng(3), 90)


@pytest.fixture(scope="module")
def regressor(data):
    return learned(StreamingGPRegressor(**QUICK), data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        StreamingGPRegressor(**QUICK),
        StreamingGPClassifier(pseudo_points=POINTS, **{**QUICK, "batch_size": 100}),
        StreamingGPClassifier(
            (*SEGMENTS, False, True), pseudo_points=POINTS, **{**QUICK, "batch_size": 150}
        ),
    ],
    ids=["regressor", "two classes", "nine classes"],
)
def test_rivers_own_checks(model):
    checks.check_estimator(model)


def test_every_row_counts_at_once_as_in_the_exact_gp(rng):
    """At fixed hyperparameters, within a batch and after it: GPflow's regression on all rows."""
    data = rows(rng, 70)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0])
    model = learned(StreamingGPRegressor(kernel, scale=False, **QUICK), data)
    X, Y = np.array([[x["a"], x["b"]] for x, _ in data]), np.array([[y] for _, y in data])
    exact = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    mean, variance = exact.predict_y(np.array([[0.5, -0.3]]))
    found = model.predict_one({"b": -0.3, "a": 0.5}, with_dist=True)
    assert isinstance(found, proba.Gaussian)
    np.testing.assert_allclose(found.mu, mean.numpy().item(), rtol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(found.sigma**2, variance.numpy().item(), rtol=THROUGH_CHOLESKY)


def test_many_rows_are_one_after_another_bit_for_bit(data, regressor):
    many = StreamingGPRegressor(**QUICK)
    for part in (data[:20], data[20:]):
        many.learn_many(*as_frame(part))
    X, _ = as_frame(data[:10])
    X.index = [f"row {number}" for number in range(10)]
    found = many.predict_many(X)
    assert list(found.index) == list(X.index)
    assert found.tolist() == [regressor.predict_one(x) for x, _ in data[:10]]


def test_pickles_go_on_bit_for_bit(data, regressor, rng):
    first, second = regressor, pickle.loads(pickle.dumps(regressor))
    more = rows(rng, 15)
    twin = learned(StreamingGPRegressor(**QUICK), [*data, *more])
    learned(second, more)
    x = {"a": 1.0, "b": 0.0}
    assert second.predict_one(x) == twin.predict_one(x) != first.predict_one(x)


def test_a_missing_feature_is_at_its_mean_and_a_new_one_is_ignored(data, regressor):
    assert regressor.feature_names == ("a", "b")
    mean = float(np.mean([x["b"] for x, _ in data[:50]]))
    wanted = regressor.predict_one({"a": 1.0, "b": mean})
    for x in ({"a": 1.0}, {"a": 1.0, "b": None, "c": 7.0}, {"a": 1.0, "b": float("nan")}):
        np.testing.assert_allclose(regressor.predict_one(x), wanted, rtol=1e-12)


def test_named_features_have_a_place_before_they_appear(data):
    model = StreamingGPRegressor(features=("late", "a"), **QUICK)
    learned(model, data[:50])
    assert model.feature_names == ("late", "a")
    before = model.predict_one({"a": 1.0, "late": 2.0})
    learned(model, [({"a": 1.0, "late": 2.0}, 500.0)])
    assert model.predict_one({"a": 1.0, "late": 2.0}) > before + 50.0


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ({"a": "red"}, 1.0, "feature 'a' must be a finite number, got 'red'"),
        ({"a": np.inf}, 1.0, "feature 'a' must be a finite number, got inf"),
        ({"a": 2**62}, 1.0, "feature 'a' holds the integer .* a float64 cannot represent"),
        ([1.0, 2.0], 1.0, "x must map names to numbers, got a list"),
        ({"a": 1.0}, None, "the target is missing"),
        ({"a": 1.0}, "high", "the target must be a finite number, got 'high'"),
    ],
)
def test_what_is_refused_changes_nothing(regressor, x, y, message):
    before = pickle.dumps(regressor._waiting), regressor.predict_one({"a": 0.0})
    with pytest.raises(InvalidDataError, match=message):
        regressor.learn_one(x, y)
    assert (pickle.dumps(regressor._waiting), regressor.predict_one({"a": 0.0})) == before


@pytest.mark.parametrize(
    ("options", "last", "message"),
    [
        ({"scale": False}, ({"a": 0.0}, 1e200), "below 1e\\+150 in size"),
        pytest.param(
            {"pseudo_points": sgp.ConditionalPseudoPoints(5)},
            ({"a": 0.0}, 1.0),
            "factors that stand alone",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_batch_that_is_refused_leaves_what_was_there(data, options, last, message):
    model = learned(StreamingGPRegressor(**QUICK, **options), data[:49])
    for _ in range(2):
        with pytest.raises(InvalidDataError, match=message):
            model.learn_one(*last)
    assert model.model is None
    np.testing.assert_allclose(model.predict_one({}), np.mean([y for _, y in data[:49]]))


@pytest.mark.slow
def test_a_function_without_noise_is_learned_row_by_row():
    model = StreamingGPRegressor(batch_size=20)
    for number in range(60):
        model.learn_one({"a": 0.1 * number}, 3.0 * number)
    np.testing.assert_allclose(model.predict_one({"a": 5.05}), 151.5, atol=2.0)
    assert model.model.likelihood.variance.numpy() >= 1e-4


@pytest.mark.parametrize("number", [20, pytest.param(210, marks=pytest.mark.slow)])
def test_targets_that_are_all_alike_at_first_do_not_fix_the_scale(number, rng):
    """Of a machine that is off, or that is off for longer than rows wait."""
    model = StreamingGPRegressor(**{**QUICK, "batch_size": 10})
    for x in rng.uniform(-2.0, 0.0, number):
        model.learn_one({"x": x}, 0.0)
    assert (model.model is None) == (number < 200)
    assert model.predict_one({"x": -1.0}) == 0.0
    if number < 200:
        x = rng.uniform(0.0, 2.0, 20)
        for one in x:
            model.learn_one({"x": one}, 1e-3 * np.sin(3.0 * one))
        errors = [model.predict_one({"x": one}) - 1e-3 * np.sin(3.0 * one) for one in x]
        assert np.abs(errors).max() < 1e-4


@pytest.mark.parametrize(
    ("unit", "silent"),
    [(1e-6, {"b": 0.3}), (1e6, {}), slow(1e6, {"b": 0.3}), slow(1e-6, {})],
)
def test_an_input_that_is_silent_at_first_has_the_unit_in_which_it_comes(unit, silent, rng):
    X, found = rng.uniform(-1.0, 1.0, (150, 2)), {}
    y = X[:, 0] + np.sin(3.0 * X[:, 1])
    for size in (1.0, unit):
        model = StreamingGPRegressor(features=("a", "b"), **QUICK)
        rows = [{"a": a, "b": size * b} for a, b in X]
        for a, target in zip(X[:50, 0], y[:50], strict=True):
            model.learn_one({"a": a, **{name: size * one for name, one in silent.items()}}, target)
        for row, target in zip(rows[50:], y[50:], strict=True):
            model.learn_one(row, target)
        found[size] = [model.predict_one(row) for row in rows]
    np.testing.assert_allclose(found[unit], found[1.0], rtol=1e-5)


def test_before_any_row_something_is_predicted():
    assert StreamingGPRegressor().predict_one({"a": 1.0}) == 0.0
    classifier = StreamingGPClassifier()
    assert classifier.predict_proba_one({"a": 1.0}) == {False: 0.5, True: 0.5}
    classifier.learn_one({"a": 1.0}, True)
    assert classifier.predict_proba_one({}) == {False: 1 / 3, True: 2 / 3}
    assert classifier.predict_one({}) is True


def test_rows_without_features_say_only_what_targets_there_are(data, regressor):
    model = StreamingGPRegressor(**QUICK)
    for x, y in [({}, 1.0), ({"a": None}, 2.0), ({}, 3.0)] * 20:
        model.learn_one(x, y)
    assert model.model is None
    assert model.predict_one({}) == pytest.approx(2.0, rel=0.02)
    learned(model, data)
    assert model.predict_one({"a": 1.0}) == regressor.predict_one({"a": 1.0})


def test_a_detector_of_river_makes_the_model_begin_anew(data):
    """Where the function jumps by a hundred deviations."""
    model = StreamingGPRegressor(drift_detector=drift.PageHinkley(threshold=20.0), **QUICK)
    learned(model, data)
    assert model.model is not None
    later = [(x, y + 1000.0) for x, y in data]
    learned(model, later[:20])
    assert model.model is None
    learned(model, later[20:])
    assert model.predict_one(data[0][0]) == pytest.approx(1100.0, abs=15.0)
    fresh = model.clone()
    assert fresh.drift_detector is not model._detector


def test_a_distribution_has_the_digits_of_far_targets(data, regressor):
    model = learned(StreamingGPRegressor(**QUICK), [(x, 1e9 + y) for x, y in data])
    ours, wanted = (one.predict_one({"a": 1.0}, with_dist=True) for one in (model, regressor))
    np.testing.assert_allclose(ours.mu - 1e9, wanted.mu, rtol=1e-5)
    np.testing.assert_allclose(ours.sigma, wanted.sigma, rtol=1e-4)


def test_frames_of_polars_are_learned_too(data, regressor):
    polars, model = pytest.importorskip("polars"), StreamingGPRegressor(**QUICK)
    model.learn_many(polars.DataFrame([x for x, _ in data]), polars.Series([y for _, y in data]))
    x = {"a": 1.0, "b": 0.0}
    assert model.predict_many(polars.DataFrame([x])).tolist() == [regressor.predict_one(x)]


def test_arguments_out_of_range_and_frames_of_other_lengths_are_refused():
    with pytest.raises(InvalidDataError, match="batch_size must be positive, got 0"):
        StreamingGPRegressor(batch_size=0)
    with pytest.raises(InvalidDataError, match="at least two different labels"):
        StreamingGPClassifier(classes=("a",))
    frame, labels = pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([True])
    for model in (StreamingGPRegressor(), StreamingGPClassifier()):
        with pytest.raises(InvalidDataError, match="got 2 rows and 1"):
            model.learn_many(frame, labels)


@pytest.mark.slow
def test_two_classes_are_told_apart(rng):
    X = rng.uniform(-1.0, 1.0, (200, 2))
    data = [({"a": a, "b": b}, bool(a > 0.2 * b)) for a, b in X]
    model = StreamingGPClassifier(
        hyperparameters=sgp.PointHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=10, rounds=2),
    )
    score = evaluate.progressive_val_score(data, model, metrics.Accuracy()).get()
    assert score > 0.6  # the first half is predicted by frequencies alone
    frame, labels = as_frame(data)
    probabilities = model.predict_proba_many(frame)
    assert list(probabilities.columns) == [False, True]
    assert np.mean(model.predict_many(frame) == labels) > 0.9
    assert model.predict_proba_many(frame[:0]).shape == (0, 2)
    with pytest.raises(InvalidDataError, match="'maybe' is none of the classes"):
        model.learn_one(*({"a": 0.0}, "maybe"))


def test_labels_may_appear_later_within_rivers_one_against_the_rest():
    model = multiclass.OneVsRestClassifier(StreamingGPClassifier())
    model.learn_one({"a": 1.0}, "red")
    model.learn_one({"a": 2.0}, "blue")
    assert set(model.predict_proba_one({"a": 1.0})) == {"red", "blue"}


@pytest.mark.parametrize(
    "cls", [StreamingGPRegressor, pytest.param(StreamingGPClassifier, marks=pytest.mark.slow)]
)
def test_a_detector_sees_rows_that_come_together_too(cls, data):
    """And the model begins anew at the row at which it would alone."""
    is_classifier = cls is StreamingGPClassifier
    later = [(x, y > 100.0 if is_classifier else y) for x, y in data]
    later += [(x, not y if is_classifier else y + 1000.0) for x, y in later]
    detector = drift.PageHinkley(threshold=5.0)
    one = learned(cls(drift_detector=detector, **QUICK), later)
    many, deaf = cls(drift_detector=detector, **QUICK), cls(**QUICK)
    for model in (many, deaf):
        model.learn_many(*as_frame(later))

    def predicted(model):
        x = data[0][0]
        return model.predict_proba_one(x)[True] if is_classifier else model.predict_one(x)

    assert predicted(many) == predicted(one) != predicted(deaf)


def test_a_string_is_not_taken_for_its_letters_nor_a_word_for_a_flag(data):
    for features in ("ab", (), ("a", "a")):
        with pytest.raises(InvalidDataError, match="features must be at least one name"):
            StreamingGPRegressor(features=features)
    with pytest.raises(InvalidDataError, match="at least two different labels, got 'ab'"):
        StreamingGPClassifier("ab")
    with pytest.raises(InvalidDataError, match="scale must be true or false, got 'no'"):
        learned(StreamingGPRegressor(scale="no", **QUICK), data)
