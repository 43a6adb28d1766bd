"""A process conditioned densely, at one ε or several, which is extended and not factorised anew.

With u = f(Z) stacked over pseudo-observations, R block diagonal and K = k(Z, Z) + nugget,

- ``B = I + Rᵀ K R = L Lᵀ`` and ``w = L⁻¹ (s − Rᵀ m(Z))``
- projection ``V = L⁻¹ Rᵀ k(Z, x)``
- mean ``m(x) + Vᵀ w``, covariance ``k(x, x') − VᵀV'``
- normaliser ``log 𝒵 = −½ log det B − ½ ‖w‖²``, as pseudo-observations carry no (2π) constants.

Nothing here inverts k(Z, Z), and B is never worse conditioned than the observations are precise.
For some more pseudo-observations (Z', R', s') B grows by a block row:

- ``C = L⁻¹ Rᵀ k(Z, Z') R'``
- ``L' = chol(I + R'ᵀ k(Z', Z') R' − Cᵀ C)``
- ``w' = L'⁻¹ (s' − R'ᵀ m(Z') − Cᵀ w)``

so that L, w and V are lists of blocks. An extended process shares blocks with the one that it came
from. Which members make up a row is decided by their sizes alone, so that a process is the same bit
for bit however it came about.

Another way to condition is a class with the same methods: :meth:`DenseProcess.conditioned_on`,
:meth:`~DenseProcess.predict`, :attr:`~DenseProcess.log_normaliser`; and, for fits under it,
:meth:`~DenseProcess.project`, :meth:`~DenseProcess.mean` and :meth:`~DenseProcess.covariance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.process.observations import DataObservations, PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics import dense, triangular

SMALLEST_VARIANCE, MOST_ROUNDING = 1e-12, 0.5
"""As parts of the prior variance: rounding of a variance below the one is cut off, and below zero
it is less than the other."""
ROW = 64
"""Members share a block row until they have so many points: many small products are slow."""
CHUNK_ELEMENTS = 2**24
"""The largest number of elements that an intermediate array of a prediction should have."""


Member = PseudoObservations | DataObservations
"""What a process can be conditioned on as a whole."""


class _Row(NamedTuple):
    """Some members, as they are and as pseudo-observations at each ε; and for each group the block
    row of L, ``left`` [M, R] beside ``chol`` [M, M], and of w, ``white`` [M, C].
    """

    members: tuple[Member, ...]
    observed: list[tuple[PseudoObservations, ...]]
    left: list[np.ndarray]
    chol: list[np.ndarray]
    white: list[np.ndarray]

    @property
    def size(self) -> int:
        return len(self.white[0])


@dataclass(frozen=True, eq=False)
class DenseProcess:
    """A Gaussian process at S values of ε, conditioned on pseudo-observations.

    Arrays have an axis of S G groups: the G groups of latent functions at the first ε and so on.

    :param prior: The prior at these ε.
    :param rows: The block rows of L and w.
    """

    prior: PriorAt
    rows: tuple[_Row, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        """All that it is conditioned on."""
        return tuple(one for row in self.rows for one in row.members)

    @property
    def observed(self) -> list[tuple[PseudoObservations, ...]]:
        """The members as pseudo-observations at each ε."""
        return [
            tuple(one for row in self.rows for one in row.observed[index])
            for index in range(len(self.prior.draws))
        ]

    @property
    def size(self) -> int:
        """R, the number of points."""
        return sum(row.size for row in self.rows)

    @cached_property
    def Z(self) -> np.ndarray:
        """The members' points [R, D]."""
        return np.concatenate([one.Z for one in self.members])

    @cached_property
    def white(self) -> list[np.ndarray]:
        """w [R, C] of every group."""
        number, nothing = len(self.prior.groups), np.zeros((0, self.prior.num_columns))
        return [
            np.concatenate([nothing, *(row.white[group] for row in self.rows)])
            for group in range(number)
        ]

    @property
    def chol(self) -> Iterator[np.ndarray]:
        """L [R, R] of every group."""
        for group in range(len(self.prior.groups)):
            L, start = np.zeros((self.size, self.size)), 0
            for row in self.rows:
                mine = slice(start, start + row.size)
                L[mine, :start], L[mine, mine] = row.left[group], row.chol[group]
                start = mine.stop
            yield L

    def conditioned_on(self, members: Sequence[Member]) -> DenseProcess:
        """The process conditioned on these and nothing else; a part in front that both have is
        shared.

        :raises NumericalError: if a covariance of pseudo-observations is not positive.
        """
        wanted = _in_rows(members)
        pairs = zip(self.rows, wanted, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: _are_same(pair[0].members, pair[1]), pairs))
        process = replace(self, rows=self.rows[:shared])
        for row in wanted[shared:]:
            process = process.extended(*row)
        return process

    def extended(self, *members: Member) -> DenseProcess:
        """The process conditioned on more members, which are one block row.

        :raises NumericalError: if the covariance of the pseudo-observations is not positive.
        """
        if not members:
            return self
        Z = np.concatenate([one.Z for one in members])
        nugget = np.repeat([one.nugget for one in members], [len(one.Z) for one in members])
        parts = zip(
            self.prior.groups, self.prior.covariances(Z), self.prior.mean(Z),
            self._projections(Z), self.white, strict=True,
        )  # fmt: skip
        observed, num_groups = self.prior.observed(members), self.prior.functions.gp.num_groups
        blocks = [
            _block_row(
                observed[index // num_groups], group, _with_diagonal(K, nugget), mean, V, white
            )
            for index, (group, K, mean, V, white) in enumerate(parts)
        ]
        left, chol, white = (list(part) for part in zip(*blocks, strict=True))
        return replace(self, rows=(*self.rows, _Row(members, observed, left, chol, white)))

    # ---- at inputs ----

    def predict(self, X: np.ndarray, full_cov: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Mean [S, N, L] and variance [S, N, L], or covariance [S, L, N, N], of f(X) for each ε.

        :raises NumericalError: as :meth:`marginals`.
        """
        gp, N = self.prior.functions.gp, len(X)
        if full_cov:
            V = self.project(X)
            mean, covariance = self.mean(X, V), self.covariance(X, V)
            variance = np.einsum("gnn->gn", covariance)
            refuse_far_below_zero(variance, self.prior.variance(X))
            by_draw = covariance.reshape(-1, gp.num_groups, N, N)
            spread = np.broadcast_to(by_draw, (len(by_draw), gp.num_latent, N, N))
        else:
            chunk = max(256, CHUNK_ELEMENTS // max(1, self.size))
            pieces = [self.marginals(X[i : i + chunk]) for i in range(0, N, chunk)]
            mean, variance = (np.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True))
            by_draw = variance.reshape(-1, gp.num_groups, N).swapaxes(1, 2)
            spread = np.broadcast_to(by_draw, (len(by_draw), N, gp.num_latent))
        by_group = mean.reshape(-1, gp.num_groups, N, self.prior.num_columns)
        return by_group.swapaxes(1, 2).reshape(-1, N, gp.num_latent), spread

    def marginals(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean [S G, N, C] and variance [S G, N] at X; one group after another, to save memory.

        Rounding of variances below zero is cut off.

        :raises NumericalError: if they are far below zero: then covariances with inputs as large as
            these are wrong, such as a cosine of 1e300.
        """
        mean, prior = np.array(self.prior.mean(X)), self.prior.variance(X)
        variance = np.array(prior)
        for index, V in enumerate(self._projections(X)):
            mean[index] += V.T @ self.white[index]
            variance[index] -= np.einsum("rn,rn->n", V, V)
        refuse_far_below_zero(variance, prior)
        return mean, np.maximum(variance, SMALLEST_VARIANCE * prior)

    def project(self, X: np.ndarray) -> np.ndarray:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [S G, R, N]: what the pseudo-observations know of f(X)."""
        return np.stack(list(self._projections(X)))

    def mean(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Mean [S G, N, C] at X, from its projection."""
        return np.asarray(self.prior.mean(X) + np.swapaxes(V, 1, 2) @ np.stack(self.white))

    def covariance(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Covariance [S G, N, N] at X, from its projection."""
        prior = self.prior.covariance(X)
        return np.stack([k - dense.product(v.T, v) for k, v in zip(prior, V, strict=True)])

    def _projections(self, X: np.ndarray) -> Iterator[np.ndarray]:
        """V [R, N] of every group."""
        if not self.rows:
            yield from np.zeros((len(self.prior.groups), 0, len(X)))
            return
        covariances = self.prior.covariances(self.Z, X)
        num_groups = self.prior.functions.gp.num_groups
        for index, (group, K) in enumerate(zip(self.prior.groups, covariances, strict=True)):
            V, start = np.empty(K.shape), 0
            for row in self.rows:
                mine = slice(start, start + row.size)
                right = _weighted(row.observed[index // num_groups], group, K[mine])
                if start > 0:
                    right = dense.less_product(right, row.left[index], V[:start])
                V[mine] = triangular.solve(row.chol[index], right)
                start = mine.stop
            yield V

    # ---- of the whole ----

    @property
    def log_normaliser(self) -> float:
        """``log 𝒵`` of the members, without the log constants of factors, in nats: at one ε."""
        logdet = sum(float(np.sum(np.log(L.diagonal()))) for row in self.rows for L in row.chol)
        fit = sum(float(np.sum(white**2)) for row in self.rows for white in row.white)
        constant = self.prior.constant(self.members)
        return constant - self.prior.num_columns * logdet - 0.5 * fit


def refuse_far_below_zero(variance: np.ndarray, prior: np.ndarray) -> None:
    """Refuse variances that are wrong, and not only rounded.

    :raises NumericalError: as :meth:`DenseProcess.marginals`.
    """
    if (variance < -MOST_ROUNDING * prior).any():
        raise NumericalError("covariances with inputs so large are wrong: wanted smaller ones")


def _with_diagonal(K: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``K + diag(values)``."""
    changed = np.array(K)
    np.einsum("mm->m", changed)[:] += values
    return changed


def _weighted(members: Sequence[PseudoObservations], group: int, B: np.ndarray) -> np.ndarray:
    """``Rᵀ B`` for the block diagonal R of some members, and B [M, N]."""
    ends = np.cumsum([len(one.Z) for one in members])
    pieces = np.split(B, ends[:-1])
    products = [one.weighted(group, piece) for one, piece in zip(members, pieces, strict=True)]
    return products[0] if len(products) == 1 else np.concatenate(products)


def _block_row(
    members: Sequence[PseudoObservations],
    group: int,
    K: np.ndarray,
    mean: np.ndarray,
    V: np.ndarray,
    white: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The blocks Cᵀ, L' and w' of one group.

    :param K: The prior covariance of the members' u [M, M].
    :param V: Their projection on what is there already [R, M].
    """
    left = _weighted(members, group, V.T)
    B = _weighted(members, group, _weighted(members, group, K).T)
    largest = float(np.max(B.diagonal()))
    B = dense.less_product(B, left, left.T)
    np.einsum("mm->m", B)[:] += 1.0
    chol = triangular.cholesky_but_for_rounding(B, largest)
    targets = np.concatenate([one.pseudo_targets[group] for one in members])
    residual = targets - _weighted(members, group, mean) - left @ white
    white = triangular.solve(chol, residual)
    if not np.isfinite(white).all():
        raise NumericalError("the pseudo-observations are not finite under the prior mean")
    return left, chol, white


def _in_rows(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """The members, one after another, in rows of at least so many points but for the last."""
    rows: list[tuple[Member, ...]] = []
    size = ROW
    for one in members:
        if size >= ROW:
            rows.append(())
            size = 0
        rows[-1] = (*rows[-1], one)
        size += len(one.Z)
    return rows


def _are_same(some: tuple[Member, ...], others: tuple[Member, ...]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
