"""Linear algebra, quadrature and draws, against NumPy."""

import gpflow
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from gpflow import functions as gf
from gpflow import kernels as gk

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.export import describe_kernel, describe_mean_function
from streaming_gp.numerics import triangular
from streaming_gp.numerics.quadrature import (
    gauss_hermite,
    normal_nodes,
    standard_normal,
    standard_normals,
    whitened_sobol,
)
from streaming_gp.runtime import KERNELS, MEAN_FUNCTIONS, kernel_of
from streaming_gp.runtime.predictor import mean_function_of
from tests.laws import slow
from tests.tolerances import ALGEBRA, EXPORTED


@pytest.mark.parametrize("columns", [1, 3])
def test_products_and_solutions(rng, columns):
    L, B = np.tril(rng.standard_normal((5, 5))) + 3 * np.eye(5), rng.standard_normal((5, columns))
    np.testing.assert_allclose(triangular.product(L, B), L @ B, atol=ALGEBRA)
    np.testing.assert_allclose(triangular.product(L, B, transposed=True), L.T @ B, atol=ALGEBRA)
    np.testing.assert_allclose(L @ triangular.solve(L, B), B, atol=ALGEBRA)
    np.testing.assert_allclose(L.T @ triangular.solve(L, B, transposed=True), B, atol=ALGEBRA)


@pytest.mark.parametrize("rows", [65, 131, 300])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_solutions_go_by_halves(rng, rows, order):
    L = np.tril(rng.standard_normal((rows, rows))) / rows + np.eye(rows)
    B = np.asarray(rng.standard_normal((rows, 70)), order=order)
    kept = B.copy()
    np.testing.assert_allclose(L @ triangular.solve(L, B), B, atol=ALGEBRA)
    np.testing.assert_allclose(L.T @ triangular.solve(L, B, transposed=True), B, atol=ALGEBRA)
    np.testing.assert_array_equal(B, kept)


@pytest.mark.parametrize("columns", [1, 3, 80])
@pytest.mark.parametrize("function", [triangular.product, triangular.solve])
def test_results_are_written_over_the_argument_only_where_that_is_asked(rng, function, columns):
    rows = max(5, columns)
    L = np.tril(rng.standard_normal((rows, rows))) + 3 * np.eye(rows)
    B = rng.standard_normal((rows, columns))
    kept = B.copy()
    wanted = function(L, B)
    np.testing.assert_array_equal(B, kept)
    function(L, B, overwrite=True)
    np.testing.assert_array_equal(B, wanted)


def test_a_cholesky_factor_or_none(rng):
    L = np.tril(rng.standard_normal((4, 4))) + 3 * np.eye(4)
    A = L @ L.T
    np.testing.assert_allclose(triangular.cholesky(A), L, atol=ALGEBRA)
    triangular.cholesky(A, overwrite=True)
    np.testing.assert_allclose(A, L, atol=ALGEBRA)
    assert triangular.cholesky(-np.eye(3)) is None


