"""Earlier pseudo-observations on other points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update (maths page, "earlier pseudo-observations on new points"),
merged factors whenever a budget is full. A cavity near a batch has a few points that stand for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.points import NUGGET
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.numerics import dense, stacks
from streaming_gp.numerics.linalg import compress_rows
from streaming_gp.numerics.stacks import transposed

GPLedger = pvi.Ledger[Process]
PROBES = 100
"""The variance that a point explains is looked at on so many inputs of the batch."""
CERTAIN = 1e-10
"""Share of the prior variance below which what is left of it is taken for rounding."""


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
        R = one.precision_factor
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


# ---- the part of a cavity that matters to a batch ----


def nearby(process: DenseProcess, X: np.ndarray, number: int) -> tuple[PseudoObservations, ...]:
    """A process's marginal at ``number`` of its points near X, as pseudo-observations of these.

    A fit asks for the cavity at many values of ε, and what that costs must not grow with the
    stream. At the ε of the process it is that marginal exactly; at other values of ε they are what
    they are, observations of f.

    :param X: The inputs of the batch [N, D].
    :param number: The largest number of points.
    """
    chosen = _most_correlated(process, X, number)
    return (_marginal(process, process.Z[chosen]),) if len(chosen) > 0 else ()


def _most_correlated(process: DenseProcess, X: np.ndarray, number: int) -> np.ndarray:
    """Points that explain most of the prior variance at X, one after another.

    A point j explains ``Σ_n cov(f_n, f_j)² / var(f_j)``, given those before. There are none where
    X is so far from all of them that every covariance is zero.
    """
    probes = X[np.unique(np.linspace(0, len(X) - 1, PROBES).astype(int))]
    between = process.prior.covariance(probes, process.Z).mean(axis=0)
    K = process.prior.covariance(process.Z).mean(axis=0)
    rows = np.zeros((number, len(K)))
    variance = K.diagonal().copy()
    floor = NUGGET * variance.max()
    chosen: list[int] = []
    for row in rows:
        explained = np.sum(between**2, axis=0) / np.maximum(variance, floor)
        explained[variance <= floor] = -1.0
        best = int(np.argmax(explained))
        if explained[best] <= 0.0:
            break
        before = rows[: len(chosen)]
        column = K[best] - before.T @ before[:, best]
        between -= np.outer(between[:, best] / variance[best], column)
        row[:] = column / np.sqrt(variance[best])
        variance = variance - row**2
        variance[best] = 0.0
        chosen.append(best)
    return np.array(chosen, dtype=int)


def _marginal(process: DenseProcess, points: np.ndarray) -> PseudoObservations:
    """Pseudo-observations that turn the prior at the points into the process's marginal.

    With ``K = L Lᵀ`` the covariance is ``L (I − A Aᵀ) Lᵀ``, which adds the precision
    ``L⁻ᵀ U diag(e / (1 − e)) Uᵀ L⁻¹`` for ``A Aᵀ = U diag(e) Uᵀ``.
    """
    prior = process.prior
    V, K = process.project(points), prior.covariance(points)
    nugget = NUGGET * float(np.mean(np.diagonal(K, axis1=1, axis2=2)))
    chol = stacks.cholesky(K, nugget)
    A = stacks.solve(chol, transposed(V))
    pairs = [eigh(dense.product(one, one.T), driver="evd") for one in A]
    explained, U = (np.stack(part) for part in zip(*pairs, strict=True))
    explained = np.clip(explained, 0.0, 1.0 - CERTAIN)[:, :, None]
    gain = np.sqrt(explained / (1.0 - explained))
    factor = stacks.solve(chol, U * transposed(gain), transposed=True)
    shift = stacks.solve(chol, process.mean(points, V) - prior.mean(points))
    white = transposed(U) @ shift
    # s makes the mean of the whitened points what it is: (1 + g²) mean = g s̃, and s = s̃ + Rᵀ m.
    shown = np.where(gain > 0.0, white * (1.0 + gain**2) / np.maximum(gain, CERTAIN), 0.0)
    rows = transposed(factor)
    rows, targets = compress_rows(rows, shown + rows @ prior.mean(points))  # to a triangle
    return PseudoObservations(points, transposed(rows), targets, nugget)
