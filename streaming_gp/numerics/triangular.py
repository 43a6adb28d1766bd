"""Products and solutions with triangles, in C-ordered arrays without copies (BLAS, LAPACK).

One column has functions of its own, some ten times as fast.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack

from streaming_gp.errors import NumericalError
from streaming_gp.numerics import dense

MOST_ROWS = 64
"""A triangle of no more rows, or for fewer columns, BLAS solves at once."""
LEAST_PIVOT = 0.7
"""The least diagonal entry of ``chol(I + Rᵀ K R)``, none of which is below one but by rounding."""
ROUNDING = (0.0, *10.0 ** np.arange(-10, -3))
"""Parts of the largest number by which rounding may be wrong; a kernel that is none is far more so.
"""


def product(
    R: np.ndarray, B: np.ndarray, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """``R B``, or ``Rᵀ B``, for a lower triangle R [M, M] and B [M, N].

    :param overwrite: Whether the result is written over B, which must lie in C order.
    """
    if B.shape[1] == 1:
        column, trans = B[:, 0], int(not transposed)
        return blas.dtrmv(R.T, column, lower=0, trans=trans, overwrite_x=overwrite)[:, None]
    trans = int(transposed)
    return blas.dtrmm(1.0, R.T, B.T, side=1, lower=0, trans_a=trans, overwrite_b=overwrite).T


def solve(
    L: np.ndarray, B: np.ndarray, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """``L⁻¹ B``, or ``L⁻ᵀ B``, for a lower triangle L [M, M] and B [M, N].

    :param overwrite: As in :func:`product`.
    """
    if B.shape[1] == 1:
        column, trans = B[:, 0], int(not transposed)
        return blas.dtrsv(L.T, column, lower=0, trans=trans, overwrite_x=overwrite)[:, None]
    if len(L) <= MOST_ROWS or B.shape[1] < MOST_ROWS:
        return _solved(L, B, transposed, overwrite)
    solution = B if overwrite else np.array(B, order="C")
    _solve_by_halves(L, solution, transposed)
    return solution


def _solved(L: np.ndarray, B: np.ndarray, transposed: bool, overwrite: bool) -> np.ndarray:
    trans = int(transposed)
    return blas.dtrsm(1.0, L.T, B.T, side=1, lower=0, trans_a=trans, overwrite_b=overwrite).T


def _solve_by_halves(L: np.ndarray, B: np.ndarray, transposed: bool) -> None:
    """The solution over B, which lies in C order.

    Most of the work are products then, which OpenBLAS does much faster than solutions.
    """
    if len(L) <= MOST_ROWS:
        _solved(L, B, transposed, overwrite=True)
        return
    half = len(L) // 2
    upper, lower = (L[:half, :half], B[:half]), (L[half:, half:], B[half:])
    first, last = (lower, upper) if transposed else (upper, lower)
    across = L[half:, :half].T if transposed else L[half:, :half]
    _solve_by_halves(*first, transposed)
    dense.less_product(last[1], across, first[1])
    _solve_by_halves(*last, transposed)


def cholesky(A: np.ndarray, overwrite: bool = False) -> np.ndarray | None:
    """L [M, M] with ``A = L Lᵀ`` for a symmetric A, or None if it is not positive or not finite.

    :param overwrite: Whether the result is written over A, which must lie in C order.
    """
    upper, failed = lapack.dpotrf(A.T, lower=0, clean=1, overwrite_a=overwrite)
    is_factor = not failed and np.isfinite(upper.diagonal()).all()  # LAPACK may pass over NaN
    return upper.T if is_factor else None


def cholesky_but_for_rounding(B: np.ndarray, largest: float) -> np.ndarray:
    """L [M, M] with ``L Lᵀ = B = I + Rᵀ K R``, or a little more than B.

    Where f is very sure and a lengthscale very short, rounding of covariances is larger than the
    noise. There the observations are taken for noisier, by as little as makes up for it.

    :param largest: The size of the numbers that B is a sum or a difference of.
    :raises NumericalError: if that is not rounding.
    """
    for part in ROUNDING:
        noisier = B
        if part > 0.0:
            noisier = B.copy()
            np.einsum("mm->m", noisier)[:] += part * largest
        chol = cholesky(noisier)
        if chol is not None and chol.diagonal().min() > LEAST_PIVOT:
            return chol
    raise NumericalError("the covariance of the pseudo-observations is not positive")
