"""The contract of the streaming model: sound updates, clear refusals, no drift, no leak."""

import subprocess
import sys

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.local_update import LocalUpdate
from streaming_gp.progress import progress_bar
from tests.reference import smooth_data

QUICK = sgp.LocalOptimiser(max_iterations=10, rounds=2)


def classifier(**options):
    options.setdefault("hyperparameters", sgp.PointHyperparameters())
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints(5), optimiser=QUICK, **options,
    )  # fmt: skip


def regressor(**options):
    options.setdefault("hyperparameters", sgp.VariationalHyperparameters())
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(5))
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1), optimiser=QUICK, **options,
    )  # fmt: skip


def labelled(rng, num=60):
    X, F = smooth_data(rng, num)
    return X, (F > 0).astype(float)


def changed(array, index, value):
    copy = np.array(array)
    copy[index] = value
    return copy


BAD = {
    "nan in X": (lambda X, Y: (changed(X, (3, 1), np.nan), Y), "X must be finite.*row 3, column 1"),
    "inf in Y": (lambda X, Y: (X, changed(Y, 0, np.inf)), "Y must be finite.*row 0"),
    "empty": (lambda X, Y: (X[:0], Y[:0]), r"N ≥ 1, got \[0, 2\]"),
    "too few columns": (lambda X, Y: (X[:, :1], Y), r"X must have shape \[N, 2\].*got \[60, 1\]"),
    "another output": (lambda X, Y: (X, np.c_[Y, Y]), r"Y must have shape \[N, 1\].*got \[60, 2\]"),
    "rows differ": (lambda X, Y: (X, Y[:10]), "as many rows, got 60 and 10"),
    "one-dimensional": (lambda X, Y: (X, Y[:, 0]), r"Y must have shape .*got \[60\]"),
    "label 2": (lambda X, Y: (X, Y + 1), "Y holds 2, outside .* of Bernoulli: wanted 0 or 1"),
    "label -1": (lambda X, Y: (X, 2 * Y - 1), "Y holds -1"),
    "object": (lambda X, Y: (X.astype(object), Y), "dtype object"),
    "strings": (lambda X, Y: (X.astype(str), Y), "real numbers"),
    "complex": (lambda X, Y: (X.astype(complex), Y), "real numbers"),
    "integer overflow": (lambda X, Y: (np.full((60, 2), 2**62), Y), "integer 4611686018427387904"),
    "unsigned overflow": (
        lambda X, Y: (np.full((60, 2), 2**64 - 1, np.uint64), Y), "integer 18446744073709551615",
    ),
    "beyond 64 bits": (lambda X, Y: ([[10**30, 1]] * 60, Y), "dtype object"),
    "ragged": (lambda X, Y: ([[1.0, 2.0], [3.0]], Y), "rectangular"),
    "not a pair": (lambda X, Y: X, "must be a pair"),
    "nothing": (lambda X, Y: None, "pair .*NoneType"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    model = classifier()
    model.update(labelled(np.random.default_rng(5)))
    return model


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_clear_error_and_changes_nothing(rng, trained, name):
    spoil, message = BAD[name]
    X, Y = labelled(rng)
    before = [np.asarray(t) for t in trained.predict_f(X)]
    parameters, factors = trained._parameters().value(), dict(trained.factors)
    with pytest.raises(InvalidDataError, match=message):
        trained.update(spoil(X, Y))
    for a, b in zip(before, trained.predict_f(X), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(trained._parameters().value(), parameters)
    assert dict(trained.factors) == factors


def test_a_fit_that_fails_half_way_changes_nothing(rng, trained, monkeypatch):
    X, Y = labelled(rng)
    before = [np.asarray(t) for t in trained.predict_f(X)]
    parameters = trained._parameters().value()

    def fail(*_):
        raise NumericalError("the local posterior covariance gave non-finite sites")

    monkeypatch.setattr(LocalUpdate, "_posterior", fail)
    with (
        pytest.warns(UserWarning, match="nugget"),
        pytest.raises(NumericalError, match="covariance"),
    ):
        trained.update((X, Y))
    for a, b in zip(before, trained.predict_f(X), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(trained._parameters().value(), parameters)
    assert len(trained.factors) == 1


def test_a_callback_that_raises_stops_the_update_and_changes_nothing(rng, trained):
    X, Y = labelled(rng)
    before = np.asarray(trained.predict_f(X)[0])

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained.update((X, Y), callback=stop)
    np.testing.assert_array_equal(trained.predict_f(X)[0], before)


def test_a_first_batch_that_is_refused_leaves_the_model_open(rng):
    model, (X, Y) = regressor(), smooth_data(rng, 20)
    with pytest.raises(InvalidDataError):
        model.update((X, Y * np.nan))
    info = model.update((X, np.c_[Y, Y]))
    assert (info.batch_id, model.num_latent_gps) == ("batch-0", 2)


@pytest.mark.parametrize(
    ("likelihood", "value", "support"),
    [
        (gpflow.likelihoods.Poisson(), 1.5, "counts"),
        (gpflow.likelihoods.Poisson(), -1.0, "counts"),
        (gpflow.likelihoods.Softmax(3), 3.0, "labels 0 to 2"),
        (gpflow.likelihoods.MultiClass(3), 0.5, "labels 0 to 2"),
        (gpflow.likelihoods.Gamma(), 0.0, "positive"),
        (gpflow.likelihoods.Exponential(), -2.0, "positive"),
        (gpflow.likelihoods.Beta(), 1.0, "between 0 and 1"),
        (gpflow.likelihoods.Ordinal(np.array([-1.0, 1.0])), 3.0, "levels 0 to 2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_observations_outside_the_support_are_refused(likelihood, value, support):
    model = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), likelihood)
    with pytest.raises(InvalidDataError, match=support):
        model.update((np.zeros((1, 1)), np.array([[value]])))


def test_a_likelihood_without_a_density_for_the_data_is_named():
    """GPflow's Ordinal gives NaN at its extreme levels with this TensorFlow."""

    class Broken(gpflow.likelihoods.StudentT):
        def _scalar_log_prob(self, X, F, Y):
            return np.nan * F

    with pytest.raises(InvalidDataError, match="Broken gives no finite density to Y at row 0"):
        sgp.StreamingGP(gpflow.kernels.SquaredExponential(), Broken()).update(([[0.0]], [[1.0]]))


GPFLOW_LIKELIHOODS = {
    "Exponential": (gpflow.likelihoods.Exponential(), lambda f, rng: rng.exponential(np.exp(f))),
    "Gamma": (gpflow.likelihoods.Gamma(), lambda f, rng: rng.gamma(2.0, np.exp(f))),
    "Beta": (gpflow.likelihoods.Beta(), lambda f, rng: 1.0 / (1.0 + np.exp(-f))),
    "GaussianMC": (gpflow.likelihoods.GaussianMC(0.1), lambda f, rng: f),
    "Heteroskedastic": (gpflow.likelihoods.HeteroskedasticTFPConditional(), lambda f, rng: f),
    "Switched": (
        gpflow.likelihoods.SwitchedLikelihood(
            [gpflow.likelihoods.Gaussian(0.1), gpflow.likelihoods.StudentT()]
        ),
        lambda f, rng: np.c_[f, rng.integers(0, 2, len(f))],
    ),
}


@pytest.mark.parametrize("name", GPFLOW_LIKELIHOODS)
def test_other_likelihoods_of_gpflow_stream(rng, name):
    likelihood, observe = GPFLOW_LIKELIHOODS[name]
    X, F = smooth_data(rng, 40)
    Y = observe(F, rng)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), likelihood, optimiser=QUICK,
        pseudo_points=sgp.PrivatePseudoPoints(6), hyperparameters=sgp.PointHyperparameters(),
    )  # fmt: skip
    untrained = float(np.mean(model.predict_log_density((X, Y))))
    for rows in (slice(0, 20), slice(20, 40)):
        model.update((X[rows], Y[rows]))
    assert float(np.mean(model.predict_log_density((X, Y)))) > untrained


def test_another_float_type_is_refused():
    k = gpflow.kernels.SquaredExponential()
    k.variance = gpflow.Parameter(1.0, dtype=np.float32)
    with pytest.raises(InvalidDataError, match=r"kernel.variance is float32.*float64"):
        sgp.StreamingGP(k, gpflow.likelihoods.Gaussian())


SOUND = {
    "duplicated rows": lambda X, Y: (np.repeat(X[:3], 20, axis=0), np.repeat(Y[:3], 20, axis=0)),
    "all rows alike": lambda X, Y: (np.repeat(X[:1], 60, axis=0), Y),
    "constant column": lambda X, Y: (changed(X, np.s_[:, 1], 7.0), Y),
    "one point": lambda X, Y: (X[:1], Y[:1]),
    "far away": lambda X, Y: (X + 1e6, Y),
    "the same batch again": lambda X, Y: (X, Y),
    "constant targets": lambda X, Y: (X, np.zeros_like(Y)),
    "large targets": lambda X, Y: (X, 1e4 * Y),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize(
    "hyperparameters",
    [sgp.VariationalHyperparameters(), sgp.PointHyperparameters()],
    ids=["VI", "ML"],
)
@pytest.mark.filterwarnings("ignore:.*nugget.*")
def test_awkward_batches_give_sound_updates(rng, name, hyperparameters):
    model, (X, Y) = regressor(hyperparameters=hyperparameters), smooth_data(rng)
    model.update((X, Y))
    for data in (SOUND[name](X, Y), smooth_data(rng)):
        assert np.isfinite(model.update(data).free_energy)
        mean, variance = (np.asarray(t) for t in model.predict_f(data[0]))
        assert np.isfinite(mean).all()
        assert (variance > 0.0).all()


@pytest.mark.parametrize("name", ["duplicated rows", "one point", "far away"])
@pytest.mark.filterwarnings("ignore:.*nugget.*")
def test_awkward_batches_of_labels_give_sound_updates(rng, name):
    model, (X, Y) = classifier(), labelled(rng)
    model.update((X, Y))
    for data in (SOUND[name](X, Y), labelled(rng)):
        assert np.isfinite(model.update(data).free_energy)
        probability = np.asarray(model.predict_y(data[0])[0])
        assert ((probability > 0.0) & (probability < 1.0)).all()


def test_duplicated_inputs_share_a_pseudo_point(rng):
    X, Y = smooth_data(rng, 3)
    info = regressor().update((np.repeat(X, 5, axis=0), np.repeat(Y, 5, axis=0)))
    assert info.num_pseudo_points == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool, tf.float32])
def test_any_real_dtype_is_taken(dtype):
    X = np.arange(12).reshape(6, 2) % 5
    Y = np.arange(6)[:, None] % 2
    X, Y = (tf.cast(a, dtype) if dtype is tf.float32 else a.astype(dtype) for a in (X, Y))
    model = classifier()
    model.update((X, Y))
    assert model.predict_f(X)[0].dtype == tf.float64


def test_inputs_are_not_mutated(rng):
    X, Y = smooth_data(rng, 20)
    copies = X.copy(), Y.copy()
    regressor().update((X, Y))
    np.testing.assert_array_equal(X, copies[0])
    np.testing.assert_array_equal(Y, copies[1])


def test_the_same_seed_gives_the_same_stream_twice(rng):
    data = [smooth_data(rng, 40) for _ in range(3)]
    predictions = []
    for seed in (3, 3, 4):
        model = regressor(seed=seed)
        for batch in data:
            model.update(batch)
        predictions.append(np.asarray(model.predict_f(data[0][0])[0]))
    np.testing.assert_array_equal(predictions[0], predictions[1])
    assert np.abs(predictions[0] - predictions[2]).max() > 0.0


def test_update_info_and_progress(rng):
    model, seen = regressor(), []
    info = model.update(smooth_data(rng), callback=seen.append)
    assert [p.iteration for p in seen] == list(range(1, info.iterations + 1))
    assert {(p.batch_id, p.max_iterations) for p in seen} == {("batch-0", 10)}
    assert seen[-1].free_energy == pytest.approx(info.free_energy)
    assert info.num_pseudo_points == 5
    assert info.seconds > 0.0
    assert info.clipped_sites == 0
    with pytest.raises(AttributeError):
        info.batch_id = "other"


def test_clipped_sites_are_counted(rng):
    """Student's t is not log-concave: outliers ask for negative site precisions."""
    X, Y = smooth_data(rng)
    Y[::10] += 8.0
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.StudentT(scale=0.1, df=3.0),
        hyperparameters=sgp.FixedHyperparameters(),
    )  # fmt: skip
    assert 1 <= model.update((X, Y)).clipped_sites <= 10


def test_it_is_a_gpflow_model(rng, capsys):
    model = regressor()
    assert isinstance(model, gpflow.models.GPModel)
    model.update(smooth_data(rng))
    assert set(gpflow.utilities.parameter_dict(model)) == {
        ".kernel.variance", ".kernel.lengthscales", ".likelihood.variance",
    }  # fmt: skip
    model.print_summary()
    printed = capsys.readouterr().out
    assert "kernel.lengthscales" in printed
    assert "prior × 1 factors, 5 points" in printed
    assert np.isfinite(model.training_loss())


def test_a_deep_copy_continues_on_its_own(rng):
    model, second = regressor(), smooth_data(rng)
    model.update(smooth_data(rng))
    clone = gpflow.utilities.deepcopy(model)
    assert clone.training_loss() == model.training_loss()
    model.update(second)
    assert (len(model.factors), len(clone.factors)) == (2, 1)
    clone.update(second)
    for a, b in zip(model.predict_f(second[0]), clone.predict_f(second[0]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_odd_number_of_prediction_samples_is_refused():
    with pytest.raises(InvalidDataError, match="num_prediction_samples"):
        regressor(num_prediction_samples=7)


def test_gpflow_can_optimise_the_log_normaliser(rng):
    """A stream fitted at fixed ε is still a GPflow objective in ε."""
    model = regressor(hyperparameters=sgp.FixedHyperparameters())
    for _ in range(2):
        model.update(smooth_data(rng))
    before = float(model.training_loss())
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.kernel.trainable_variables, options={"maxiter": 20}
    )
    assert float(model.training_loss()) < before - 1.0


def test_a_new_kernel_is_seen(rng):
    """Compiled functions belong to the parameters they were traced with."""
    model = regressor(hyperparameters=sgp.FixedHyperparameters())
    X, Y = smooth_data(rng)
    model.update((X, Y))
    model.kernel = gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=[0.2, 0.2])
    model.update((X, Y))
    oracle = regressor(hyperparameters=sgp.FixedHyperparameters())
    oracle.kernel = model.kernel
    oracle._ledger = model.ledger
    for a, b in zip(model.predict_f(X), oracle.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_what_is_trainable_cannot_change_under_a_distribution(rng):
    model = regressor()
    model.update(smooth_data(rng))
    gpflow.set_trainable(model.kernel.variance, False)
    with pytest.raises(InvalidDataError, match="trainable"):
        model.update(smooth_data(rng))


def test_kernels_that_mix_latent_functions_are_refused():
    mixing = gpflow.kernels.LinearCoregionalization([gpflow.kernels.RBF()], W=np.ones((2, 1)))
    with pytest.raises(InvalidDataError, match="LinearCoregionalization"):
        sgp.StreamingGP(mixing, gpflow.likelihoods.Gaussian())


@pytest.mark.parametrize("number", [0, -3, 2.5, "some", True])
def test_senseless_numbers_of_points_are_refused(number):
    with pytest.raises(InvalidDataError, match="pseudo-points"):
        sgp.PrivatePseudoPoints(number)


@pytest.mark.parametrize(
    "options", [{"max_iterations": 0}, {"rounds": 0}, {"site_damping": 0.0}, {"site_damping": 2.0}]
)
def test_senseless_optimisers_are_refused(options):
    with pytest.raises(InvalidDataError, match=next(iter(options))):
        sgp.LocalOptimiser(**options)


def test_automatic_points_follow_what_can_be_gained(rng):
    """More for a rough function than for a smooth one, no more where much is known already."""
    numbers = {}
    for lengthscale in (0.3, 3.0):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=lengthscale),
            gpflow.likelihoods.Gaussian(0.1), hyperparameters=sgp.FixedHyperparameters(),
            pseudo_points=sgp.PrivatePseudoPoints("auto"),
        )  # fmt: skip
        X, Y = smooth_data(rng, 200)
        numbers[lengthscale] = model.update((X, Y)).num_pseudo_points
        again = model.update((X + 1e-3, Y)).num_pseudo_points
        assert again <= numbers[lengthscale]
    assert numbers[3.0] < numbers[0.3] / 3
    assert numbers[0.3] <= 100


