"""Linear algebra, quadrature and draws, against NumPy."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st

from streaming_gp.numerics import triangular
from streaming_gp.numerics.quadrature import (
    gauss_hermite,
    normal_nodes,
    standard_normal,
    standard_normals,
    whitened_sobol,
)
from tests.tolerances import ALGEBRA

LAWS = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31 - 1)


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
