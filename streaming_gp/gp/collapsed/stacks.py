"""Stacks of matrices, one for each value of ε: [S, M, N]. BLAS and LAPACK do the work."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from streaming_gp import dense, triangular

FEW_PRODUCTS = 30_000
"""Of numbers: with fewer, calling BLAS for each matrix takes longer than multiplying."""


def transposed(A: np.ndarray) -> np.ndarray:
    """Each of them transposed."""
    return np.swapaxes(A, 1, 2)


def product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``A B`` for A [S, M, K] and B [S, K, N]."""
    if A.shape[1] * A.shape[2] * B.shape[2] < FEW_PRODUCTS:
        return A @ B
    found = np.empty((len(A), A.shape[1], B.shape[2]))
    for left, right, out in zip(A, B, found, strict=True):
        dense.product(left, right, out)
    return found


def cholesky(A: np.ndarray) -> np.ndarray:
    """L [S, M, M] with ``A = L Lᵀ``.

    :raises numpy.linalg.LinAlgError: if one is not positive, or not finite.
    """
    found = np.empty(A.shape)
    for one, out in zip(A, found, strict=True):
        L = triangular.cholesky(one)
        if L is None:
            raise np.linalg.LinAlgError("a covariance is not positive definite")
        out[:] = L
    return found


def with_diagonal(A: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``A + diag(values)`` for values [S, M] or [M]."""
    found = np.array(A)
    np.einsum("smm->sm", found)[:] += values
    return found


def symmetric(A: np.ndarray) -> np.ndarray:
    """The symmetric matrices whose lower triangles are those of A."""
    return np.tril(A) + transposed(np.tril(A, -1))


def solve(L: np.ndarray, B: np.ndarray, transposed: bool = False) -> np.ndarray:
    """``L⁻¹ B``, or ``L⁻ᵀ B``, for lower triangles L [S, M, M] and B [S, M, N]."""
    pairs = zip(L, B, strict=True)
    return np.stack([triangular.solve(one, right, transposed) for one, right in pairs])


def inverse(L: np.ndarray) -> np.ndarray:
    """``(L Lᵀ)⁻¹`` for lower triangles."""
    upper = np.stack([lapack.dpotri(one.T, lower=0)[0] for one in L])
    return np.triu(upper) + transposed(np.triu(upper, 1))


def half_logdet(L: np.ndarray) -> float:
    """``½ log det L Lᵀ``, summed over the stack."""
    return float(np.sum(np.log(np.einsum("smm->sm", L))))


def cholesky_pullback(L: np.ndarray, product: np.ndarray) -> np.ndarray:
    """The derivative by ``B = L Lᵀ`` of what depends on L by ``Q = L⁻¹ U`` alone.

    It is ``−½ L⁻ᵀ Y L⁻¹`` for the symmetric Y whose lower triangle is that of ``Q̄ Qᵀ`` (Murray
    2016, "Differentiation of the Cholesky decomposition").

    :param L: Lower triangles [S, M, M].
    :param product: ``Q̄ Qᵀ`` [S, M, M], with Q̄ the derivative by Q.
    """
    half = solve(L, symmetric(product), transposed=True)
    return -0.5 * solve(L, np.ascontiguousarray(transposed(half)), transposed=True)
