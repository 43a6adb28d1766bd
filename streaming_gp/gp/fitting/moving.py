"""Moves points to where they keep most of what pseudo-observations of others say.

With ``t(u) = exp(−½ ‖s − Rᵀu‖²)`` and new points b, the evidence of ``t'(b) = exp E[log t(u) | b]``
is Titsias' bound (2009) on that of "data" s, which observe the functions ``Rᵀu`` with noise of
variance 1. So the places where least is lost are those where that bound is largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.collapsed.batch import BatchUnderCavity, UnderCavity, under_cavity
from streaming_gp.gp.collapsed.bounds import OnPoints
from streaming_gp.gp.collapsed.cavity import Observed
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, minimise
from streaming_gp.gp.fitting.problem import limits_within, spread
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics import triangular
from streaming_gp.numerics.linalg import compress_rows


@dataclass(frozen=True, eq=False)
class Moving:
    """Pseudo-observations that are to be projected onto other points.

    :param prior: The prior at one ε.
    :param others: What else is known.
    :param members: What is projected.
    :param nugget: That of the new points.
    """

    prior: PriorAt
    others: tuple[PseudoObservations, ...]
    members: tuple[PseudoObservations, ...]
    nugget: float

    def best_places(
        self, start: np.ndarray, optimiser: LocalOptimiser, iterations: int
    ) -> np.ndarray:
        """The best of all places that the optimiser looks at, its start [M, D] first.

        They stay within the range of the points that are projected.

        :param optimiser: Its method and its tolerance count.
        :param iterations: The largest number of iterations.
        :raises NumericalError: if a covariance is not positive at the start.
        """
        unit = spread(self._Z)
        least, best = np.inf, start

        def objective(offsets: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal least, best
            Z = start + unit * offsets.reshape(start.shape)
            loss, gradient = self.loss_and_gradient(Z)
            if loss < least:
                least, best = loss, Z
            return loss, np.ravel(unit * gradient)

        limits = limits_within(self._Z, start, unit)
        method, tolerance = optimiser.method, optimiser.tolerance
        nowhere = np.zeros(start.size)
        minimise(objective, nowhere, limits, method, iterations, tolerance=tolerance)
        return best

    def loss_and_gradient(self, Z: np.ndarray) -> tuple[float, np.ndarray]:
        """The nats lost on new points Z [M, D], up to a constant, and the gradient [M, D].

        The loss is infinite where a covariance is not positive.
        """
        points, among, between = self._prior_at(Z)
        by_among, by_between = np.zeros_like(among), np.zeros_like(between)
        total = 0.0
        try:
            for group in self.prior.groups:
                values, batch, told = self._described(group, points, among, between)
                value, by = OnPoints(0.0).value_and_gradient(told)
                found = batch.pulled_back(by, 0.0, values)
                by_among[group] = found.among[0]
                by_between[group] = self._unweighted(group, found.between[0])
                total += value
        except np.linalg.LinAlgError:
            return np.inf, np.zeros_like(Z)
        gradient = self.prior.pullback(points, self._Z, by_among, by_between)
        return -total, -gradient[len(self._others_Z) :]

    def projected(self, Z: np.ndarray) -> tuple[PseudoObservations, float]:
        """What the members say on the points Z [M, D], and the log constant that is left over.

        :raises NumericalError: if a covariance is not positive.
        """
        points, among, between = self._prior_at(Z)
        parts = [
            self._projected(group, points, among, between, mean)
            for group, mean in zip(self.prior.groups, self.prior.mean(Z), strict=True)
        ]
        R, s, constants = zip(*parts, strict=True)
        return PseudoObservations(Z, np.stack(R), np.stack(s), self.nugget), sum(constants)

    def _prior_at(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points of what else is known and Z [T, D]; covariances among them [G, T, T], and
        between them and what is projected [G, T, N].
        """
        points = np.concatenate([self._others_Z, Z])
        return points, self.prior.covariance(points), self.prior.covariance(points, self._Z)

    # ---- one group ----

    def _projected(
        self,
        group: int,
        points: np.ndarray,
        among: np.ndarray,
        between: np.ndarray,
        mean: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """R and s on the new points, whose prior mean is [M, C], and the log constant."""
        try:
            _, batch, told = self._described(group, points, among, between)
            L = np.linalg.cholesky(told.among[0])
        except np.linalg.LinAlgError as error:
            raise NumericalError("the covariance of the points is not positive") from error
        design = triangular.solve(L, told.between[0])
        onto = triangular.solve(L, design, transposed=True)
        rows, fewer = compress_rows(onto.T[None], told.residual)
        R = np.ascontiguousarray(rows[0].T)
        V, white = batch.cavity.projected[0][:, : len(mean)], batch.cavity.white[0]
        unexplained = np.sum(told.variance) - np.sum(design**2)
        lost = np.sum(told.residual**2) - np.sum(fewer**2) + mean.shape[1] * unexplained
        return R, fewer[0] + R.T @ (mean + V.T @ white), -0.5 * float(lost)

    def _described(
        self, group: int, points: np.ndarray, among: np.ndarray, between: np.ndarray
    ) -> tuple[PriorValues, BatchUnderCavity, UnderCavity]:
        """The pseudo-observations as data with noise of variance 1, under what else is known."""
        mean = self.prior.mean(points)[group]
        values = PriorValues(
            among=among[group][None],
            between=self._weighted(group, between[group].T).T[None],
            variance=self._variance[group][None],
            mean_points=mean[None],
            mean_data=self._mean[group][None],
            noise=np.ones((1, len(self._Z))),
        )
        batch = under_cavity(values, self._observed(group), has_points=True)
        targets = np.concatenate([one.pseudo_targets[group] for one in self.members])
        return values, batch, batch.described(values, targets, self.nugget)

    def _weighted(self, group: int, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for B [N, T]."""
        pairs = zip(self.members, self._rows, strict=True)
        return np.concatenate([one.weighted(group, B[rows]) for one, rows in pairs])

    def _unweighted(self, group: int, B: np.ndarray) -> np.ndarray:
        """``B Rᵀ`` for B [T, N]."""
        found = np.empty_like(B)
        for one, rows in zip(self.members, self._rows, strict=True):
            R = one.precision_factor[group]
            if one.is_diagonal:
                found[:, rows] = B[:, rows] * R.diagonal()
            else:
                found[:, rows] = B[:, rows] @ R.T
        return found

    def _observed(self, group: int) -> Observed:
        """What else is known."""
        if not self.others:
            zero = np.zeros((1, 1))
            return Observed([zero], np.zeros((1, self.prior.num_columns)), np.ones(1))
        return Observed(
            [one.precision_factor[group] for one in self.others],
            np.concatenate([one.pseudo_targets[group] for one in self.others]),
            np.repeat([one.nugget for one in self.others], [len(one.Z) for one in self.others]),
        )

    # ---- what does not depend on the points ----

    @cached_property
    def _others_Z(self) -> np.ndarray:
        """The points of what else is known; where that is nothing, one that says nothing."""
        return np.concatenate([one.Z for one in self.others]) if self.others else self._Z[:1]

    @cached_property
    def _Z(self) -> np.ndarray:
        return np.concatenate([one.Z for one in self.members])

    @cached_property
    def _rows(self) -> list[slice]:
        ends = np.cumsum([0, *(len(one.Z) for one in self.members)])
        return [slice(*pair) for pair in pairwise(ends)]

    @cached_property
    def _variance(self) -> list[np.ndarray]:
        """``diag(Rᵀ K R)`` [N] of every group."""
        K = self.prior.covariance(self._Z)
        return [
            np.einsum("nn->n", self._weighted(g, self._weighted(g, k).T))
            for g, k in zip(self.prior.groups, K, strict=True)
        ]

    @cached_property
    def _mean(self) -> list[np.ndarray]:
        mean = self.prior.mean(self._Z)
        return [self._weighted(group, m) for group, m in zip(self.prior.groups, mean, strict=True)]
