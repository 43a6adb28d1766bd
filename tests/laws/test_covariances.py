"""Covariances keep their digits: far from zero, and where lengthscales are next to nothing."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from scipy.spatial.distance import cdist

import streaming_gp as sgp
from streaming_gp import runtime
from tests.conftest import uci
from tests.laws import slow
from tests.oracles.builders import EVERY_INPUT, FIXED
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

pytestmark = pytest.mark.usefixtures("eager")  # nearly each test has a kind of its own
FAR, SHORT, NOISE = 1e6, 1e-7, 0.1


def learned(kernel, X, Y):
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(NOISE), pseudo_points=EVERY_INPUT, hyperparameters=FIXED
    )
    model.update((X, Y), learn=False)
    return model


def data(rng, columns=1, number=15):
    X = rng.uniform(-1.0, 1.0, (number, columns))
    return X, np.sin(3.0 * X[:, :1])


@pytest.mark.parametrize(
    "kernel",
    [
        gk.SquaredExponential(lengthscales=0.3),
        gk.Matern52() + gk.White(0.2) + gk.Bias(0.1),
        slow(gk.Matern32() * gk.RationalQuadratic()),
    ],
    ids=lambda kernel: kernel.name,
)
def test_a_column_that_never_changes_says_nothing(kernel, rng, tmp_path):
    (near, Y), new = data(rng), rng.uniform(-1.0, 1.0, (7, 1))
    far, new_far = (np.concatenate([X, np.full_like(X, FAR)], axis=1) for X in (near, new))
    model, wanted = learned(kernel, far, Y), learned(kernel, near, Y).predict_f(new)
    model.export(tmp_path / "predictor.npz")
    loaded = runtime.load(tmp_path / "predictor.npz")
    for found in (model.predict_f(new_far), loaded.predict_f(new_far)):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=ALGEBRA)


class CityBlock(gk.SquaredExponential):
    """A kernel with a distance of its own."""

    def scaled_squared_euclid_dist(self, X, X2=None):
        X, X2 = self.scale(X), self.scale(X if X2 is None else X2)
        return tf.reduce_sum(tf.abs(X[:, None] - X2[None]), axis=2) ** 2


class Doubled(gk.Matern32):
    """A kernel with a covariance of its own."""

    def K(self, X, X2=None):
        return 2.0 * super().K(X, X2)

    def K_diag(self, X):
        return 2.0 * super().K_diag(X)


@pytest.mark.parametrize(
    "kernel",
    [
        slow(gk.SquaredExponential() + gk.Linear()),
        gk.ChangePoints([gk.Matern32(), gk.Matern52()], locations=[0.3]),
        CityBlock(),
        Doubled(),
        slow(gk.RationalQuadratic(alpha=0.4, active_dims=[0, 3, 4, 5])),
        gk.Matern12(active_dims=[1]) * gk.Matern52(lengthscales=np.arange(1.0, 7.0)),
        slow(gk.Cosine(lengthscales=2.0) + gk.Exponential(variance=3.0)),
        gk.Linear(active_dims=[2]) + gk.SquaredExponential(active_dims=slice(0, 5)),
    ],
    ids=lambda kernel: kernel.name,
)
def test_predictions_are_those_of_gpflow_with_any_kernel(kernel, rng):
    columns = 1 if isinstance(kernel, gk.ChangePoints) else 6
    (X, Y), (new, _) = data(rng, columns), data(rng, columns)
    model, oracle = learned(kernel, X, Y), gpflow.models.GPR((X, Y), kernel, noise_variance=NOISE)
    for one, other in zip(
        model.predict_f(new, full_cov=True), oracle.predict_f(new, full_cov=True), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=THROUGH_CHOLESKY)


def equal_in_places(rng, number, short, dimension=6):
    """Inputs [N, D] of few values in some columns, and a lengthscale for every column [D]."""
    X = rng.standard_normal((number, dimension))
    X[:, :short] = rng.integers(0, 3, (number, short))
    lengthscales = np.full(dimension, 1.5)
    lengthscales[:short] = SHORT
    return X, lengthscales


@pytest.mark.parametrize(("dimension", "short"), [(3, 3), slow(6, 1)])
def test_columns_of_next_to_no_lengthscale_tell_inputs_apart_or_not(dimension, short, rng):
    X, lengthscales = equal_in_places(rng, 40, short, dimension)
    Y, new = np.sin(X[:, -1:]), X[rng.permutation(40)[:9]] + 0.3 * (lengthscales > SHORT)
    model = learned(gk.SquaredExponential(lengthscales=lengthscales), X, Y)

    def covariance(A, B):
        return np.exp(-0.5 * cdist(A / lengthscales, B / lengthscales, "sqeuclidean"))

    mean = covariance(new, X) @ np.linalg.solve(covariance(X, X) + NOISE * np.eye(40), Y)
    for inputs in (new, tf.constant(new)):
        np.testing.assert_allclose(model.predict_f(inputs)[0], mean, atol=THROUGH_CHOLESKY)


@pytest.mark.parametrize("short", [0, 1, 3])
def test_derivatives_by_lengthscales_keep_digits_too(short, rng):
    """Of the log evidence, from differences of inputs."""
    X, lengthscales = equal_in_places(rng, 30, short)
    model = learned(gk.SquaredExponential(lengthscales=lengthscales), X, np.sin(X[:, -1:]))
    variable = model.kernel.lengthscales.unconstrained_variable
    with tf.GradientTape() as tape:
        value = model.maximum_log_likelihood_objective()
    found = tape.gradient(value, variable).numpy()
    squares = ((X[:, None] - X[None]) / lengthscales) ** 2
    K = np.exp(-0.5 * squares.sum(axis=2))
    inverse = np.linalg.inv(K + NOISE * np.eye(30))
    weights = 0.5 * (inverse @ np.outer(*2 * [np.sin(X[:, -1])]) @ inverse - inverse) * K
    by_log = np.einsum("ij,ijd->d", weights, squares)
    chain = -np.expm1(-lengthscales) / lengthscales  # of the softplus, over the lengthscale
    np.testing.assert_allclose(found, by_log * chain, rtol=1e-5, atol=1e-5 * np.abs(by_log).max())


@pytest.mark.parametrize("lengthscale", [1e-6, 1e-9, 1e-12])
def test_variances_are_positive_and_bounded_at_any_lengthscale(lengthscale, rng):
    """Rounding makes squares of distances negative there, and GPflow's covariances infinite."""
    X = rng.standard_normal((30, 50))
    model = learned(gk.SquaredExponential(variance=2.0, lengthscales=lengthscale), X, X[:, :1])
    _, variance = model.predict_f(np.concatenate([X, X + 1.0]))
    assert np.all((variance > 0.0) & (variance <= 2.0))


