"""Conditions the prior on a cavity's pseudo-observations, forwards and backwards.

With ``B = I + Rᵀ K R = L Lᵀ`` (see :mod:`streaming_gp.gp.process.conditioning`) and
``P = L⁻¹ Rᵀ``, the projections ``V = P k(Z, ·)`` and ``w = L⁻¹ s − P m(Z)`` give the cavity its
mean ``m + Vᵀ w`` and its covariance ``k − Vᵀ V``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.stacks import transposed


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
        ends = np.cumsum([len(block) for block in self.blocks])
        pieces = np.split(B, ends[:-1], axis=1)
        found = [
            stacks.product(np.broadcast_to(block.T, (len(B), *block.shape)), piece)
            for block, piece in zip(self.blocks, pieces, strict=True)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


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

        :param by_projected: The derivative by V [S, R, T].
        :param by_white: That by w [S, R, C].
        :param by_evidence: That by the log evidence.
        """
        R, columns = self.white.shape[1:]
        by_white = by_white - by_evidence * self.white
        product = stacks.product(by_projected, transposed(self.projected))
        product += by_white @ transposed(self.white)
        # −½ C log det B adds C to the diagonal: see stacks.cholesky_pullback, with L⁻¹ for P
        product = stacks.with_diagonal(product, np.full(R, by_evidence * columns))
        back = transposed(self.projector)
        half = stacks.product(back, stacks.symmetric(product))
        by_K = -0.5 * stacks.product(half, self.projector)
        return by_K, stacks.product(back, by_projected), -(back @ by_white)


def conditioned(observed: Observed, K: np.ndarray, between: np.ndarray, mean: np.ndarray) -> Cavity:
    """The cavity.

    :param K: The prior covariance of the pseudo-inputs [S, R, R].
    :param between: That of these and the inputs that are asked for [S, R, T].
    :param mean: The prior mean of the pseudo-inputs [S, R, C].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    K = stacks.with_diagonal(K, observed.nugget)
    B = observed.weighted(np.ascontiguousarray(transposed(observed.weighted(K))))
    L = stacks.cholesky(stacks.with_diagonal(B, np.ones(len(observed.nugget))))
    root = observed.weighted(np.eye(len(observed.nugget))[None])
    P = stacks.solve(L, np.broadcast_to(root, L.shape))
    targets = np.broadcast_to(observed.targets, (len(L), *observed.targets.shape))
    white = stacks.solve(L, targets) - P @ mean
    return Cavity(L, P, stacks.product(P, between), white)
