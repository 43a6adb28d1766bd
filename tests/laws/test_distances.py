"""Distances keep their digits where inputs are equal in columns of next to no lengthscale."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from scipy.spatial.distance import cdist

import streaming_gp as sgp
from streaming_gp.gp.process.graphs import Compiled, spec
from streaming_gp.gp.process.prior import FAR, FARTHEST, covariance, of_squared_distances
from tests.conftest import uci
from tests.tolerances import ALGEBRA

SHORT = 1e-7
DIMENSIONS = 6


def equal_in_places(rng, number, dimension=DIMENSIONS, short=1):
    """Inputs [N, D] of few values in some columns, and a lengthscale for every column [D]."""
    X = rng.standard_normal((number, dimension))
    X[:, :short] = rng.integers(0, 3, (number, short))
    lengthscales = np.full(dimension, 1.5)
    lengthscales[:short] = SHORT
    return X, lengthscales


def squares(X, X2):
    return of_squared_distances(tf.identity, tf.constant(X), tf.constant(X2)).numpy()


@pytest.mark.parametrize("dimension", [1, FARTHEST, FARTHEST + 1, 9])
@pytest.mark.parametrize("short", [0, 1, FARTHEST + 2])
def test_they_are_those_of_differences(dimension, short, rng):
    X, lengthscales = equal_in_places(rng, 40, dimension, min(short, dimension))
    X = X / lengthscales
    wanted = cdist(X, X[:7], "sqeuclidean")
    np.testing.assert_allclose(squares(X, X[:7]), wanted, rtol=ALGEBRA, atol=ALGEBRA)


def test_of_no_inputs_there_are_none(rng):
    X, _ = equal_in_places(rng, 4)
    assert squares(X[:0], X).shape == (0, 4)
    assert squares(X, X[:0]).shape == (4, 0)


def test_the_number_of_columns_may_be_unknown(rng):
    X, lengthscales = equal_in_places(rng, 20)
    unknown = tf.TensorSpec([None, None], tf.float64)
    graph = tf.function(lambda X: of_squared_distances(tf.identity, X, X), [unknown])
    for some in (X / lengthscales, X[:, :2]):
        np.testing.assert_allclose(
            graph(some), cdist(some, some, "sqeuclidean"), rtol=ALGEBRA, atol=ALGEBRA
        )


def gradient_by_lengthscales(X, lengthscales, weights):
    """Of ``Σ W ∘ exp(−r² / 2)``, from differences."""
    differences = (X[:, None] - X[None]) / lengthscales
    K = np.exp(-0.5 * np.sum(differences**2, axis=2))
    return np.einsum("ij,ijd->d", weights * K, differences**2) / lengthscales


@pytest.mark.parametrize("dimension", [FARTHEST, DIMENSIONS])
@pytest.mark.parametrize("short", [0, 1, FARTHEST])
def test_their_derivatives_keep_digits_too(dimension, short, rng):
    X, lengthscales = equal_in_places(rng, 30, dimension, short)
    weights = 1e6 * rng.standard_normal((30, 30))
    scales = tf.Variable(lengthscales)
    with tf.GradientTape() as tape:
        K = of_squared_distances(lambda r2: tf.exp(-0.5 * r2), X / scales, X / scales)
        value = tf.reduce_sum(weights * K)
    wanted = gradient_by_lengthscales(X, lengthscales, weights)
    found = tape.gradient(value, scales).numpy()
    np.testing.assert_allclose(found * lengthscales, wanted * lengthscales, rtol=1e-6, atol=1e-4)


class Counted:
    """A kernel's covariance, compiled, and how often it was traced."""

    def __init__(self, kernel):
        self.traces = 0
        self.kernel = kernel
        self.compiled = Compiled(self.of, spec(None, None), spec(None, None))

    def of(self, X, X2):
        self.traces += 1
        X, X2 = (tf.ensure_shape(x, [None, DIMENSIONS]) for x in (X, X2))
        return covariance(self.kernel, X, X2)[0]


def test_a_careful_graph_is_traced_only_where_it_is_wanted(rng):
    X, lengthscales = equal_in_places(rng, 20)
    near = Counted(gk.SquaredExponential(lengthscales=np.full(DIMENSIONS, 1.5)))
    np.testing.assert_allclose(near.compiled(X, X), near.kernel(X), atol=ALGEBRA)
    assert near.traces == 1
    far = Counted(gk.Matern32(lengthscales=lengthscales) + gk.White(0.1))
    for _ in range(2):
        exact = cdist(X / lengthscales, X / lengthscales)
        wanted = (1.0 + np.sqrt(3.0) * exact) * np.exp(-np.sqrt(3.0) * exact)
        np.testing.assert_allclose(far.compiled(X, X), wanted, atol=1e-7)
    assert far.traces == 2


def test_within_another_graph_distances_are_careful(rng):
    X, lengthscales = equal_in_places(rng, 20)
    counted = Counted(gk.SquaredExponential(lengthscales=lengthscales))
    found = tf.function(lambda: counted.compiled(X, X))()
    wanted = np.exp(-0.5 * cdist(X / lengthscales, X / lengthscales, "sqeuclidean"))
    np.testing.assert_allclose(found, wanted, atol=ALGEBRA)


def test_far_away_inputs_near_each_other_are_near(rng):
    """Far from zero alone says nothing: covariances of differences are about one of the inputs."""
    X, _ = equal_in_places(rng, 20)
    counted = Counted(gk.Matern52())
    np.testing.assert_allclose(
        counted.compiled(X + 1e3 * FAR, X + 1e3 * FAR), counted.kernel(X), atol=1e-7
    )
    assert counted.traces == 1


class CityBlock(gk.SquaredExponential):
    """A kernel with a distance of its own."""

    def scaled_squared_euclid_dist(self, X, X2=None):
        X, X2 = self.scale(X), self.scale(X if X2 is None else X2)
        return tf.reduce_sum(tf.abs(X[:, None] - X2[None]), axis=2) ** 2


class Doubled(gk.Matern32):
    """A kernel with a covariance of its own."""

    def K(self, X, X2=None):
        return 2.0 * super().K(X, X2)


@pytest.mark.parametrize(
    "kernel",
    [
        CityBlock(),
        Doubled(),
        gk.RationalQuadratic(alpha=0.4, active_dims=[0, 3, 4, 5]),
        gk.Matern12(active_dims=[1]) * gk.Matern52(lengthscales=np.arange(1.0, 7.0)),
        gk.Cosine(lengthscales=2.0) + gk.Exponential(variance=3.0),
        gk.Linear(active_dims=[2]) + gk.SquaredExponential(active_dims=slice(0, 5)),
    ],
)
def test_covariances_are_those_of_gpflow(kernel, rng):
    X, _ = equal_in_places(rng, 15, short=0)
    np.testing.assert_allclose(covariance(kernel, X)[0], kernel(X), atol=1e-7)
    np.testing.assert_allclose(covariance(kernel, X, X[:4])[0], kernel(X, X[:4]), atol=1e-7)


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
        gpflow.likelihoods.Gaussian(0.1),
        seed=0,
    )
    for start in (0, 100):
        model.update((X[start : start + 100], Y[start : start + 100]))
    mean, _ = model.predict_f(X[200:])
    assert np.mean((mean - Y[200:]) ** 2) < 1e-3 * np.var(Y[200:])
