"""Linear algebra against NumPy."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp.numerics.linalg import (
    add_to_diagonal,
    compress_rows,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from tests.tolerances import ALGEBRA

LAWS = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31 - 1)


@LAWS
@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_compressed_rows_hold_the_same_information(seed, num, size):
    rng = np.random.default_rng(seed)
    rows, targets = rng.standard_normal((2, num, size)), rng.standard_normal((2, num, 3))
    few, few_targets = compress_rows(rows, targets)
    assert few.shape == (2, size, size)
    transposed = np.swapaxes(rows, -1, -2), np.swapaxes(few, -1, -2)
    np.testing.assert_allclose(transposed[0] @ rows, transposed[1] @ few, atol=ALGEBRA)
    np.testing.assert_allclose(transposed[0] @ targets, transposed[1] @ few_targets, atol=ALGEBRA)


def test_triangular_solves_broadcast(rng):
    chol = np.linalg.cholesky(np.cov(rng.standard_normal((4, 30))))
    rhs = rng.standard_normal((3, 4, 2))
    np.testing.assert_allclose(chol @ solve_lower(chol[None], rhs), rhs, atol=ALGEBRA)
    np.testing.assert_allclose(chol.T @ solve_lower_transposed(chol, rhs), rhs, atol=ALGEBRA)
    np.testing.assert_allclose(logdet_from_cholesky(chol), np.linalg.slogdet(chol @ chol.T)[1])
    shifted = add_to_diagonal(tf.constant(chol), tf.constant([1.0, 2.0, 3.0, 4.0], tf.float64))
    np.testing.assert_allclose(shifted - chol, np.diag([1.0, 2.0, 3.0, 4.0]), atol=ALGEBRA)