def test_automatic_points_leave_little_to_gain(rng):
    """The bound with chosen points is within the tolerance of the exact evidence."""
    X, Y = smooth_data(rng, 150)
    make = lambda number: sgp.StreamingGP(  # noqa: E731
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=sgp.FixedHyperparameters(), pseudo_points=number,
    )  # fmt: skip
    chosen = make(sgp.PrivatePseudoPoints("auto", tolerance=0.01)).update((X, Y))
    exact = make(sgp.PrivatePseudoPoints("all")).update((X, Y))
    assert chosen.num_pseudo_points < 75
    assert 0.0 <= exact.free_energy - chosen.free_energy < 2 * 0.01 * 150


def test_updates_of_any_size_trace_each_function_once(rng):
    model = regressor()
    sizes = [30, 1, 17, 30, 8, 55, 2, 41]
    for size in sizes:
        X, Y = smooth_data(rng, size)
        model.update((X, Y))
        model.predict_f(X)
    functions, predictor = model._machinery.update.functions, model._machinery.predictor
    members = [*vars(functions).values(), *vars(predictor).values()]
    compiled = [f for f in members if hasattr(f, "experimental_get_tracing_count")]
    assert len(compiled) >= 10
    assert max(f.experimental_get_tracing_count() for f in compiled) == 1


