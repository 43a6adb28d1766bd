"""The scikit-learn estimators: their contract, and what they add to it."""

import pickle
import warnings

import gpflow
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, PoorFitWarning
from streaming_gp.estimators import largest_probabilities
from streaming_gp.sklearn import StreamingGPClassifier, StreamingGPRegressor, default_kernel
from tests.oracles.builders import EVERY_INPUT, FIXED
from tests.tolerances import THROUGH_CHOLESKY

QUICK = {
    "pseudo_points": sgp.PrivatePseudoPoints(8),
    "hyperparameters": sgp.PointHyperparameters(),
    "optimiser": sgp.LocalOptimiser(max_iterations=20, rounds=2),
}
AT_EVERY_INPUT = {**QUICK, "pseudo_points": EVERY_INPUT}
KNOWN = {"pseudo_points": EVERY_INPUT, "hyperparameters": FIXED}


@pytest.mark.slow
@parametrize_with_checks([StreamingGPRegressor(), StreamingGPClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def wave(rng, number):
    """Inputs and targets far from zero and one in location and scale."""
    X = rng.uniform(0.0, 1000.0, (number, 1))
    return X, 5e4 + 3e3 * np.sin(X[:, 0] / 100.0) + 50.0 * rng.standard_normal(number)


def test_scaling_is_handled_and_the_deviation_is_that_of_y(rng):
    X, y = wave(rng, 80)
    fitted = StreamingGPRegressor(**AT_EVERY_INPUT).fit(X, y)
    assert fitted.score(X, y) > 0.98
    X_test, y_test = wave(rng, 400)
    mean, sd = fitted.predict(X_test, return_std=True)
    assert mean.shape == sd.shape == (400,)
    z = (y_test - mean) / sd
    assert 0.6 < np.std(z) < 1.5
    np.testing.assert_array_equal(fitted.predict(X_test), mean)


@pytest.mark.usefixtures("eager")
def test_a_stream_of_exact_factors_is_scikit_learns_own_gp(rng):
    """All inputs as pseudo-points, known hyperparameters: the same mean, and deviation of y."""
    X = rng.uniform(-3.0, 3.0, (60, 2))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(60)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1.3)
    stream = StreamingGPRegressor(kernel, scale=False, **KNOWN)
    for rows in (slice(0, 20), slice(20, 60)):
        stream.partial_fit(X[rows], y[rows])
    exact = GaussianProcessRegressor(RBF(1.3) + WhiteKernel(0.1), optimizer=None).fit(X, y)
    X_test = rng.uniform(-4.0, 4.0, (30, 2))
    for ours, theirs in zip(
        stream.predict(X_test, return_std=True), exact.predict(X_test, return_std=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=THROUGH_CHOLESKY)


def test_out_of_the_box_a_rough_function_is_learned(rng):
    """Ten periods: a start at one lengthscale would leave them too few pseudo-points."""
    X = rng.uniform(0.0, 20.0 * np.pi, (300, 1))
    y = 3.0 * np.sin(X[:, 0]) + 0.3 * rng.standard_normal(300)
    np_state = np.random.get_state()[1].copy()  # noqa: NPY002
    fitted = StreamingGPRegressor().fit(X[:200], y[:200])
    assert fitted.score(X[200:], y[200:]) > 0.95
    np.testing.assert_array_equal(np.random.get_state()[1], np_state)  # noqa: NPY002


def test_defaults_go_with_the_number_of_inputs():
    np.testing.assert_allclose(default_kernel(1).lengthscales.numpy(), [0.1])
    assert default_kernel(100).lengthscales.shape == (100,)
    assert 9.0 < default_kernel(100).lengthscales.numpy()[0] < 10.0


@pytest.mark.usefixtures("eager")
def test_partial_fit_continues_and_keeps_the_first_scaling(rng):
    X, y = wave(rng, 40)
    streamed = StreamingGPRegressor(**KNOWN).fit(X[:20], y[:20])
    scale = streamed.input_scaler_.unit.copy()
    streamed.partial_fit(X[20:], y[20:])
    np.testing.assert_array_equal(streamed.input_scaler_.unit, scale)
    assert len(streamed.model_.factors) == 2
    before, attributes = streamed.predict(X), dict(vars(streamed))
    for refused in (np.full_like(X, np.nan), np.c_[X, X]):
        with pytest.raises(ValueError, match=r"NaN|features"):
            streamed.partial_fit(refused, y)
    with pytest.raises(ValueError, match="1 outputs as before, got 2"):
        streamed.partial_fit(X, np.c_[y, y])
    with pytest.raises(ValueError, match="batch_size"):
        streamed.set_params(batch_size=0).fit(np.c_[X, X], y)
    assert vars(streamed) == {**attributes, "batch_size": 0}
    np.testing.assert_array_equal(streamed.predict(X), before)


def test_several_outputs_and_batches_and_a_constant_column(rng):
    X, y = wave(rng, 50)
    X = np.c_[X, np.full(50, 7.0)]
    fitted = StreamingGPRegressor(batch_size=20, **AT_EVERY_INPUT).fit(X, np.c_[y, -y])
    mean, sd = fitted.predict(X, return_std=True)
    assert mean.shape == sd.shape == (50, 2)
    np.testing.assert_allclose(mean[:, 0], -mean[:, 1], rtol=1e-6)
    assert len(fitted.model_.factors) == 3


def test_a_first_batch_that_fixes_no_scale_is_named(rng):
    X, y = wave(rng, 30)

    def said(estimator, X, y, **classes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.partial_fit(X, y, **classes).partial_fit(X[:1], y[:1], **classes)
        told = [str(one.message) for one in caught if "fix no scale" in str(one.message)]
        return [one.split()[0] for one in told]

    assert said(StreamingGPRegressor(**KNOWN), X, y) == []
    assert said(StreamingGPRegressor(**KNOWN), X[:1], y[:1]) == ["inputs", "targets"]
    assert said(StreamingGPRegressor(**KNOWN), X, np.ones(30)) == ["targets"]
    assert said(StreamingGPRegressor(scale=False, **KNOWN), X[:1], y[:1]) == []
    labels = (y > 0.0).astype(int)
    assert said(StreamingGPClassifier(**KNOWN), X[:1], labels[:1], classes=[0, 1]) == ["inputs"]


def test_targets_that_are_all_alike_at_first_leave_the_scale_to_those_that_follow(rng):
    X = rng.uniform(-2.0, 2.0, (60, 1))
    y = 1e-3 * np.where(X[:, 0] < 0.0, 0.0, np.sin(3.0 * X[:, 0]))
    off, new = X[:, 0] < 0.0, np.linspace(0.2, 1.8, 9)[:, None]
    stream = StreamingGPRegressor(**AT_EVERY_INPUT)
    with pytest.warns(PoorFitWarning, match="targets of the first batch are all alike"):
        stream.partial_fit(X[off], y[off])
    stream.partial_fit(X[~off], y[~off])
    order = np.argsort(~off, kind="stable")
    whole = StreamingGPRegressor(**AT_EVERY_INPUT).fit(X[order], y[order])
    np.testing.assert_array_equal(stream.predict(new), whole.predict(new))
    assert np.abs(stream.predict(new) - 1e-3 * np.sin(3.0 * new[:, 0])).max() < 1e-4


def test_first_targets_that_are_nearly_alike_leave_the_scale_to_those_that_follow(rng):
    X = rng.uniform(-2.0, 2.0, (40, 1))
    y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.standard_normal(40)
    y[:2] = 0.3, 0.3001  # a sensor of which two readings are close by chance
    stream = StreamingGPRegressor(**AT_EVERY_INPUT)
    for rows in np.split(np.arange(40), [2, 5]):
        stream.partial_fit(X[rows], y[rows])
    whole = StreamingGPRegressor(**AT_EVERY_INPUT).fit(X, y)
    new = np.linspace(-1.8, 1.8, 9)[:, None]
    found = [np.stack(each.predict(new, return_std=True)) for each in (stream, whole)]
    np.testing.assert_allclose(*found, atol=0.05)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("cls", [StreamingGPRegressor, StreamingGPClassifier])
def test_an_input_that_is_silent_at_first_has_the_unit_in_which_it_comes(cls, unit, rng):
    X, y = rng.uniform(-1.0, 1.0, (90, 2)), {}
    X[:30, 1] = 0.3
    answer = X[:, 0] + np.sin(3.0 * X[:, 1])
    for size in (1.0, unit):
        stream = cls(**KNOWN)
        for rows in np.split(np.arange(90), 3):
            labels = answer[rows] if cls is StreamingGPRegressor else answer[rows] > 0.0
            stream.partial_fit(X[rows] * [1.0, size], labels)
        y[size] = stream.predict(X * [1.0, size])
    np.testing.assert_allclose(y[unit], y[1.0], rtol=1e-6)
    if cls is StreamingGPRegressor:
        assert np.abs(y[unit] - answer).max() < 0.3


def test_by_default_fit_takes_all_rows_at_once_with_a_point_at_each(rng):
    X, y = wave(rng, 1100)
    settings = {"hyperparameters": FIXED}
    near = sgp.NearestNeighbors(dense_up_to=200)
    fitted = StreamingGPRegressor(conditioning=near, **settings).fit(X, y)
    assert [len(one.Z) for one in fitted.model_.factors.values()] == [1100]
    assert fitted.model_.settings.conditioning == near
    labels = np.where(y[:30] > 0.0, "up", "down")
    started = StreamingGPClassifier(**settings).partial_fit(X[:30], labels, classes=["down", "up"])
    assert started.model_.posterior_process.num_pseudo_points == 30
    two = sgp.PrivatePseudoPoints(2, optimise_locations=False)
    few = StreamingGPRegressor(pseudo_points=two, **settings).fit(X, y)
    assert len(few.model_.factors) == 2


@pytest.mark.slow
def test_a_stream_sorted_by_class_is_learned():
    X, y = make_moons(600, noise=0.25, random_state=0)
    X_test, y_test = make_moons(1000, noise=0.25, random_state=1)
    stream = StreamingGPClassifier(random_state=0)
    for rows in np.array_split(np.argsort(y, kind="stable"), 12):
        stream.partial_fit(X[rows], y[rows], classes=[0, 1])
    assert stream.score(X_test, y_test) > 0.9


def test_a_pickled_estimator_goes_on_bit_for_bit(rng):
    X, y = wave(rng, 40)
    fitted = StreamingGPRegressor(**AT_EVERY_INPUT).fit(X[:20], y[:20])
    copied = pickle.loads(pickle.dumps(fitted))
    for estimator in (fitted, copied):
        estimator.partial_fit(X[20:], y[20:])
    np.testing.assert_array_equal(copied.predict(X), fitted.predict(X))


def test_two_classes_with_names(rng):
    X = rng.uniform(-1.0, 1.0, (60, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    fitted = StreamingGPClassifier(**KNOWN).fit(X, y)
    assert list(fitted.classes_) == ["other", "same"]
    probability = fitted.predict_proba(X)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.classes_[probability.argmax(axis=1)], fitted.predict(X))
    assert fitted.score(X, y) > 0.85


def test_several_classes_arrive_one_after_another(rng):
    X = rng.uniform(-1.0, 1.0, (60, 1))
    y = np.digitize(X[:, 0], [-0.4, 0.4]) * 10
    stream = StreamingGPClassifier(**KNOWN)
    for label in (0, 10, 20):
        rows = y == label
        stream.partial_fit(X[rows], y[rows], classes=[0, 10, 20])
    assert stream.predict_proba(X).shape == (60, 3)
    assert stream.score(X, y) > 0.85
    with pytest.raises(ValueError, match="cannot change"):
        stream.partial_fit(X, y, classes=[0, 10])
    with pytest.raises(ValueError, match="none of the classes"):
        stream.partial_fit(X[:1], [30])


@pytest.mark.usefixtures("eager")
def test_a_label_that_comes_later_is_as_if_it_had_been_known(rng):
    """At fixed hyperparameters bit for bit; and the probability is that of the largest function."""
    X = rng.uniform(-1.0, 1.0, (60, 1))
    y = np.array(["low", "mid", "top"])[np.digitize(X[:, 0], [-0.4, 0.4])]
    known, grown = StreamingGPClassifier(**KNOWN), StreamingGPClassifier(**KNOWN)
    grown.partial_fit(X[y == "mid"], y[y == "mid"])
    assert set(grown.predict(X)) == {"mid"}
    for label in ("top", "low"):
        grown.partial_fit(X[y == label], y[y == label])
    for rows in (y == "mid", y == "top", y == "low"):
        if not hasattr(known, "model_"):
            known._start(X[rows], y, is_regressed=True, may_grow=True)
        known.partial_fit(X[rows], y[rows])
    assert list(grown.classes_) == ["low", "mid", "top"] == list(known.classes_)
    probability = grown.predict_proba(X)
    np.testing.assert_allclose(probability, known.predict_proba(X), rtol=1e-10, atol=1e-14)
    assert grown.score(X, y) > 0.9
    m, v = np.array([[0.3, -0.2, 0.1]]), np.array([[0.5, 0.2, 1.0]])
    draws = m + np.sqrt(v) * rng.standard_normal((200_000, 3))
    shares = np.bincount(draws.argmax(axis=1)) / len(draws)
    np.testing.assert_allclose(largest_probabilities(m, v)[0], shares, atol=5e-3)


@pytest.mark.usefixtures("eager")
def test_weights_divide_the_noise(rng):
    X = np.linspace(0.0, 5.0, 12)[:, None]
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(12)
    weight = rng.integers(0, 3, 12)

    def regressor(**options):
        kernel = gpflow.kernels.SquaredExponential() + gpflow.kernels.Linear()
        return StreamingGPRegressor(kernel, **{**KNOWN, "scale": False, **options})

    weighted = regressor().fit(X, y, sample_weight=weight)
    repeated = regressor().fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    for one, other in zip(
        weighted.predict(X, return_cov=True), repeated.predict(X, return_cov=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="not given in the first"):
        regressor().fit(X, y).partial_fit(X, y, sample_weight=np.ones(12))
    with pytest.raises(TypeError, match="sample_weights"):
        regressor().fit(X, y, sample_weights=weight)


def test_every_target_has_a_noise_of_its_own(rng):
    X = np.column_stack([rng.uniform(-3.0, 3.0, 100), np.ones(100)])
    noise = [0.1, 1.0] * rng.standard_normal((100, 2))
    learned = StreamingGPRegressor(**AT_EVERY_INPUT).fit(X, np.sin(2.0 * X[:, :1]) + noise)
    _, deviation = learned.predict(X[:5], return_std=True)
    np.testing.assert_allclose(deviation, np.tile([0.1, 1.0], (5, 1)), rtol=0.3)


@pytest.mark.usefixtures("eager")
def test_draws_have_the_mean_and_covariance_of_predict(rng):
    X, y = wave(rng, 40)
    model = StreamingGPRegressor(**KNOWN).fit(X, np.column_stack([y, -y]))
    mean, covariance = model.predict(X[:3], return_cov=True)
    assert covariance.shape == (3, 3, 2)
    draws = model.sample_y(X[:3], 4000, random_state=1)
    assert draws.shape == (3, 2, 4000)
    deviation = np.sqrt(covariance[[0, 1, 2], [0, 1, 2]])
    np.testing.assert_allclose(draws.mean(axis=2), mean, atol=0.1 * deviation.max())
    for target in range(2):
        found = np.cov(draws[:, target])
        np.testing.assert_allclose(found, covariance[..., target], atol=0.1 * found.max())
    np.testing.assert_allclose(model.predict(X[:3], return_std=True)[1], deviation)
    with pytest.raises(ValueError, match="not both"):
        model.predict(X, return_std=True, return_cov=True)


@pytest.mark.usefixtures("eager")
def test_frames_mean_the_same_as_arrays(rng):
    """Booleans and categories of numbers are numbers, lazy frames are collected, and what is no
    number is refused by name, as in tables."""
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    flag, size = rng.uniform(size=30) < 0.5, rng.integers(1, 4, 30)
    X, y = np.column_stack([flag, size]).astype(float), rng.standard_normal(30)
    frame = pandas.DataFrame({"flag": flag, "size": pandas.Categorical(size)})
    wanted = StreamingGPRegressor(**KNOWN).fit(X, y).predict(X)
    for one in (frame, polars.DataFrame({"flag": flag, "size": size}).lazy()):
        model = StreamingGPRegressor(**KNOWN).fit(one, y)
        assert list(model.feature_names_in_) == ["flag", "size"]
        np.testing.assert_allclose(model.predict(one), wanted, rtol=1e-8)
    for column in (
        pandas.to_timedelta(size, "D"),
        pandas.date_range("2024-01-01", periods=30),
        [[1.0]] * 30,
        ["word"] * 30,
    ):
        with pytest.raises(ValueError, match="'size'"):
            model.predict(frame.assign(size=column))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"flag": "other"}))


def test_what_cannot_be_fitted_is_refused(rng):
    X, y = wave(rng, 20)
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        StreamingGPClassifier(**QUICK).fit(X, np.zeros(20))
    for unfitted in (StreamingGPRegressor(), StreamingGPClassifier()):
        with pytest.raises(NotFittedError):
            unfitted.predict(X)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0])
    original = StreamingGPRegressor(kernel, **AT_EVERY_INPUT)
    original.fit(X, y)
    assert kernel.lengthscales.numpy() == 1.0  # the kernel that was passed is never trained
    assert clone(original).get_params()["pseudo_points"] == EVERY_INPUT


