"""A process factorised at one ε, as a value that is extended and never factorised again.

With pseudo-observations one after another, ``B = I + Rᵀ K R = L Lᵀ`` grows by a block row for each:

- ``C = L⁻¹ Rᵀ k(Z, Z') R'``
- ``L' = chol(I + R'ᵀ k(Z', Z') R' − Cᵀ C)``
- ``w' = L'⁻¹ (s' − R'ᵀ m(Z') − Cᵀ w)``

for new pseudo-observations (Z', R', s'), so that L, ``w = L⁻¹ (s − Rᵀ m)`` and the projections
``V = L⁻¹ Rᵀ k(Z, X)`` of :mod:`.conditioning` are lists of blocks. An extended process shares all
blocks with the one that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from streaming_gp.errors import NumericalError
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.linalg import solve_triangles


class _Row(NamedTuple):
    """One member: its block row of L, ``left`` [G, M, R] beside ``chol`` [G, M, M], and of w."""

    member: PseudoObservations
    left: np.ndarray
    chol: np.ndarray
    white: np.ndarray


@dataclass(frozen=True, eq=False)
class Factorised:
    """A Gaussian process at one ε, conditioned on pseudo-observations.

    :param prior: The prior at that ε.
    :param rows: The block rows of L and w.
    """

    prior: PriorAt
    rows: tuple[_Row, ...] = ()

    @property
    def members(self) -> tuple[PseudoObservations, ...]:
        """What it is conditioned on."""
        return tuple(row.member for row in self.rows)

    @property
    def white(self) -> np.ndarray:
        """w [G, R, C]."""
        parts = [row.white for row in self.rows]
        empty = np.zeros((self.prior.num_groups, 0, self.prior.num_columns))
        return np.concatenate([empty, *parts], axis=1)

    def conditioned_on(self, members: tuple[PseudoObservations, ...]) -> Factorised:
        """The process conditioned on these and nothing else; what both have in front is shared.

        :raises NumericalError: if a covariance of pseudo-observations is not positive.
        """
        pairs = zip(self.rows, members, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0].member is pair[1], pairs))
        found = replace(self, rows=self.rows[:shared])
        for member in members[shared:]:
            found = found.extended(member)
        return found

    def extended(self, member: PseudoObservations) -> Factorised:
        """The process conditioned on one more member.

        :raises NumericalError: if the covariance of the pseudo-observations is not positive.
        """
        Z, R = member.Z, member.precision_factor
        C = self.project(Z) @ R
        K = self.prior.covariance(Z) + member.nugget * np.eye(len(Z))
        B = np.eye(len(Z)) + np.swapaxes(R, 1, 2) @ K @ R - np.swapaxes(C, 1, 2) @ C
        residual = member.pseudo_targets - np.swapaxes(R, 1, 2) @ self.prior.mean(Z)
        chol = _cholesky(B)
        white = solve_triangles(chol, residual - np.swapaxes(C, 1, 2) @ self.white)
        row = _Row(member, np.ascontiguousarray(np.swapaxes(C, 1, 2)), chol, white)
        return replace(self, rows=(*self.rows, row))

    def project(self, X: np.ndarray) -> np.ndarray:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [G, R, N], block by block."""
        size = sum(len(row.member.Z) for row in self.rows)
        V = np.empty((self.prior.num_groups, size, len(X)))
        start = 0
        for row in self.rows:
            mine = slice(start, start + len(row.member.Z))
            transposed = np.swapaxes(row.member.precision_factor, 1, 2)
            right = transposed @ self.prior.covariance(row.member.Z, X)
            V[:, mine] = solve_triangles(row.chol, right - row.left @ V[:, :start])
            start = mine.stop
        return V

    def mean(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Mean [G, N, C] at X, from its projection."""
        return np.asarray(self.prior.mean(X) + np.swapaxes(V, 1, 2) @ self.white)

    def covariance(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Covariance [G, N, N] at X, from its projection."""
        return np.asarray(self.prior.covariance(X) - np.swapaxes(V, 1, 2) @ V)

    @property
    def log_normaliser(self) -> float:
        """``log 𝒵`` of the members, without the log constants of factors: in nats."""
        return sum(_log_normaliser(row, self.prior.num_columns) for row in self.rows)


def _log_normaliser(row: _Row, num_columns: int) -> float:
    diagonal = np.diagonal(row.chol, axis1=1, axis2=2)
    return float(-num_columns * np.sum(np.log(diagonal)) - 0.5 * np.sum(row.white**2))


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    try:
        return np.stack([cholesky(one, lower=True) for one in matrices])
    except (LinAlgError, ValueError) as error:
        message = f"the covariance of the pseudo-observations is not positive: {error}"
        raise NumericalError(message) from error
