"""Whatever batch is allowed is learned from, however awkward or unexpected."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from tests.hostile import streams
from tests.hostile.cases import changed
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    QUICK,
    classifier,
    kernel,
    labelled,
    regressor,
)
from tests.oracles.reference import smooth_data

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
    params=[
        sgp.VariationalHyperparameters(),
        pytest.param(sgp.PointHyperparameters(), marks=pytest.mark.slow),
    ],
    ids=["VI", "ML"],
)
def of_numbers(request):
    data = smooth_data(np.random.default_rng(20181127))
    return Begun(regressor(hyperparameters=request.param, optimiser=streams.QUICK), data)


@pytest.fixture(scope="module")
def of_labels():
    return Begun(classifier(), labelled(np.random.default_rng(20181127)))


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore:.*nugget.*")
def test_awkward_batches_give_sound_updates_and_are_not_changed(rng, of_numbers, name):
    model, (X, Y) = of_numbers.again()
    for data in (SOUND[name](X, Y), smooth_data(rng)):
        given = [part.copy() for part in data]
        assert np.isfinite(model.update(data).free_energy)
        for one, other in zip(data, given, strict=True):
            np.testing.assert_array_equal(one, other)
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


@pytest.mark.parametrize(
    ("known", "budget"), [(310, None), pytest.param(40, 80, marks=pytest.mark.slow)]
)
def test_a_batch_far_from_all_others_is_learned_from(rng, known, budget):
    """Its covariance with them is zero, and there are too many of them to look at all."""
    points = sgp.PrivatePseudoPoints("all", budget=budget)
    model = regressor(pseudo_points=points, optimiser=streams.QUICK)
    for number, offset, learn in ((20, 0.0, True), (known, 0.0, False), (40, 1e4, True)):
        X, Y = smooth_data(rng, number)
        info = model.update((X + offset, Y), learn=learn)
        assert np.isfinite(info.free_energy), offset
        mean, _ = model.predict_f(X + offset)
        assert np.mean((np.asarray(mean) - Y) ** 2) < 0.5 * np.var(Y)


def test_rest_does_not_say_what_the_noise_of_motion_is(rng):
    """A batch at one input with next to no noise; then motion, where the deviation is 0.1."""
    at = rng.uniform(-2.0, 2.0, (1, 2))

    def observed(X, deviation):
        return X, np.sin(X).sum(axis=1, keepdims=True) + deviation * rng.standard_normal(
            (len(X), 1)
        )

    stream = [observed(np.tile(at, (30, 1)), 1e-3)]
    stream += [observed(rng.uniform(-2.0, 2.0, (30, 2)), 0.1) for _ in range(2)]
    model = regressor(pseudo_points=EVERY_INPUT, optimiser=sgp.LocalOptimiser())
    for batch in stream:
        model.update(batch)
    all_rows = tuple(np.concatenate(parts) for parts in zip(*stream, strict=True))
    exact = gpflow.models.GPR(all_rows, kernel(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    new = observed(rng.uniform(-2.0, 2.0, (100, 2)), 0.1)
    ours, right = (float(np.mean(one.predict_log_density(new))) for one in (model, exact))
    assert ours > right - 0.3


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool, tf.float32])
def test_any_real_dtype_is_taken(of_labels, dtype):
    X = np.arange(12).reshape(6, 2) % 5
    Y = np.arange(6)[:, None] % 2
    X, Y = (tf.cast(a, dtype) if dtype is tf.float32 else a.astype(dtype) for a in (X, Y))
    model, _ = of_labels.again()
    model.update((X, Y), learn=False)
    assert model.predict_f(X)[0].dtype == tf.float64


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
        optimiser=sgp.LocalOptimiser(max_iterations=5),
    )
    assert model.update((X, Y)).iterations >= 5
    assert model.kernel.lengthscales.numpy() > 1000.0


@pytest.mark.parametrize(
    ("points", "seed"),
    [
        (EVERY_INPUT, 0),
        pytest.param(sgp.ConditionalPseudoPoints(20), 1, marks=pytest.mark.slow),
    ],
    ids=["all", "conditional"],
)
def test_a_function_is_found_among_outliers(points, seed):
    """Not left wherever the prior was by data that are too far from it to count."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (150, 1))
    F = 2.0 * np.sin(X)
    kernel = gpflow.kernels.SquaredExponential(variance=4.0)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.StudentT(scale=0.1, df=3.0), pseudo_points=points,
        hyperparameters=FIXED,
    )  # fmt: skip
    info = model.update((X, F + 0.1 * rng.standard_t(2, F.shape)))
    mean, _ = model.predict_f(X)
    assert np.sqrt(np.mean((mean - F) ** 2)) < 0.07
    assert info.clipped_sites == 0


