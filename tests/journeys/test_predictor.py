"""Exported models: predictions as those of the model, files that are refused, what is imported."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import gpflow
import numpy as np
import pytest
from gpflow import kernels as gk

import streaming_gp as sgp
from streaming_gp import runtime
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.gp.export import describe_likelihood
from streaming_gp.runtime import LIKELIHOODS, predictor
from tests.oracles.builders import EVERY_INPUT
from tests.oracles.exported import small
from tests.oracles.reference import smooth_data
from tests.tolerances import EXPORTED

GAUSSIAN, FIXED = gpflow.likelihoods.Gaussian, {"hyperparameters": sgp.FixedHyperparameters()}


def mixture():
    """Over draws of ε, of all kinds of parameters."""
    kernel = gk.Matern52(lengthscales=[0.7, 1.1]) * gk.Constant() + gk.Linear(active_dims=[1])
    mean_function = gpflow.functions.Constant(0.3)
    points = sgp.PrivatePseudoPoints(5, optimise_locations=False)
    return kernel, GAUSSIAN(0.1), mean_function, {"pseudo_points": points}


def separate():
    """A kernel for each output: two groups."""
    kernel = gk.SeparateIndependent([gk.Matern32(), gk.SquaredExponential(lengthscales=2.0)])
    mean_function = gpflow.functions.Linear(np.array([[0.1, 0.4], [0.2, 0.3]]), np.ones(2))
    return kernel, GAUSSIAN(0.1), mean_function, FIXED


def columns():
    """One group of two columns, with points that fill their blocks in part only."""
    kernel = gk.SharedIndependent(gk.RationalQuadratic(lengthscales=0.9), 2)
    return kernel, GAUSSIAN(scale=0.3), None, {**FIXED, "pseudo_points": EVERY_INPUT}


def labels():
    """One kernel, but two groups, as their precisions differ."""
    points = sgp.SharedPseudoPoints(6, optimise_locations=False)
    options = {**FIXED, "pseudo_points": points}
    return gk.SquaredExponential(), gpflow.likelihoods.Bernoulli(), None, options


NEAR = {
    "pseudo_points": None,
    "conditioning": sgp.NearestNeighbors(num_neighbors=6, num_neighbors_pred=8),
}


def near():
    """Each prediction on its nearest rows, over draws of ε; one column is a constant offset."""
    kernel = gk.Matern52(lengthscales=[0.7, 1.1]) * gk.Constant() + gk.Constant(0.2)
    return kernel, GAUSSIAN(0.1), gpflow.functions.Constant(0.3), NEAR


def near_by_correlation():
    """Where distances do not say which rows are near: two kernels, of two outputs."""
    parts = [gk.Matern32(active_dims=[0]) + gk.Linear(), gk.Cosine() + gk.Polynomial(degree=2)]
    mean_function = gpflow.functions.Linear(np.array([[0.1, 0.4], [0.2, 0.3]]), np.ones(2))
    return gk.SeparateIndependent(parts), GAUSSIAN(0.1), mean_function, {**FIXED, **NEAR}


def near_labels():
    """Sites of unequal noise."""
    return gk.SquaredExponential(), gpflow.likelihoods.Bernoulli(), None, {**FIXED, **NEAR}


@cache
def learned(make):
    kernel, likelihood, mean_function, given = make()
    points = sgp.PrivatePseudoPoints(4, optimise_locations=False)
    options = {"pseudo_points": points, **given}
    model = sgp.StreamingGP(kernel, likelihood, mean_function, **options)
    rng = np.random.default_rng(7)
    for number in (20, 13):
        X, Y = smooth_data(rng, number, 2)
        discrete = isinstance(
            likelihood, (gpflow.likelihoods.Bernoulli, gpflow.likelihoods.Poisson)
        )
        model.update((X, (Y > 0.0).astype(float) if discrete else Y), learn=False)
    return model


MODELS = [
    mixture,
    pytest.param(separate, marks=pytest.mark.slow),
    columns,
    pytest.param(labels, marks=pytest.mark.slow),
    pytest.param(near, marks=pytest.mark.slow),
    near_by_correlation,
    near_labels,
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "predictor.npz"


def assert_close(ours, models):
    for mine, theirs in zip(ours, models, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=EXPORTED * scale)


def assert_exported(model, path, *inputs):
    model.export(path)
    loaded = runtime.load(path)
    for X in inputs:
        assert_close(loaded.predict_f(X), model.predict_f(X))
        assert_close(loaded.predict_y(X), model.predict_y(X))


@pytest.mark.parametrize("make", MODELS)
def test_predictions_are_those_of_the_model(make, rng, path):
    inputs = (rng.uniform(-2.5, 2.5, (number, 2)) for number in (1, 40))
    assert_exported(learned(make), path, *inputs)


def nearest(**options):
    kernel = gk.SquaredExponential(lengthscales=[0.5, 0.8])
    return sgp.StreamingGP(kernel, GAUSSIAN(0.1), **{**FIXED, **NEAR, **options})


def test_near_rows_that_cannot_be_told_apart_have_faded_and_lie_far_from_zero(rng, path):
    model = nearest(forgetting=sgp.Fading(0.5))
    offset = np.array([1e6, -2e6])
    for number in (300, 60):
        X, Y = smooth_data(rng, number, 2)
        model.update((X * [1.0, 0.01] + offset, Y))
    assert_exported(model, path, rng.uniform(-2.0, 2.0, (20, 2)) + offset)
    (rows,) = predictor.read(path).near
    assert len(rows) < 240


def test_merged_points_count_as_a_whole_beside_near_rows(rng, path):
    model = nearest()
    for _ in range(2):
        model.update(smooth_data(rng, 20, 2))
    model.compress(6)
    model.update(smooth_data(rng, 20, 2))
    assert_exported(model, path, rng.uniform(-2.0, 2.0, (20, 2)))


def test_each_draw_of_the_hyperparameters_is_exported(path):
    model = learned(mixture)
    model.export(path)
    draws = predictor.read(path).draws
    noises = [float(draw.likelihood.parameters["variance"]) for draw in draws]
    vector = model.parameter_vector
    wanted = vector.constrained(model.prediction_draws)["likelihood.variance"]
    np.testing.assert_allclose(noises, wanted, rtol=EXPORTED)
    assert len(set(noises)) == len(model.prediction_draws)


def test_few_values_of_epsilon_lose_no_more_than_they_may(rng, path):
    """The fewest are taken, and what they lose is what they say."""
    model, X = learned(mixture), rng.uniform(-2.0, 2.0, (60, 2))
    whole = model.export(path)
    assert (whole.num_values, whole.nats, whole.error) == (len(model.prediction_draws), 0.0, 0.0)
    size = path.stat().st_size
    numbers = []
    for nats in (1e3, 0.01, 1e-12):
        few = model.export(path, nats=nats)
        assert few.nats <= nats
        numbers.append(few.num_values)
        mean, variance = (np.asarray(part) for part in model.predict_y(X))
        other, spread = runtime.load(path).predict_y(X)
        lost = 0.5 * (variance / spread - 1.0 - np.log(variance / spread))
        lost += 0.5 * (mean - other) ** 2 / spread
        assert lost.mean() <= 3.0 * nats
    assert numbers[0] == 1
    assert numbers == sorted(numbers)
    assert numbers[-1] == whole.num_values
    model.export(path, nats=1e3)
    assert path.stat().st_size < size / 4
    with pytest.raises(InvalidDataError, match="nats must not be negative"):
        model.export(path, nats=-1.0)


def test_near_rows_alone_are_in_a_file_where_they_lose_no_more_than_they_may(rng, path):
    X = rng.uniform(-2.0, 2.0, (300, 1))
    model = sgp.StreamingGP(gk.Matern12(), GAUSSIAN(0.01), **FIXED)
    model.update((X, np.sin(2.0 * X)))
    model.export(path)
    assert [draw.near for draw in predictor.read(path).draws] == [None]
    assert 0.0 < model.export(path, nats=0.01).nats <= 0.01
    assert [draw.near.number for draw in predictor.read(path).draws] == [100]
    for mine, its in zip(runtime.load(path).predict_y(X), model.predict_y(X), strict=True):
        np.testing.assert_allclose(mine, its, atol=0.01)


def smooth_model():
    return sgp.StreamingGP(gk.Matern52(lengthscales=[1.0, 1.0]), GAUSSIAN(0.1), **FIXED)


def test_single_precision_says_its_error(rng, path):
    X = rng.uniform(-2.0, 2.0, (60, 2))
    model = smooth_model()
    model.update((X, np.sin(2.0 * X[:, :1]) + X[:, 1:]))
    model.export(path)
    size = path.stat().st_size
    found = model.export(path, single=True)
    assert 0.0 < found.error < 1e-3
    assert size - path.stat().st_size == pytest.approx(60 * (8 + 8) // 2, abs=128)  # R and s
    mean, variance = (np.asarray(part) for part in model.predict_f(X))
    other, spread = runtime.load(path).predict_f(X)
    assert np.max(np.abs(mean - other) / np.sqrt(variance)) < 3.0 * found.error
    assert np.max(np.abs(np.sqrt(spread / variance) - 1.0)) < 3.0 * found.error


def test_the_arithmetic_is_that_of_one_observation():
    mean, variance = runtime.Predictor(small()).predict_f([[0.0], [1.0]])
    k = np.exp([0.0, -0.5])
    np.testing.assert_allclose(mean[:, 0], k * np.sqrt(3.0) / 2.0)
    np.testing.assert_allclose(variance[:, 0], 1.0 - 0.75 * k**2)
    np.testing.assert_allclose(runtime.Predictor(small()).predict_y([[0.0]])[1], 0.75)


def test_predictions_in_chunks_are_the_same(rng, monkeypatch):
    loaded, X = runtime.Predictor(small()), rng.standard_normal((7, 1))
    whole = loaded.predict_y(X)
    monkeypatch.setattr(predictor, "CHUNK_ELEMENTS", 2)
    assert_close(loaded.predict_y(X), whole)


def test_another_likelihood_predicts_f_alone(path, rng):
    def counts():
        options = {**FIXED, "pseudo_points": EVERY_INPUT}
        return gk.Matern52(), gpflow.likelihoods.Poisson(), None, options

    model, X = learned(counts), rng.standard_normal((3, 2))
    model.export(path)
    loaded = runtime.load(path)
    assert_close(loaded.predict_f(X), model.predict_f(X))
    with pytest.raises(InvalidDataError, match=r"likelihood Poisson.*Gaussian, Bernoulli"):
        loaded.predict_y(X)


def test_where_all_has_faded_the_prior_is_exported(path, rng):
    model, X = smooth_model(), rng.standard_normal((3, 2))
    model.update(smooth_data(rng, 20))
    model.fade(0.0)
    model.export(path)
    assert_close(runtime.load(path).predict_y(X), model.predict_y(X))


def bernoulli_of_the_user():
    return type("Bernoulli", (gpflow.likelihoods.Bernoulli,), {})()


@pytest.mark.parametrize(
    "likelihood",
    [
        gpflow.likelihoods.StudentT(),
        GAUSSIAN(variance=gpflow.functions.Linear()),
        GAUSSIAN(scale=gpflow.functions.Linear()),
        gpflow.likelihoods.Bernoulli(invlink=lambda f: f),
        bernoulli_of_the_user(),
    ],
)
def test_what_differs_from_a_known_likelihood_has_another_name(likelihood):
    assert describe_likelihood(likelihood).name not in LIKELIHOODS


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0.0, 1.0]], r"\[N, 1\].*got \[1, 2\]"),
        ([0.0], r"got \[1\]"),
        (np.zeros((0, 1)), r"got \[0, 1\]"),
        ([[np.nan]], "finite"),
        ([["a"]], "real"),
        ([[1.0], [1.0, 2.0]], "rectangular"),
    ],
)
def test_bad_inputs_are_refused(bad, message):
    with pytest.raises(InvalidDataError, match=message):
        runtime.Predictor(small()).predict_f(bad)


def without_a_parameter(path):
    content = small()
    kernel = runtime.Description("SquaredExponential")
    predictor.write(path, replace(content, draws=(replace(content.draws[0], kernels=(kernel,)),)))


def test_a_file_that_describes_no_predictor_is_refused(path):
    predictor.write(path, small("Mystery"))
    with pytest.raises(FileFormatError, match="there is no NumPy form of the kernel Mystery"):
        runtime.load(path)
    without_a_parameter(path)
    with pytest.raises(FileFormatError, match=r"no valid predictor: .*variance"):
        runtime.load(path)
    content = small()
    (draw,) = content.draws
    for wrong in (
        {"targets": np.ones((1, 2, 1))},
        {"precision_factor": (np.full((1, 1), np.nan),)},
    ):
        predictor.write(path, replace(content, draws=(replace(draw, **wrong),)))
        with pytest.raises(FileFormatError, match="no valid predictor: "):
            runtime.load(path)


def test_before_any_data_there_is_nothing_to_export(path):
    with pytest.raises(InvalidDataError, match="once it has seen data"):
        sgp.StreamingGP(gk.Matern32(), GAUSSIAN()).export(path)


@pytest.mark.usefixtures("eager")
def test_conditional_points_are_refused(path):
    points = sgp.ConditionalPseudoPoints(3, optimise_locations=False)
    model = sgp.StreamingGP(gk.Matern32(), GAUSSIAN(), pseudo_points=points, **FIXED)
    model.update((np.eye(4), np.ones((4, 1))), learn=False)
    with pytest.raises(InvalidDataError, match="conditional pseudo-points cannot be exported"):
        model.export(path)
    assert not path.exists()


def test_neither_tensorflow_nor_gpflow_is_imported(path):
    predictor.write(path, small())
    code = """
import sys
import streaming_gp.runtime
mean, _ = streaming_gp.runtime.load(sys.argv[1]).predict_y([[0.0]])
assert not {"tensorflow", "tensorflow_probability", "gpflow", "check_shapes"} & set(sys.modules)
print(mean[0, 0])
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(np.sqrt(0.75))


def test_every_public_name_is_there():
    assert set(sgp.__all__) <= set(dir(sgp))
    assert {"evaluate", "losses", "mixture", "samplers", "sklearn"} <= set(sgp.__all__)
    for name in sgp.__all__:
        assert getattr(sgp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sgp.nothing
