"""Changes of a lower triangle are those of the whole matrix."""

import numpy as np
import pytest

from streaming_gp.numerics import symmetric
from tests.tolerances import ALGEBRA


@pytest.fixture
def whole(rng):
    matrix = rng.standard_normal((6, 6))
    return matrix + matrix.T


@pytest.fixture
def lower(whole):
    return np.asfortranarray(np.tril(whole))


def assert_stands_for(lower, wanted):
    np.testing.assert_allclose(symmetric.full(lower), wanted, atol=ALGEBRA)


def test_changes_of_low_rank(rng, whole, lower):
    X, Y = rng.standard_normal((2, 3, 6))
    symmetric.add_outer(lower, -0.5, X[0])
    symmetric.add_outer_pair(lower, X[1], Y[1])
    assert_stands_for(
        lower, whole - 0.5 * np.outer(X[0], X[0]) + X[1:2].T @ Y[1:2] + Y[1:2].T @ X[1:2]
    )
    before = symmetric.full(lower)
    symmetric.add_products(lower, 2.0, X)
    symmetric.add_product_pairs(lower, X, Y)
    assert_stands_for(lower, before + 2.0 * X.T @ X + X.T @ Y + Y.T @ X)


def test_parts_and_products(rng, whole, lower):
    x, some = rng.standard_normal(6), np.array([1, 4, 5])
    np.testing.assert_allclose(symmetric.times(lower, x), whole @ x, atol=ALGEBRA)
    np.testing.assert_array_equal(symmetric.columns(lower, some[::-1]), whole[some[::-1]])
    assert_stands_for(symmetric.among(lower, some), whole[np.ix_(some, some)])
    other = whole @ whole
    assert symmetric.inner(lower, other) == pytest.approx(np.trace(whole @ other))
    symmetric.clear(lower, 4)
    whole[4], whole[:, 4] = 0.0, 0.0
    assert_stands_for(lower, whole)
