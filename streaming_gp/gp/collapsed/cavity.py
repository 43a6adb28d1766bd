"""Conditions the prior on a cavity's pseudo-observations, forwards and backwards.

With ``B = I + Rᵀ K R = L Lᵀ`` (see :mod:`streaming_gp.gp.process.dense`) and
``P = L⁻¹ Rᵀ`` the projections ``V = P k(Z, ·)`` and ``w = L⁻¹ s − P m(Z)`` give the cavity its
mean ``m + Vᵀ w`` and its covariance ``k − Vᵀ V``. P itself is never made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.stacks import transposed
from streaming_gp.numerics import triangular

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
        return self._weight(np.array(B, order="C"), True)

    def unweighted(self, B: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """``R B``, perhaps written over B, which must lie in C order then."""
        return self._weight(B if overwrite else np.array(B, order="C"), False)

    def _weight(self, B: np.ndarray, transposed: bool) -> np.ndarray:
        start = 0
        for R, kind in zip(self.blocks, self._kinds, strict=True):
            _WEIGHT[kind](R, B[:, start : start + len(R)], transposed)
            start += len(R)
        return B

    @cached_property
    def _kinds(self) -> list[str]:
        return [_kind(block) for block in self.blocks]


def _kind(R: np.ndarray) -> str:
    """How products with R [m, m] are cheapest."""
    is_lower = not np.any(np.triu(R, 1))
    if is_lower and not np.any(np.tril(R, -1)):
        return "diagonal"
    return "triangle" if is_lower and len(R) >= FEW_ROWS else "square"


# Each writes Rᵀ B, or R B, over B [S, m, Q], for one R [m, m].


def _by_diagonal(R: np.ndarray, B: np.ndarray, transposed: bool) -> None:
    B *= R.diagonal()[:, None]


def _by_triangle(R: np.ndarray, B: np.ndarray, transposed: bool) -> None:
    for one in B:
        triangular.product(R, one, transposed, overwrite=True)


def _by_square(R: np.ndarray, B: np.ndarray, transposed: bool) -> None:
    left = R.T if transposed else R
    B[:] = stacks.product(np.broadcast_to(left, (len(B), *R.shape)), B)


_WEIGHT = {"diagonal": _by_diagonal, "triangle": _by_triangle, "square": _by_square}


@dataclass(frozen=True, eq=False)
class Cavity:
    """A cavity at S values of ε and at some inputs.

    :param observed: What it is conditioned on.
    :param chol: L [S, R, R].
    :param projected: V [S, R, T] of the inputs.
    :param white: w [S, R, C].
    """

    observed: Observed
    chol: np.ndarray
    projected: np.ndarray
    white: np.ndarray

    @property
    def log_evidence(self) -> float:
        """``log 𝒵`` of the pseudo-observations, without their constants, summed over ε."""
        columns = self.white.shape[2]
        return -columns * stacks.half_logdet(self.chol) - 0.5 * float(np.sum(self.white**2))

    def back(self, B: np.ndarray) -> np.ndarray:
        """``Pᵀ B`` for B [S, R, Q]."""
        solved = stacks.solve(self.chol, B, transposed=True)
        return self.observed.unweighted(solved, overwrite=True)

    @cached_property
    def white_back(self) -> np.ndarray:
        """``Pᵀ w`` [S, R, C]."""
        return self.back(self.white)

    def pullback(
        self,
        projected: np.ndarray,
        by_between: np.ndarray,
        by_root_mean: np.ndarray,
        by_evidence: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives by K [S, R, R] and by m(Z) [S, R, C].

        Nothing depends on V and w but by ``VᵀV``, ``Vᵀw`` and ``wᵀw``, which no rotation of both
        changes. So ``Y = V̄Vᵀ + w̄wᵀ`` is symmetric, and the derivative by K is ``−½ Pᵀ Y P`` (Murray
        2016, "Differentiation of the Cholesky decomposition"); ``−½ C log det B`` adds C to the
        diagonal of Y.

        :param projected: ``Pᵀ V`` [S, R, T].
        :param by_between: The derivative by k(Z, ·), which is ``Pᵀ V̄`` [S, R, T].
        :param by_root_mean: ``Pᵀ w̄`` [S, R, C], without the log evidence.
        :param by_evidence: The derivative by the log evidence.
        """
        by_root_mean = by_root_mean - by_evidence * self.white_back
        by_K = stacks.product(by_between, transposed(projected))
        by_K += by_root_mean @ transposed(self.white_back)
        if by_evidence != 0.0:
            half = self.observed.unweighted(stacks.inverse(self.chol))
            squared = self.observed.unweighted(transposed(half))
            by_K += by_evidence * self.white.shape[2] * squared
        by_K *= -0.5
        return by_K, -by_root_mean


def conditioned(observed: Observed, K: np.ndarray, between: np.ndarray, mean: np.ndarray) -> Cavity:
    """The cavity.

    :param K: The prior covariance of the pseudo-inputs [S, R, R].
    :param between: That of these and the inputs that are asked for [S, R, T].
    :param mean: The prior mean of the pseudo-inputs [S, R, C].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    K = stacks.with_diagonal(K, observed.nugget)
    B = observed.weighted(transposed(observed.weighted(K)))
    L = stacks.cholesky(B, 1.0, overwrite=True)
    V = stacks.solve(L, observed.weighted(between), overwrite=True)
    white = stacks.solve(L, observed.targets - observed.weighted(mean), overwrite=True)
    return Cavity(observed, L, V, white)
