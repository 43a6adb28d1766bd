"""Products of matrices by SciPy's BLAS, without copies of those that lie in one piece.

GPflow keeps NumPy below 2, whose wheels come with an OpenBLAS of early 2023. On processors that are
newer it falls back to its slowest routines; SciPy's wheels know them.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas


def product(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``A B`` for A [M, K] and B [K, N], in C order.

    :param out: An array in C order [M, N] to write into.
    """
    out = np.empty((len(A), B.shape[1])) if out is None else out
    return _gemm(1.0, A, B, 0.0, out)


def less_product(out: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``out − A B`` for A [M, K] and B [K, N]; ``out`` is written over if it is in C order."""
    return _gemm(-1.0, A, B, 1.0, out)


def _gemm(weight: float, A: np.ndarray, B: np.ndarray, beta: float, out: np.ndarray) -> np.ndarray:
    if out.size == 0:  # SciPy refuses those
        return out
    (right, is_right_transposed), (left, is_left_transposed) = _columns(B), _columns(A)
    result = blas.dgemm(
        weight, right, left, beta=beta, c=out.T, overwrite_c=True,
        trans_a=is_right_transposed, trans_b=is_left_transposed,
    )  # fmt: skip
    return np.asarray(result.T)


def _columns(A: np.ndarray) -> tuple[np.ndarray, bool]:
    """``Aᵀ`` for BLAS: an array in Fortran order, and whether it is to be transposed."""
    is_transposed = A.flags.f_contiguous and not A.flags.c_contiguous
    return (A, True) if is_transposed else (A.T, False)