@pytest.mark.slow
def test_a_first_batch_of_few_data_in_many_dimensions(rng):
    """The prior of a lengthscale that starts long reaches to next to nothing."""
    X = rng.standard_normal((20, 50))
    model = sgp.StreamingGP(
        gk.SquaredExponential(lengthscales=np.full(50, 7.0)), gpflow.likelihoods.Gaussian(),
        optimiser=sgp.LocalOptimiser(max_iterations=20), seed=0,
    )  # fmt: skip
    model.update((X, X[:, :1]))
    assert np.isfinite(model.predict_f(X)).all()


@pytest.mark.slow
@pytest.mark.parametrize("order", [8, 20])
def test_a_plant_without_noise_is_learned_from_batches(order):
    """Its columns have few values, and a lengthscale next to nothing is tried on the way.

    With distances as differences of squares the optimiser stopped short, and the second batch was
    refused, as a covariance was not positive, in these orders of the data and in one of four.
    """
    plant = uci("naval-propulsion-plant")
    rows = np.random.default_rng(order).permutation(len(plant.X))[:600]
    X, Y = (values[rows] for values in (plant.X, plant.Y))
    X = (X - X[:100].mean(0)) / np.maximum(X[:100].std(0), 1e-9)
    Y = (Y - Y[:100].mean()) / Y[:100].std()
    model = sgp.StreamingGP(
        gk.SquaredExponential(lengthscales=np.full(X.shape[1], 4.0)),
        gpflow.likelihoods.Gaussian(0.1), seed=0,
    )  # fmt: skip
    for start in (0, 100):
        model.update((X[start : start + 100], Y[start : start + 100]))
    mean, _ = model.predict_f(X[200:])
    assert np.mean((mean - Y[200:]) ** 2) < 1e-3 * np.var(Y[200:])
