"""Triangles: products and solutions are those of NumPy, whatever the number of columns."""

import numpy as np
import pytest

from streaming_gp import triangular
from tests.tolerances import ALGEBRA


@pytest.mark.parametrize("columns", [1, 3])
def test_products_and_solutions(rng, columns):
    L, B = np.tril(rng.standard_normal((5, 5))) + 3 * np.eye(5), rng.standard_normal((5, columns))
    np.testing.assert_allclose(triangular.times_transposed(L, B), L.T @ B, atol=ALGEBRA)
    np.testing.assert_allclose(L @ triangular.solve(L, B), B, atol=ALGEBRA)
    np.testing.assert_allclose(L.T @ triangular.solve(L, B, transposed=True), B, atol=ALGEBRA)


def test_a_cholesky_factor_or_none(rng):
    L = np.tril(rng.standard_normal((4, 4))) + 3 * np.eye(4)
    np.testing.assert_allclose(triangular.cholesky(L @ L.T), L, atol=ALGEBRA)
    assert triangular.cholesky(-np.eye(3)) is None