def test_labels_that_are_missing_or_of_another_kind_are_refused(rng):
    pd = pytest.importorskip("pandas")
    X = rng.standard_normal((12, 2))
    words = np.where(X[:, 0] > 0.0, "up", "down").astype(object)
    gaps = [words.copy(), pd.Series(words).astype("string")]
    for one in gaps:
        one[3] = None
    classifier = StreamingGPClassifier(hyperparameters=FIXED).partial_fit(X, words)
    before = classifier.predict_proba(X)
    for learn in (classifier.partial_fit, StreamingGPClassifier().fit):
        for one in gaps:
            with pytest.raises(InvalidDataError, match="misses 1 of 12 labels, the first at row 3"):
                learn(X, one)
    with pytest.raises(InvalidDataError, match=r"can be sorted, got \['int', 'str'\]"):
        classifier.partial_fit(X, np.arange(12) % 2)
    with pytest.raises(InvalidDataError, match=r"can be sorted, got \['NoneType', 'str'\]"):
        StreamingGPClassifier().partial_fit(X, words, classes=["down", "up", None])
    np.testing.assert_array_equal(classifier.predict_proba(X), before)
    numbered = StreamingGPClassifier(hyperparameters=FIXED).partial_fit(X, np.arange(12) % 2)
    with pytest.raises(InvalidDataError, match=r"labels were \[0 1\], got others of <U2"):
        numbered.partial_fit(X, np.array(["up"] * 12))
    assert numbered.classes_.tolist() == [0, 1]


def test_a_word_is_not_taken_for_a_flag(rng):
    regressor = StreamingGPRegressor(scale="no")
    with pytest.raises(InvalidDataError, match="scale must be true or false, got 'no'"):
        regressor.fit(rng.standard_normal((5, 1)), rng.standard_normal(5))
