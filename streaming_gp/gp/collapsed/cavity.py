"""Conditions the prior on a cavity's pseudo-observations, forwards and backwards.

With ``B = I + Rᵀ K R = L Lᵀ`` (see :mod:`streaming_gp.gp.process.conditioning`) and
``P = L⁻¹ Rᵀ`` the projections ``V = P k(Z, ·)`` and ``w = L⁻¹ s − P m(Z)`` give the cavity its
mean ``m + Vᵀ w`` and its covariance ``k − Vᵀ V``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from streaming_gp import triangular
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.stacks import transposed

FEW_ROWS = 32
"""Of fewer a product with a triangle takes as long as one with a square."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Pseudo-observations of one group.

    :param blocks: The diagonal blocks [m, m] of R.
    :param targets: s [R, C].
    :param nugget: [R].
    """

    blocks: list[np.ndarray]
    targets: np.ndarray
    nugget: np.ndarray

    def weighted(self, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for B [S, R, Q]."""
        found, start = np.array(B, order="C"), 0
        for block in self.blocks:
            _weight(block, found[:, start : start + len(block)])
            start += len(block)
        return found


def _weight(R: np.ndarray, B: np.ndarray) -> None:
    """Write ``Rᵀ B`` over B [S, m, Q], for one R [m, m]."""
    if not np.any(np.tril(R, -1)) and not np.any(np.triu(R, 1)):
        B *= R.diagonal()[:, None]
    elif len(R) < FEW_ROWS or np.any(np.triu(R, 1)):
        B[:] = stacks.product(np.broadcast_to(R.T, (len(B), *R.shape)), B)
    else:
        for one in B:
            triangular.product(R, one, transposed=True, overwrite=True)


@dataclass(frozen=True, eq=False)
class Cavity:
    """A cavity at S values of ε and at some inputs.

    :param chol: L [S, R, R].
    :param projector: P [S, R, R].
    :param projected: V [S, R, T] of the inputs.
    :param white: w [S, R, C].
    """

    chol: np.ndarray
    projector: np.ndarray
    projected: np.ndarray
    white: np.ndarray

    @property
    def log_evidence(self) -> float:
        """``log 𝒵`` of the pseudo-observations, without their constants, summed over ε."""
        columns = self.white.shape[2]
        return -columns * stacks.half_logdet(self.chol) - 0.5 * float(np.sum(self.white**2))

    def pullback(
        self, by_projected: np.ndarray, by_white: np.ndarray, by_evidence: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Derivatives by K [S, R, R], by k(Z, ·) [S, R, T] and by m(Z) [S, R, C].

        Nothing depends on V and w but by ``VᵀV``, ``Vᵀw`` and ``wᵀw``, which no rotation of both
        changes. So ``Y = V̄Vᵀ + w̄wᵀ`` is symmetric, and the derivative by K is ``−½ Pᵀ Y P`` (Murray
        2016, "Differentiation of the Cholesky decomposition"); ``−½ C log det B`` adds C to the
        diagonal of Y.

        :param by_projected: The derivative by V [S, R, T].
        :param by_white: That by w [S, R, C].
        :param by_evidence: That by the log evidence.
        """
        (R, T), back = self.projected.shape[1:], transposed(self.projector)
        by_between = stacks.product(back, by_projected)
        by_root_mean = back @ (by_white - by_evidence * self.white)
        if T < 2 * R:  # whichever takes fewer products
            by_K = stacks.product(by_between, transposed(stacks.product(back, self.projected)))
        else:
            Y = stacks.product(by_projected, transposed(self.projected))
            by_K = stacks.product(stacks.product(back, Y), self.projector)
        by_K += by_root_mean @ transposed(back @ self.white)
        if by_evidence != 0.0:
            by_K += by_evidence * self.white.shape[2] * stacks.product(back, self.projector)
        by_K *= -0.5
        return by_K, by_between, -by_root_mean


def conditioned(observed: Observed, K: np.ndarray, between: np.ndarray, mean: np.ndarray) -> Cavity:
    """The cavity.

    :param K: The prior covariance of the pseudo-inputs [S, R, R].
    :param between: That of these and the inputs that are asked for [S, R, T].
    :param mean: The prior mean of the pseudo-inputs [S, R, C].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    K = stacks.with_diagonal(K, observed.nugget)
    L = stacks.cholesky(observed.weighted(transposed(observed.weighted(K))), 1.0)
    P = stacks.solve(L, np.broadcast_to(block_diag(*observed.blocks).T, L.shape))
    targets = np.broadcast_to(observed.targets, (len(L), *observed.targets.shape))
    white = stacks.solve(L, targets) - P @ mean
    return Cavity(L, P, stacks.product(P, between), white)
