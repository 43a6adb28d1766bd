"""Earlier pseudo-observations on other points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update (maths page, "earlier pseudo-observations on new points"),
merged factors whenever a budget is full.

Dropping a point j from points u with covariance K and information W = R Rᵀ leaves the variance
``1 / (K⁻¹)_jj`` of it unexplained, and by ``t'(b)`` loses ``½ W_jj / (K⁻¹)_jj`` nats; W then moves
to the others along ``u_j = −(K⁻¹)_jr u_r / (K⁻¹)_jj + …``.

With ``t(u) = exp(−½ ‖s − Rᵀu‖²)`` and new points b, the evidence of t'(b) is Titsias' bound (2009)
on that of "data" s, which observe the functions ``Rᵀu`` with noise of variance 1. So the places
where least is lost are those where that bound is largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import Variational
from streaming_gp.gp.fit.cavity import UnderCavity
from streaming_gp.gp.fit.optimiser import LocalOptimiser, minimise
from streaming_gp.gp.fit.points import NUGGET, limits_within, spread
from streaming_gp.gp.process.observations import PseudoObservations, factored
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.numerics import dense, stacks, symmetric
from streaming_gp.numerics.linalg import compress_rows
from streaming_gp.numerics.stacks import transposed

AT_ONCE = 128
"""So many points are dropped before the rest is brought up to date."""
FINALISTS = 3
"""These are chosen among so many times their number, which are kept up to date throughout."""
TIE = 1e-6
"""Of losses: so near the least, the first point goes, whatever rounding says."""
GPLedger = pvi.Ledger[Process]


class OfPoints(NamedTuple):
    """Observations as functions of whitened points c: their mean, ``Dᵀ c``, and what is left.

    :param design: D [G, M, N].
    :param variance: Of what is observed, without its noise [G, N].
    :param residual: The observations less their mean [G, N, C].
    """

    design: np.ndarray
    variance: np.ndarray
    residual: np.ndarray

    @property
    def left(self) -> np.ndarray:
        """The variance that the points leave [G, N], which rounding may take below zero."""
        return self.variance - np.einsum("gmn,gmn->gn", self.design, self.design)


def on_points(
    Z: np.ndarray,
    chol: np.ndarray,
    mean: np.ndarray,
    design: np.ndarray,
    targets: np.ndarray,
    nugget: float,
) -> tuple[PseudoObservations, float]:
    """Observations ``targets ≈ Dᵀ c`` as pseudo-observations, and the log constant left over.

    N of them become M, which ``c = L⁻¹ (b − m̃(Z))`` turns into those of b.

    :param Z: The points [M, D].
    :param chol: L of each group [G, M, M].
    :param mean: m̃(Z) [G, M, C].
    :param design: D in units of the observations' noise [G, M, N].
    :param targets: Likewise, less their mean [G, N, C].
    :param nugget: The variance of the points' white noise.
    """
    rows, fewer = compress_rows(transposed(design), targets)
    R = stacks.solve(chol, transposed(rows), transposed=True)
    constant = -0.5 * float(np.sum(targets**2) - np.sum(fewer**2))
    return PseudoObservations(Z, R, fewer + transposed(R) @ mean, nugget), constant


class Projection:
    """The projections of factors onto new points, under the prior at one ε.

    :param prior: The prior.
    :param Z: The new points [M, D].
    :param nugget: The variance of their white noise.
    :param shared_nugget: The part of it that the earlier points have as well, which are as many.
    :ivar mean: m(Z) [G, M, C].
    :ivar chol: L [G, M, M].
    :raises NumericalError: if the covariance of the new points is not positive.
    """

    def __init__(
        self, prior: PriorAt, Z: np.ndarray, nugget: float, shared_nugget: float = 0.0
    ) -> None:
        self.prior = prior
        self.Z = Z
        self.nugget = nugget
        self.shared_nugget = shared_nugget
        self.mean = prior.mean(Z)
        try:
            self.chol = stacks.cholesky(prior.covariance(Z), nugget)
        except np.linalg.LinAlgError:
            raise NumericalError("the covariance of the pseudo-points is not positive") from None
        self._of_points: dict[bytes, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def of_ledger(self, ledger: GPLedger) -> GPLedger:
        """Every factor on the new points, unless these and the earlier ones are the same."""
        if self.shared_nugget == self.nugget > 0.0:
            return ledger
        factors = ledger.factors.items()
        return ledger.with_factors({name: self.of_factor(one) for name, one in factors})

    def of_factor(self, factor: PseudoPointFactor) -> PseudoPointFactor:
        """The factor on the new points; its constant is what log t' has beside its own."""
        members = plain(Process(factor.pseudo_observations))
        if not members:
            return factor
        seen = [self.observed(one) for one in members]
        design = np.concatenate([one.design for one in seen], axis=2)
        residual = np.concatenate([one.residual for one in seen], axis=1)
        said, constant = on_points(self.Z, self.chol, self.mean, design, residual, self.nugget)
        left = sum(float(np.sum(one.left)) for one in seen)
        constant -= 0.5 * self.prior.num_columns * left
        return replace(factor, pseudo_observations=(said,), log_scale=factor.log_scale + constant)

    def observed(self, one: PseudoObservations) -> OfPoints:
        """Observations of earlier points as functions of the new ones; their noise is one."""
        A, K, mean = self._earlier(one.Z)
        R = one.square
        variance = np.sum(R * (K @ R + one.nugget * R), axis=1)
        return OfPoints(A @ R, variance, one.pseudo_targets - transposed(R) @ mean)

    def _earlier(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``L⁻¹ k(Z_b, Z_a)`` [G, M, R], k(Z_a, Z_a) and m(Z_a) of earlier points, which most
        factors of a ledger have in common.
        """
        key = Z.tobytes()
        if key not in self._of_points:
            between = self.prior.covariance(self.Z, Z)
            between = between + self.shared_nugget * np.eye(len(self.Z), len(Z))
            A = stacks.solve(self.chol, between, overwrite=True)
            self._of_points[key] = A, self.prior.covariance(Z), self.prior.mean(Z)
        return self._of_points[key]


# ---- factors on fewer points ----


def best_places(
    prior: PriorAt,
    members: Sequence[PseudoObservations],
    start: PseudoObservations,
    optimiser: LocalOptimiser,
    iterations: int,
) -> np.ndarray:
    """The best of all places [M, D] that the optimiser looks at for points, their start first.

    They stay within the range of the members' points.

    :raises NumericalError: if a covariance is not positive at the start.
    """
    Z = np.concatenate([one.Z for one in members])
    unit = spread(Z)
    least, best = np.inf, start.Z
    loss_at = Loss(prior, members, start.nugget)

    def objective(offsets: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal least, best
        places = start.Z + unit * offsets.reshape(start.Z.shape)
        loss, gradient = loss_at(places)
        if loss < least:
            least, best = loss, places
        return loss, np.ravel(unit * gradient)

    limits = limits_within(Z, start.Z, unit)
    method, tolerance = optimiser.method, optimiser.tolerance
    minimise(objective, np.zeros(start.Z.size), limits, method, iterations, tolerance=tolerance)
    return best


class Loss:
    """The nats that pseudo-observations lose on other points of this nugget, up to a constant."""

    def __init__(
        self, prior: PriorAt, members: Sequence[PseudoObservations], nugget: float
    ) -> None:
        self._prior, self._members, self._nugget = prior, members, nugget
        self._Z = np.concatenate([one.Z for one in members])
        K, mean = prior.covariance(self._Z), prior.mean(self._Z)
        ends = np.cumsum([len(one.Z) for one in members])[:-1]
        self._rows = np.split(np.arange(len(self._Z)), ends)
        variance = np.einsum("gnn->gn", self._weighted(transposed(self._weighted(K))))
        none = np.ones_like(variance)
        # the batch under its cavity, but for what depends on the new points
        self._data = UnderCavity(K[:, :0], K[:, :0], variance, self._weighted(mean), none)
        self._targets = np.concatenate([one.pseudo_targets for one in members], axis=1)

    def __call__(self, Z: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss on points Z [M, D], infinite where a covariance is not positive; its gradient
        [M, D].
        """
        among = stacks.with_diagonal(self._prior.covariance(Z), self._nugget)
        between = transposed(self._weighted(self._prior.covariance(self._Z, Z)))
        try:
            data = self._data._replace(among=among, between=between)
            value, by = Variational().value_and_gradient(data, self._targets)
        except np.linalg.LinAlgError:
            return np.inf, np.zeros_like(Z)
        by_between = transposed(self._unweighted(transposed(by.between)))
        return -value, -self._prior.pullback(Z, self._Z, by.among, by_between)

    def _weighted(self, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` of every group, for B [G, N, T]."""
        return np.stack(
            [
                np.concatenate(
                    [
                        one.weighted(group, B[group][rows])
                        for one, rows in zip(self._members, self._rows, strict=True)
                    ]
                )
                for group in self._prior.groups
            ]
        )

    def _unweighted(self, B: np.ndarray) -> np.ndarray:
        """``R B`` of every group, for B [G, N, T]."""
        pairs = zip(self._members, self._rows, strict=True)
        return np.concatenate([one.square @ B[:, rows] for one, rows in pairs], axis=1)


def thinned(
    prior: PriorAt, members: Sequence[PseudoObservations], number: int
) -> tuple[PseudoObservations, float]:
    """All members as one on ``number`` of their points, and the log constant that is left over."""
    Z = np.concatenate([one.Z for one in members])
    K, mean = np.array(prior.covariance(Z)), prior.mean(Z)
    diagonal = np.diagonal(K, axis1=1, axis2=2)
    nugget = max(*(one.nugget for one in members), NUGGET * float(np.mean(diagonal)))
    np.einsum("grr->gr", K)[:] += nugget
    groups = [_about(m, group, members) for group, m in enumerate(mean)]
    kept = least_lost(K, [W for W, _, _ in groups], len(Z) - number)
    constant, parts = 0.0, []
    for k, m, (W, h, squares) in zip(K, mean, groups, strict=True):
        onto, fewer = _projected(k, W, h, kept)
        R, s = factored(onto, fewer)
        unexplained = np.vdot(W, k) - symmetric.inner(onto, k[np.ix_(kept, kept)])
        constant -= 0.5 * (squares - np.sum(s**2) + m.shape[1] * unexplained)
        parts.append((R, s + R.T @ m[kept]))
    factor, targets = (np.stack(part) for part in zip(*parts, strict=True))
    return PseudoObservations(Z[kept], factor, targets, nugget), float(constant)


def _about(
    mean: np.ndarray, group: int, members: Sequence[PseudoObservations]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Information of members on a group, about its mean [R, C]: W [R, R], h [R, C], ``‖s‖²``."""
    W, h, squares, start = np.zeros((len(mean), len(mean))), np.zeros_like(mean), 0.0, 0
    for one in members:
        mine = slice(start, start + len(one.Z))
        R = one.square[group]
        residual = one.pseudo_targets[group] - R.T @ mean[mine]
        W[mine, mine] = dense.product(R, R.T)
        h[mine], squares, start = R @ residual, squares + float(np.sum(residual**2)), mine.stop
    return W, h, squares


def least_lost(
    covariance: np.ndarray, information: Sequence[np.ndarray], number: int
) -> np.ndarray:
    """Indices of the points that stay when ``number`` of them are dropped, in order.

    :param covariance: K [G, R, R].
    :param information: W [R, R] of each group.
    """
    precision = reduce(np.add, map(_inverse, covariance))  # of groups, whose scale does not matter
    weight = np.array(reduce(np.add, information), order="F")
    stays = np.ones(len(precision), bool)
    while number > 0:
        dropped = _first_to_go(precision, weight, stays, min(AT_ONCE, number))
        _drop(precision, weight, dropped)
        stays[dropped] = False
        number -= len(dropped)
    return np.flatnonzero(stays)


def _inverse(K: np.ndarray) -> np.ndarray:
    """K⁻¹: scores need its diagonal and its rows, and nothing else is computed from it."""
    lower, _ = lapack.dpotri(cholesky(K, lower=True), lower=1, overwrite_c=1)
    return np.asarray(lower)


def _first_to_go(
    precision: np.ndarray, weight: np.ndarray, stays: np.ndarray, number: int
) -> np.ndarray:
    """The points whose loss is smallest, one after another; scores of the finalists are exact."""
    staying = np.flatnonzero(stays)
    losses = (weight.diagonal() / precision.diagonal())[staying]
    finalists = np.sort(staying[np.argsort(losses)[: FINALISTS * number]])
    P, W = symmetric.among(precision, finalists), symmetric.among(weight, finalists)
    gone: list[int] = []
    for _ in range(number):
        losses = W.diagonal() / P.diagonal()
        losses[gone] = np.inf
        j = int((losses <= (1.0 + TIE) * losses.min()).argmax())
        p, w = symmetric.column(P, j), symmetric.column(W, j)
        onto = p / -p[j]
        onto[j] = 0.0
        symmetric.add_outer_pair(W, onto, w + 0.5 * w[j] * onto)
        symmetric.add_outer(P, -1.0 / p[j], p)
        gone.append(j)
        _forget(P, j)
    return finalists[gone]


def _forget(precision: np.ndarray, j: int) -> None:
    """Nothing depends on point j any more."""
    symmetric.clear(precision, j)
    precision[j, j] = 1.0


def _drop(precision: np.ndarray, weight: np.ndarray, dropped: np.ndarray) -> None:
    """Make K⁻¹ and W those of the points that stay, in their rows and columns."""
    across = symmetric.columns(precision, dropped)
    chol = cholesky(across[:, dropped], lower=True)
    white = solve_triangular(chol, across, lower=True)
    onto = solve_triangular(chol, -white, lower=True, trans=1)
    onto[:, dropped] = 0.0
    moved = symmetric.columns(weight, dropped)
    symmetric.add_product_pairs(weight, onto, moved + 0.5 * moved[:, dropped] @ onto)
    symmetric.add_products(precision, -1.0, white)
    for j in dropped:
        _forget(precision, j)


def _projected(
    K: np.ndarray, W: np.ndarray, h: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """W and h of one group on the points that stay, by ``u_d = A u_k + …`` for the others."""
    dropped = np.setdiff1d(np.arange(len(K)), kept)
    chol = cholesky(K[np.ix_(kept, kept)], lower=True)
    A = cho_solve((chol, True), K[np.ix_(kept, dropped)]).T
    onto = np.asfortranarray(W[np.ix_(kept, kept)])
    moved = W[np.ix_(dropped, kept)] + 0.5 * dense.product(W[np.ix_(dropped, dropped)], A)
    symmetric.add_product_pairs(onto, A, moved)
    return onto, h[kept] + A.T @ h[dropped]
