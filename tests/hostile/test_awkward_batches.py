"""Whatever batch is allowed is learned from: awkward inputs, any dtype, any likelihood."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from tests.oracles.builders import EVERY_INPUT, QUICK, classifier, labelled, regressor
from tests.oracles.reference import smooth_data


def changed(array, index, value):
    copy = np.array(array)
    copy[index] = value
    return copy


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


@pytest.mark.slow
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


class Begun:
    """A model after one batch, to which every test sets it back: compiling it takes seconds."""

    def __init__(self, model, data):
        model.update(data)
        self.model, self.data = model, data
        self.ledger, self.epsilon = model.ledger, model.parameter_vector.value()

    def again(self):
        self.model.parameter_vector.assign(self.epsilon)
        self.model.adopt(self.ledger)
        return self.model, self.data


@pytest.fixture(
    scope="module",
    params=[sgp.VariationalHyperparameters(), sgp.PointHyperparameters()],
    ids=["VI", "ML"],
)
def of_numbers(request):
    data = smooth_data(np.random.default_rng(20181127))
    return Begun(regressor(hyperparameters=request.param), data)


def test_targets_of_another_size_are_learned_whatever_the_seed():
    X, Y = data = smooth_data(np.random.default_rng(20181127))
    model, _ = Begun(regressor(hyperparameters=sgp.VariationalHyperparameters()), data).again()
    start = model.ledger
    for number in range(1, 13):  # of the batch: its random numbers go with it
        model.adopt(start)
        assert np.isfinite(model.update((X, 1e4 * Y)).free_energy), number


@pytest.fixture(scope="module")
def of_labels():
    return Begun(classifier(), labelled(np.random.default_rng(20181127)))


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore:.*nugget.*")
def test_awkward_batches_give_sound_updates(rng, of_numbers, name):
    model, (X, Y) = of_numbers.again()
    for data in (SOUND[name](X, Y), smooth_data(rng)):
        assert np.isfinite(model.update(data).free_energy)
        mean, variance = (np.asarray(t) for t in model.predict_f(data[0]))
        assert np.isfinite(mean).all()
        assert (variance > 0.0).all()


@pytest.mark.parametrize("name", ["duplicated rows", "one point", "far away"])
@pytest.mark.filterwarnings("ignore:.*nugget.*")
def test_awkward_batches_of_labels_give_sound_updates(rng, of_labels, name):
    model, (X, Y) = of_labels.again()
    for data in (SOUND[name](X, Y), labelled(rng)):
        assert np.isfinite(model.update(data).free_energy)
        probability = np.asarray(model.predict_y(data[0])[0])
        assert ((probability > 0.0) & (probability < 1.0)).all()


def test_duplicated_inputs_share_a_pseudo_point(rng, of_numbers):
    X, Y = smooth_data(rng, 3)
    unknown = X + 50.0, Y
    info = of_numbers.again()[0].update([np.repeat(part, 5, axis=0) for part in unknown])
    assert info.num_pseudo_points == 3


@pytest.mark.parametrize("budget", [None, 220])
def test_a_batch_far_from_all_others_is_learned_from(rng, budget):
    """Its covariance with them is zero, and there are too many of them to look at all."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), optimiser=QUICK,
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=budget),
    )  # fmt: skip
    for number, offset in enumerate((0.0, 0.0, 0.0, 1e4, 0.0)):
        X, Y = smooth_data(rng, 110)
        info = model.update((X + offset, Y))
        assert np.isfinite(info.free_energy), number
        mean, _ = model.predict_f(X + offset)
        assert np.mean((np.asarray(mean) - Y) ** 2) < 0.5 * np.var(Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool, tf.float32])
def test_any_real_dtype_is_taken(of_labels, dtype):
    X = np.arange(12).reshape(6, 2) % 5
    Y = np.arange(6)[:, None] % 2
    X, Y = (tf.cast(a, dtype) if dtype is tf.float32 else a.astype(dtype) for a in (X, Y))
    model, _ = of_labels.again()
    model.update((X, Y))
    assert model.predict_f(X)[0].dtype == tf.float64


def test_inputs_are_not_mutated(rng, of_numbers):
    X, Y = smooth_data(rng, 20)
    copies = X.copy(), Y.copy()
    of_numbers.again()[0].update((X, Y))
    np.testing.assert_array_equal(X, copies[0])
    np.testing.assert_array_equal(Y, copies[1])


class Cauchy(gpflow.likelihoods.ScalarLikelihood):
    """Noise of scale 0.1 whose density is not log-concave."""

    def _scalar_log_prob(self, X, F, Y):
        return -np.log(0.1 * np.pi) - tf.math.log1p(((Y - F) / 0.1) ** 2)


def test_clipped_sites_are_counted(rng):
    """Outliers ask for negative site precisions."""
    X, Y = smooth_data(rng)
    Y[::10] += 8.0
    kernel, fixed = gpflow.kernels.SquaredExponential(), sgp.FixedHyperparameters()
    model = sgp.StreamingGP(kernel, Cauchy(), hyperparameters=fixed)
    assert 1 <= model.update((X, Y)).clipped_sites <= 10


@pytest.mark.parametrize(
    "points",
    [EVERY_INPUT, pytest.param(sgp.PrivatePseudoPoints(5), marks=pytest.mark.slow)],
    ids=["all", "five"],
)
def test_hyperparameters_in_the_thousands_are_learned(rng, points):
    """Heights in metres, days since an epoch: above 709 the exponential overflows."""
    X = rng.uniform(-4000.0, 4000.0, (40, 1))
    Y = 60.0 * np.sin(X / 900.0) + rng.normal(size=X.shape)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=3000.0, lengthscales=900.0),
        gpflow.likelihoods.Gaussian(1.0),
        pseudo_points=points,
        optimiser=sgp.LocalOptimiser(max_iterations=5, epsilon_iterations=0),
    )
    assert model.update((X, Y)).iterations == 5
    assert model.kernel.lengthscales.numpy() > 1000.0
