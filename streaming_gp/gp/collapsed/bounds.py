"""The log evidence of a batch under a cavity, and the energies of sparse approximations to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.stacks import transposed
from streaming_gp.numerics.linalg import LOG_TWO_PI


@dataclass(frozen=True)
class AtEveryInput:
    """``F = log N(y; m̃, S)`` with ``S = K̃ + σ²``: a point at every input, and no approximation.

    With ``a = S⁻¹ (y − m̃)`` its derivative by S is ``½ (a aᵀ − C S⁻¹)``
    (Rasmussen & Williams 2006, eq. 5.9).
    """

    on_points: ClassVar[bool] = False
    """Whether there are points beside the data."""

    def value_and_gradient(self, batch: UnderCavity) -> tuple[float, UnderCavity]:
        """F in nats, summed over ε, and its derivatives; those by ``among`` are symmetric.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        C = batch.residual.shape[2]
        L = stacks.cholesky(batch.among, batch.noise)
        white = stacks.solve(L, batch.residual)
        a = stacks.solve(L, white, transposed=True)
        value = -C * stacks.half_logdet(L) - 0.5 * np.sum(white**2) - _constant(batch)
        by_S = stacks.inverse(L)
        by_S *= -0.5 * C
        by_S += (0.5 * a) @ transposed(a)
        by_noise = np.einsum("snn->sn", by_S)
        return float(value), UnderCavity(by_S, batch.between, batch.variance, -a, by_noise)


@dataclass(frozen=True)
class OnPoints:
    """The energy of power EP on M points (Bui, Yan & Turner 2017); α = 0 is Titsias' bound (2009).

    ``F = log N(y; m̃, AᵀA + D) − (1 − α)/(2α) Σ_n log(1 + α r_n/σ_n²)`` for whitened points, with
    ``A = chol(K̃_MM)⁻¹ K̃_MN``, ``r = diag(K̃_NN − AᵀA)`` and ``D = σ² + α r``. As α → 0 the second
    term is ``½ Σ_n r_n/σ_n²``.

    :param alpha: α in [0, 1].
    """

    alpha: float
    on_points: ClassVar[bool] = True

    def value_and_gradient(self, batch: UnderCavity) -> tuple[float, UnderCavity]:
        """As that of :class:`AtEveryInput`."""
        L = stacks.cholesky(batch.among)
        A = stacks.solve(L, batch.between)
        left, unexplained, widened = self.left(A, batch)
        found = low_rank(A, widened, batch.residual)
        C = batch.residual.shape[2]
        value = self._value(found, unexplained, batch)
        by_noise, by_variance = self.by_variances(found.by_diagonal, left, batch.noise, C)
        by_A = found.by_design - 2.0 * by_variance[:, None] * A
        by_between = stacks.solve(L, by_A, transposed=True)
        if self.alpha == 0.0 and np.all(left > 0.0):
            by_among = -0.5 * _from_both_sides(L, _by_design_times_design(found, A))
        else:
            back = stacks.solve(L, A, transposed=True)
            by_among = -0.5 * stacks.product(by_between, transposed(back))  # as in Cavity.pullback
        return value, UnderCavity(by_among, by_between, by_variance, -found.a, by_noise)

    def left(self, A: np.ndarray, batch: UnderCavity) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The variance of f at the data given the points, the same without rounding below zero, and
        that of the noise with α of it [S, N].
        """
        left = batch.variance - np.einsum("smn,smn->sn", A, A)
        unexplained = np.maximum(left, 0.0)
        return left, unexplained, batch.noise + self.alpha * unexplained

    def by_variances(
        self, by_diagonal: np.ndarray, left: np.ndarray, noise: np.ndarray, C: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives by the noise and by the variance of f, from those by ``D`` [S, N]."""
        unexplained = np.maximum(left, 0.0)
        weight = 0.5 * C * (1.0 - self.alpha) / (noise + self.alpha * unexplained)
        by_noise = by_diagonal + weight * unexplained / noise
        return by_noise, np.where(left > 0.0, self.alpha * by_diagonal - weight, 0.0)

    def value(self, A: np.ndarray, unexplained: np.ndarray, batch: UnderCavity) -> float:
        """F in nats alone, for data as functions A [S, M, N] of whitened points.

        :param unexplained: What :meth:`left` says of them [S, N].
        """
        widened = batch.noise + self.alpha * unexplained
        return self._value(low_rank(A, widened, batch.residual), unexplained, batch)

    def _value(self, found: LowRank, unexplained: np.ndarray, batch: UnderCavity) -> float:
        C = batch.residual.shape[2]
        return found.value - C * self.correction(unexplained / batch.noise) - _constant(batch)

    def correction(self, share: np.ndarray) -> float:
        """What unexplained variance costs, given its shares of the noise."""
        if self.alpha == 0.0:
            return 0.5 * float(np.sum(share))
        factor = 0.5 * (1.0 - self.alpha) / self.alpha
        return factor * float(np.sum(np.log1p(self.alpha * share)))


