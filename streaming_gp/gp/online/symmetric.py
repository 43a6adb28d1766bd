"""Symmetric matrices of which the lower triangle is stored, changed in place (BLAS).

All are Fortran-ordered [slots, slots]; rows and columns of empty slots are zero, so that every
operation may run over all slots.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas


def zeros(slots: int) -> np.ndarray:
    """The zero matrix."""
    return np.zeros((slots, slots), order="F")


def times(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x``."""
    return blas.dsymv(1.0, A, x, lower=1)


def add_outer(A: np.ndarray, weight: float, x: np.ndarray) -> None:
    """``A += weight x xᵀ``."""
    blas.dsyr(weight, x, lower=1, a=A, overwrite_a=1)


def add_outer_pair(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """``A += x yᵀ + y xᵀ``."""
    blas.dsyr2(1.0, x, y, lower=1, a=A, overwrite_a=1)


def column(A: np.ndarray, j: int) -> np.ndarray:
    """A copy of column j."""
    found = A[:, j].copy()
    found[:j] = A[j, :j]
    return found


def clear(A: np.ndarray, j: int) -> None:
    """Make row and column j zero."""
    A[j, :j] = 0.0
    A[j:, j] = 0.0


def full(A: np.ndarray) -> np.ndarray:
    """A copy with both triangles."""
    return np.tril(A) + np.tril(A, -1).T
