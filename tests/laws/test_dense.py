"""Products of matrices are those of NumPy, however the matrices lie in memory."""

import numpy as np
import pytest

from streaming_gp.gp.collapsed import stacks
from streaming_gp.numerics import dense
from tests.tolerances import ALGEBRA


def lying(A, how):
    """The same matrix in C order, in Fortran order, or as a part of a larger one."""
    if how == "part":
        return np.pad(A, 2)[2:-2, 2:-2]
    return np.array(A, order=how)


@pytest.mark.parametrize("left", ["C", "F", "part"])
@pytest.mark.parametrize("right", ["C", "F", "part"])
def test_products(rng, left, right):
    A, B, C = (rng.standard_normal(size) for size in ((3, 4), (4, 5), (3, 5)))
    found = np.empty((3, 5))
    dense.product(lying(A, left), lying(B, right), found)
    for product in (found, dense.product(lying(A, left), lying(B, right))):
        np.testing.assert_allclose(product, A @ B, atol=ALGEBRA)
    less = dense.less_product(lying(C, right), lying(A, left), lying(B, right))
    np.testing.assert_allclose(less, C - A @ B, atol=ALGEBRA)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_products_of_nothing(sizes):
    M, K, N = sizes
    A, B, C = np.ones((M, K)), np.ones((K, N)), np.ones((M, N))
    np.testing.assert_array_equal(dense.product(A, B), A @ B)
    np.testing.assert_array_equal(dense.less_product(C.copy(), A, B), C - A @ B)


@pytest.mark.parametrize("size", [2, 40])
def test_products_of_stacks_with_themselves(rng, size):
    A = rng.standard_normal((3, size, size + 1))
    np.testing.assert_allclose(stacks.gram(A), A @ np.swapaxes(A, 1, 2), atol=ALGEBRA)


@pytest.mark.parametrize("size", [2, 40])
def test_products_of_stacks(rng, size):
    A, B = rng.standard_normal((3, size, size + 1)), rng.standard_normal((3, size + 2, size + 1))
    found = stacks.product(A, stacks.transposed(B))
    np.testing.assert_allclose(found, A @ np.swapaxes(B, 1, 2), atol=ALGEBRA)


def test_a_stack_of_which_one_has_no_cholesky_factor():
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        stacks.cholesky(np.stack([np.eye(2), -np.eye(2)]))