@pytest.mark.parametrize(
    ("points", "learn"),
    [
        pytest.param(EVERY_INPUT, True, marks=pytest.mark.slow),
        (sgp.PrivatePseudoPoints(8), False),
        (sgp.SharedPseudoPoints(12), False),
        pytest.param(sgp.SharedPseudoPoints(12), True, marks=pytest.mark.slow),
    ],
    ids=["all", "private", "shared and known", "shared"],
)
def test_counts_in_the_hundreds_are_learned(points, learn, rng):
    X = rng.uniform(-3.0, 3.0, (90, 1))
    Y = rng.poisson(np.exp(5.0 + np.sin(2.0 * X))).astype(float)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=20.0),
        gpflow.likelihoods.Poisson(),
        pseudo_points=points,
        optimiser=sgp.LocalOptimiser() if learn else QUICK,
        seed=0,
    )
    for some in (slice(0, 30), slice(30, 60)):
        model.update((X[some], Y[some]), learn=learn)
    assert np.mean(model.predict_log_density((X[60:], Y[60:]))) > -6.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_steps_that_go_too_far_are_taken_back_without_a_warning(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    F = 8.0 + np.sin(2.0 * X)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Poisson(), hyperparameters=FIXED
    )
    for rows in np.split(np.arange(60), 3):
        model.update((X[rows], rng.poisson(np.exp(F[rows])).astype(float)))
    assert np.abs(model.predict_f(X)[0] - F).max() < 0.1


@pytest.mark.parametrize(
    ("noise", "dimension"),
    [(1e-10, 1), *(pytest.param(noise, 3, marks=pytest.mark.slow) for noise in (1e-10, 1e-3))],
)
def test_functions_without_noise_are_learned_for_ever(noise, dimension):
    rng = np.random.default_rng(0)
    slope = rng.standard_normal((dimension, 1))
    X = rng.standard_normal((1500, dimension))
    Y = X @ slope
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=np.full(dimension, 5.0)),
        gpflow.likelihoods.Gaussian(noise, variance_lower_bound=0.0),
        pseudo_points=EVERY_INPUT,
        hyperparameters=FIXED,
    )
    model.update((X[:20], Y[:20]))
    online = model.online(budget=40)
    errors = []
    for x, y in zip(X[20:], Y[20:], strict=True):
        mean, variance = online.predict(x)
        errors.append(abs(float(mean[0] - y[0])) / np.sqrt(float(variance[0])))
        online.update(x, y)
    assert np.isfinite(online.log_evidence)
    assert max(errors) < 6.0
    assert max(errors[700:]) < 4.0


WIDE, RARE = 25.0, 0.1


class Contaminated(gpflow.likelihoods.ScalarLikelihood):
    """A tenth of the data are of wide noise."""

    def __init__(self, variance=0.05):
        super().__init__()
        self.variance = gpflow.Parameter(variance, transform=gpflow.utilities.positive())

    def _scalar_log_prob(self, X, F, Y):
        log_density = gpflow.logdensities.gaussian
        near = log_density(Y, F, self.variance) + np.log(1.0 - RARE)
        far = log_density(Y, F, tf.constant(WIDE, tf.float64)) + np.log(RARE)
        return tf.reduce_logsumexp(tf.stack([near, far]), 0)

    def _conditional_mean(self, X, F):
        return tf.identity(F)

    def _conditional_variance(self, X, F):
        return ((1.0 - RARE) * self.variance + RARE * WIDE) * tf.ones_like(F)


def wave(X):
    return 1.2 * np.sin(2.0 * X[:, :1]) * np.cos(X[:, 1:])


@pytest.fixture(scope="module")
def contaminated():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (300, 2))
    is_far = rng.uniform(size=(300, 1)) < RARE
    noise = np.where(is_far, np.sqrt(WIDE), 0.15) * rng.standard_normal((300, 1))
    return X, wave(X) + noise


def smse(model, seed=5):
    X = np.random.default_rng(seed).uniform(-2.0, 2.0, (300, 2))
    mean = np.asarray(model.predict_f(X)[0])
    return np.mean(np.square(mean - wave(X))) / np.var(wave(X))


@pytest.mark.slow
def test_a_fit_ends_where_maximum_likelihood_does(contaminated):
    """Within five nats: from what sites are while ε moves, and not from nothing at narrow noise."""
    model = sgp.StreamingGP(
        kernel(), Contaminated(), hyperparameters=sgp.PointHyperparameters(), seed=0
    )
    found = model.update(contaminated).free_energy
    oracle = gpflow.models.SVGP(kernel(), Contaminated(), contaminated[0].copy())
    gpflow.set_trainable(oracle.inducing_variable, False)
    loss = oracle.training_loss_closure(contaminated)
    gpflow.optimizers.Scipy().minimize(loss, oracle.trainable_variables, options={"maxiter": 300})
    assert found > -loss().numpy() - 5.0
    assert smse(model) < 0.015


@pytest.mark.slow
def test_so_does_one_with_a_distribution_over_hyperparameters(contaminated):
    model = sgp.StreamingGP(kernel(), Contaminated(), seed=0)
    model.update(contaminated)
    assert smse(model) < 0.02


@pytest.mark.slow
def test_at_narrow_noise_sites_end_at_the_optimum(contaminated):
    """That of GPflow, whose q(f) is free: means are stationary where sites are cut off, too."""
    data = X, _ = tuple(part[:60] for part in contaminated)
    smooth, likelihood = gpflow.kernels.SquaredExponential(0.8, [0.9, 1.4]), Contaminated(0.015)
    model = sgp.StreamingGP(smooth, likelihood, hyperparameters=FIXED)
    found = model.update(data, learn=False).free_energy
    oracle = gpflow.models.SVGP(smooth, likelihood, X.copy(), whiten=True)
    free = oracle.q_mu, oracle.q_sqrt
    loss = oracle.training_loss_closure(data)
    variables = [one.unconstrained_variable for one in free]
    gpflow.optimizers.Scipy().minimize(loss, variables, options={"maxiter": 300})
    np.testing.assert_allclose(found, -loss().numpy(), atol=0.5)