@pytest.mark.parametrize("num_samples", [8, 9, 32])
@pytest.mark.parametrize("whiten", [True, False])
def test_antithetic_normals_have_exact_moments(num_samples, whiten):
    xi = standard_normals(num_samples, 3, seed=2, whiten=whiten)
    assert xi.shape == (num_samples, 3)
    np.testing.assert_array_equal(xi[: num_samples // 2], -xi[num_samples // 2 :][: len(xi) // 2])
    second = xi.T @ xi / num_samples
    np.testing.assert_allclose(np.diag(second), 1.0, rtol=ALGEBRA)
    if whiten:
        np.testing.assert_allclose(second, np.eye(3), atol=ALGEBRA)


def test_no_coordinates_or_one_sample_are_zeros():
    assert standard_normals(4, 0, seed=0).shape == (4, 0)
    np.testing.assert_array_equal(standard_normals(1, 2, seed=0), np.zeros((1, 2)))


@pytest.mark.parametrize(("num_nodes", "dimension"), [(5, 1), (4, 2), (3, 3)])
def test_gauss_hermite_is_exact_for_polynomials(num_nodes, dimension):
    nodes, weights = gauss_hermite(num_nodes, dimension)
    assert nodes.shape == (num_nodes**dimension, dimension)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=ALGEBRA)
    np.testing.assert_allclose(weights @ nodes**4, 3.0, rtol=ALGEBRA)  # E[z⁴] = 3
    np.testing.assert_allclose((weights[:, None] * nodes).T @ nodes, np.eye(dimension), atol=1e-9)


def test_the_sobol_sequence_has_exact_mean_and_covariance():
    nodes, weights = whitened_sobol(4)
    np.testing.assert_allclose(weights @ nodes, 0.0, atol=ALGEBRA)
    np.testing.assert_allclose((weights[:, None] * nodes).T @ nodes, np.eye(4), atol=ALGEBRA)


@pytest.mark.parametrize(("dimension", "number"), [(1, 100), (2, 1600), (3, 4096)])
def test_the_rule_goes_with_the_dimension(dimension, number):
    nodes, weights = normal_nodes(dimension)
    assert nodes.shape == (number, dimension)
    assert weights.shape == (number,)


@pytest.mark.parametrize("jit", [False, True])
def test_draws_are_standard_normal_and_those_of_their_seed(jit):
    def draws(seed):
        return standard_normal([50, 40], seed, tf.float64)

    compiled = tf.function(draws, jit_compile=jit)
    one, again, other = (compiled(tf.constant(seed)).numpy() for seed in ([3, 1], [3, 1], [3, 2]))
    np.testing.assert_array_equal(one, again)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1
    assert scipy.stats.kstest(one.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(one[:-1].ravel(), one[1:].ravel())[0, 1]) < 0.1


# ---- kernels in NumPy ----


D = 4
ALL, BY_NUMBER, SLICE, FROM_THE_END = None, [2, 0], slice(1, 3), slice(-2, None)
ISOTROPIC = [
    "SquaredExponential", "RationalQuadratic", "Exponential", "Matern12", "Matern32", "Matern52",
]  # fmt: skip


def per_column(value, ard, columns):
    number = D if columns is None else 2
    return value * np.linspace(1.0, 1.7, number) if ard else value


def stationary(name, **options):
    def made(ard, columns):
        lengthscales = per_column(0.83, ard, columns)
        cls = getattr(gk, name)
        return cls(variance=1.37, lengthscales=lengthscales, active_dims=columns, **options)

    return made


def periodic(base):
    def made(ard, columns):
        return gk.Periodic(SIMPLE[base](ard, columns), period=per_column(1.9, ard, columns))

    return made


SIMPLE = {
    **{name: stationary(name) for name in ISOTROPIC},
    "RationalQuadratic": stationary("RationalQuadratic", alpha=0.61),
    "Cosine": stationary("Cosine"),
    "Linear": lambda ard, columns: gk.Linear(per_column(0.29, ard, columns), columns),
    "Polynomial": lambda ard, columns: gk.Polynomial(
        2.5, per_column(0.29, ard, columns), 40.0, columns
    ),
    "Periodic": periodic("SquaredExponential"),
    "Periodic of r": periodic("Matern32"),
    "Constant": lambda ard, columns: gk.Bias(0.43, columns),
    "White": lambda ard, columns: gk.White(0.07, columns),
}
COMBINED = {
    "Sum": lambda: SIMPLE["Matern52"](True, ALL) + gk.Linear(0.3, [3]) + gk.White(0.2),
    "Product": lambda: SIMPLE["Periodic"](False, BY_NUMBER) * SIMPLE["Matern32"](True, SLICE),
    "sum of products": lambda: (
        gk.RBF(lengthscales=0.7, active_dims=[1]) * (gk.Linear(0.4) + gk.Constant(0.9))
        + gk.White(0.3) * SIMPLE["Cosine"](True, FROM_THE_END)
    ),
}


def assert_is_the_same_function(kernel, rng):
    X, X2 = rng.uniform(-2.0, 2.0, (7, D)), rng.uniform(-2.0, 2.0, (5, D))
    ours = kernel_of(describe_kernel(kernel, D))
    for X_new in (X, X[:1]):
        expected = kernel(X_new, X2)
        np.testing.assert_allclose(ours.covariance(X_new, X2), expected, rtol=EXPORTED, atol=1e-14)
        np.testing.assert_allclose(ours.bind(X2)(X_new).T, expected, rtol=EXPORTED, atol=1e-14)
    np.testing.assert_allclose(ours.variance(X), kernel(X, full_cov=False), rtol=EXPORTED)


@pytest.mark.parametrize(
    ("ard", "columns"),
    [
        (False, ALL),
        (True, BY_NUMBER),
        *(slow(ard, columns) for ard, columns in [(True, ALL), (False, BY_NUMBER), (True, SLICE)]),
        slow(False, FROM_THE_END),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SIMPLE)
def test_a_kernel_is_that_of_gpflow(rng, name, ard, columns):
    assert_is_the_same_function(SIMPLE[name](ard, columns), rng)


@pytest.mark.parametrize("name", COMBINED)
def test_sums_and_products_are_those_of_gpflow(rng, name):
    assert_is_the_same_function(COMBINED[name](), rng)


def test_every_kernel_is_tested():
    assert set(KERNELS) <= {*SIMPLE, *COMBINED}


class Mine(gk.SquaredExponential):
    def K_r2(self, r2):
        return 2.0 * super().K_r2(r2)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (Mine(), "Mine"),
        (gk.Linear() + gk.Constant() * Mine(), "Mine"),
        (gk.Periodic(Mine()), "Mine"),
        (gk.ArcCosine(), "ArcCosine"),
        (gk.ChangePoints([gk.Matern12(), gk.Matern32()], [0.5]), "ChangePoints"),
    ],
)
def test_another_kernel_is_named_with_what_there_is(kernel, name):
    with pytest.raises(InvalidDataError, match=f"kernel {name} .*SquaredExponential.*Product"):
        describe_kernel(kernel, D)


MEANS = {
    "Zero": gf.Zero(),
    "Zero of three": gf.Zero(3),
    "Constant": gf.Constant([0.4, -1.2, 3.0]),
    "Constant of one": gf.Constant(0.4),
    "Linear": gf.Linear(np.arange(12.0).reshape(D, 3), [0.5, 0.1, -2.0]),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_function_is_that_of_gpflow(rng, name):
    X = rng.standard_normal((6, D))
    ours = mean_function_of(describe_mean_function(MEANS[name]))(X)
    expected = np.broadcast_to(MEANS[name](X), (6, 3))
    np.testing.assert_allclose(np.broadcast_to(ours, (6, 3)), expected, rtol=EXPORTED)


def test_every_mean_function_is_tested():
    assert set(MEAN_FUNCTIONS) <= set(MEANS)


def test_another_mean_function_is_named():
    with pytest.raises(InvalidDataError, match=r"mean function Additive .*Zero, Constant, Linear"):
        describe_mean_function(gf.Constant() + gf.Linear())


def test_parameters_are_read_at_the_values_they_hold(rng):
    kernel = gk.Matern32(lengthscales=[0.5] * D)
    shared = gpflow.Parameter(1.1, transform=gpflow.utilities.positive())
    kernel.variance = shared
    shared.assign(2.3)
    assert_is_the_same_function(kernel, rng)