LONG_STREAM = """
import gpflow, numpy as np, psutil, streaming_gp as sgp

resident = lambda: psutil.Process().memory_info().rss / 2**20
rng = np.random.default_rng(0)
model = sgp.StreamingGP(
    gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
    pseudo_points=sgp.PrivatePseudoPoints(1), hyperparameters=sgp.PointHyperparameters(),
    optimiser=sgp.LocalOptimiser(max_iterations=20),
)
for batch in range(210):
    X = rng.uniform(-3, 3, (rng.integers(1, 80), 1))
    model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
    model.predict_f(X)
    if batch == 9:
        start = resident()
functions = vars(model._machinery.update.functions).values()
compiled = [f for f in functions if hasattr(f, "get_concrete_function")]
counts = [f.experimental_get_tracing_count() for f in compiled]
print(resident() - start, max(counts))
"""


@pytest.mark.slow
def test_two_hundred_updates_do_not_leak():
    """One point a batch keeps the ledger, whose matrices may grow, small beside a leak; the process
    is its own, so that nothing else allocates."""
    run = subprocess.run([sys.executable, "-c", LONG_STREAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    grown, traces = run.stdout.split()
    assert float(grown) < 30.0
    assert int(traces) == 1


def test_progress_off_a_terminal_is_one_line(rng, capsys):
    model = regressor()
    with progress_bar("batch 1") as callback:
        info = model.update(smooth_data(rng), callback=callback)
    printed = capsys.readouterr().out
    expected = f"batch 1: {info.iterations} iterations, free energy {info.free_energy:.2f}\n"
    assert printed == expected