CollapsedBound = AtEveryInput | OnPoints


def _constant(batch: UnderCavity) -> float:
    """``½ S N C log 2π``."""
    return 0.5 * batch.residual.size * LOG_TWO_PI


class LowRank(NamedTuple):
    """``log N(residual; 0, S)`` less its constant, for ``S = AᵀA + D``, and derivatives.

    :param value: In nats, summed over ε.
    :param by_design: By A [S, M, N].
    :param by_diagonal: By the diagonal of D [S, N].
    :param a: ``S⁻¹ residual`` [S, N, C].
    :param gram: ``A D⁻¹ Aᵀ`` [S, M, M].
    :param chol: The factor of ``I + A D⁻¹ Aᵀ``.
    """

    value: float
    by_design: np.ndarray
    by_diagonal: np.ndarray
    a: np.ndarray
    gram: np.ndarray
    chol: np.ndarray


def low_rank(A: np.ndarray, diagonal: np.ndarray, residual: np.ndarray) -> LowRank:
    """The density of a residual [S, N, C] for A [S, M, N] and the diagonal of D [S, N]."""
    C = residual.shape[2]
    root = np.sqrt(diagonal)[:, None]
    scaled, target = A / root, residual / transposed(root)
    gram = stacks.gram(scaled)
    L = stacks.cholesky(gram, 1.0)
    half = stacks.solve(L, scaled, overwrite=True)
    white = half @ target
    a = (target - transposed(half) @ white) / transposed(root)
    logdet = 0.5 * np.sum(np.log(diagonal)) + stacks.half_logdet(L)
    value = -C * logdet - 0.5 * (np.sum(target**2) - np.sum(white**2))
    precision = (1.0 - np.einsum("smn,smn->sn", half, half)) / diagonal
    by_A = stacks.solve(L, half, transposed=True, overwrite=True)
    by_A *= -C / root
    by_A += (A @ a) @ transposed(a)
    by_diagonal = 0.5 * (np.sum(a**2, axis=2) - C * precision)
    return LowRank(float(value), by_A, by_diagonal, a, gram, L)


def _by_design_times_design(found: LowRank, A: np.ndarray) -> np.ndarray:
    """The derivative of Titsias' bound by A, times Aᵀ, without a product of M² N numbers.

    It is ``A a aᵀ Aᵀ − C (I − P⁻¹)`` for ``P = I + A D⁻¹ Aᵀ``, and the trace adds ``C A D⁻¹ Aᵀ``.
    """
    C = found.a.shape[2]
    told = A @ found.a
    by_gram = C * (stacks.inverse(found.chol) + found.gram)
    return stacks.with_diagonal(told @ transposed(told) + by_gram, -C)


def _from_both_sides(L: np.ndarray, G: np.ndarray) -> np.ndarray:
    """``L⁻ᵀ G L⁻¹`` for symmetric G."""
    half = stacks.solve(L, G, transposed=True)
    return stacks.solve(L, transposed(half), transposed=True)
