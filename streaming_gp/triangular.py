"""Products and solutions with triangles, in C-ordered arrays without copies (BLAS, LAPACK).

One column has functions of its own, some ten times as fast.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack


def times_transposed(R: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``Rᵀ B`` for a lower triangle R [M, M] and B [M, N]."""
    if B.shape[1] == 1:
        return blas.dtrmv(R.T, B[:, 0], lower=0, trans=0)[:, None]
    return blas.dtrmm(1.0, R.T, B.T, side=1, lower=0, trans_a=1).T


def solve(L: np.ndarray, B: np.ndarray, transposed: bool = False) -> np.ndarray:
    """``L⁻¹ B``, or ``L⁻ᵀ B``, for a lower triangle L [M, M] and B [M, N]."""
    if B.shape[1] == 1:
        return blas.dtrsv(L.T, B[:, 0], lower=0, trans=int(not transposed))[:, None]
    return blas.dtrsm(1.0, L.T, B.T, side=1, lower=0, trans_a=int(transposed)).T


def cholesky(A: np.ndarray) -> np.ndarray | None:
    """L [M, M] with ``A = L Lᵀ`` for a symmetric A, or None if it is not positive or not finite."""
    upper, failed = lapack.dpotrf(A.T, lower=0, clean=1)
    is_found = not failed and np.isfinite(upper.diagonal()).all()  # LAPACK may pass over NaN
    return upper.T if is_found else None
