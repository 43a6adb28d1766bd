"""Stacks of matrices [S, M, N]. BLAS and LAPACK do the work."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack

from streaming_gp.numerics import dense, triangular

FEW_PRODUCTS = 30_000
"""Of numbers: with fewer, calling BLAS for each matrix takes longer than multiplying."""


def transposed(A: np.ndarray) -> np.ndarray:
    """Each of them transposed."""
    return np.swapaxes(A, 1, 2)


def tiled(A: np.ndarray, number: int) -> np.ndarray:
    """``A`` [G, ...] again and again, until there are so many: [S G, ...]."""
    return A if len(A) == number else np.tile(A, (number // len(A), *[1] * (A.ndim - 1)))


def product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``A B`` for A [S, M, K] and B [S, K, N]."""
    if A.shape[1] * A.shape[2] * B.shape[2] < FEW_PRODUCTS:
        return A @ B
    products = np.empty((len(A), A.shape[1], B.shape[2]))
    for left, right, out in zip(A, B, products, strict=True):
        dense.product(left, right, out)
    return products


def gram(A: np.ndarray) -> np.ndarray:
    """``A Aᵀ`` for A [S, M, N]."""
    if A.shape[1] ** 2 * A.shape[2] < FEW_PRODUCTS:
        return A @ transposed(A)
    lower = np.stack([blas.dsyrk(1.0, one.T, trans=1).T for one in A])
    return lower + transposed(np.tril(lower, -1))


def cholesky(
    A: np.ndarray, diagonal: np.ndarray | float = 0.0, overwrite: bool = False
) -> np.ndarray:
    """L [S, M, M] with ``A + diag(diagonal) = L Lᵀ``.

    :param diagonal: [S, M], or what can be broadcast to it.
    :param overwrite: Whether L is written over A, which must lie in C order.
    """
    L = with_diagonal(A, diagonal, overwrite)
    for one in L if L.size else ():
        if triangular.cholesky(one, overwrite=True) is None:
            raise np.linalg.LinAlgError("a covariance is not positive definite")
    return L


def with_diagonal(A: np.ndarray, values: np.ndarray | float, overwrite: bool = False) -> np.ndarray:
    """``A + diag(values)``, in C order, for values [S, M], or what can be broadcast to it.

    :param overwrite: Whether it is written over A, which must lie in C order.
    """
    changed = A if overwrite else np.array(A, order="C")
    np.einsum("smm->sm", changed)[:] += values
    return changed


def solve(
    L: np.ndarray, B: np.ndarray, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """``L⁻¹ B``, or ``L⁻ᵀ B``, for lower triangles L [S, M, M] and B [S, M, N].

    :param overwrite: Whether the result is written over B, which must lie in C order.
    """
    solution = B if overwrite else np.array(B, order="C")
    for one, right in zip(L, solution, strict=True) if solution.size else ():
        triangular.solve(one, right, transposed, overwrite=True)
    return solution


def inverse(L: np.ndarray) -> np.ndarray:
    """``(L Lᵀ)⁻¹`` for lower triangles, beside which L is zero."""
    inverses = np.empty(L.shape)
    for one, out in zip(L, inverses, strict=True) if L.size else ():
        upper = lapack.dpotri(one.T, lower=0)[0]
        np.add(upper, upper.T, out=out)
    np.einsum("smm->sm", inverses)[:] *= 0.5
    return inverses


def half_logdet(L: np.ndarray) -> float:
    """``½ log det L Lᵀ``, summed over the stack."""
    return float(np.sum(np.log(np.einsum("smm->sm", L))))


def times(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x`` for A [S, M, N] and x [S, N]."""
    return np.asarray((A @ x[:, :, None])[:, :, 0])
