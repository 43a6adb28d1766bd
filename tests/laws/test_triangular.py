"""Triangles: products and solutions are those of NumPy, whatever the number of columns."""

import numpy as np
import pytest

from streaming_gp.numerics import triangular
from tests.tolerances import ALGEBRA


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
