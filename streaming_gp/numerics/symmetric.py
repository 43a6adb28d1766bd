"""Symmetric matrices of which the lower triangle counts, changed in place (BLAS).

All are Fortran-ordered [N, N]. Rows and columns that stand for nothing are zero, so that every
operation may run over all of them.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas


def zeros(size: int, *number: int) -> np.ndarray:
    """The zero matrix, or so many, [size, size, number]."""
    return np.zeros((size, size, *number), order="F")


def times(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x``."""
    return blas.dsymv(1.0, A, x, lower=1)


def add_outer(A: np.ndarray, weight: float, x: np.ndarray) -> None:
    """``A += weight x xᵀ``."""
    blas.dsyr(weight, x, lower=1, a=A, overwrite_a=1)


def add_outer_pair(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """``A += x yᵀ + y xᵀ``."""
    blas.dsyr2(1.0, x, y, lower=1, a=A, overwrite_a=1)


def add_products(A: np.ndarray, weight: float, X: np.ndarray) -> None:
    """``A += weight Xᵀ X``, for X [K, N]."""
    blas.dsyrk(weight, X.T, beta=1.0, c=A, lower=1, overwrite_c=1)


def add_product_pairs(A: np.ndarray, X: np.ndarray, Y: np.ndarray) -> None:
    """``A += Xᵀ Y + Yᵀ X``, for X and Y [K, N]."""
    blas.dsyr2k(1.0, X.T, Y.T, beta=1.0, c=A, lower=1, overwrite_c=1)


def column(A: np.ndarray, j: int) -> np.ndarray:
    """A copy of column j."""
    values = A[:, j].copy()
    values[:j] = A[j, :j]
    return values


def columns(A: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Copies of these columns, one after another: [K, N]."""
    return np.stack([column(A, j) for j in some])


def among(A: np.ndarray, some: np.ndarray) -> np.ndarray:
    """The rows and columns of these indices alone, which ascend."""
    return np.asfortranarray(A[np.ix_(some, some)])


def inner(A: np.ndarray, B: np.ndarray) -> float:
    """``tr A B``."""
    lower = np.tril(A)
    return float(2.0 * np.vdot(lower, B) - np.vdot(A.diagonal(), B.diagonal()))


def put(A: np.ndarray, j: int, values: np.ndarray) -> None:
    """Make row and column j these values [N], or of K matrices [N, N, K] these [N, K]."""
    A[j, :j] = values[:j]
    A[j:, j] = values[j:]


def clear(A: np.ndarray, j: int) -> None:
    """Make row and column j zero, of one matrix or of each [N, N, K]."""
    A[j, :j] = 0.0
    A[j:, j] = 0.0


def full(A: np.ndarray) -> np.ndarray:
    """A copy with both triangles."""
    return np.tril(A) + np.tril(A, -1).T
