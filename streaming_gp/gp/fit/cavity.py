"""A batch under its cavity as a function of the prior's values at S values of ε, and backwards.

Earlier pseudo-observations ``s = Rᵀ u + noise`` of unit variance stand in one of two places. Either
they are conditioned on: with ``B = I + Rᵀ K R = L Lᵀ`` and ``P = L⁻¹ Rᵀ`` the projections
``V = P k(Z, ·)`` and ``w = L⁻¹ s − P m(Z)`` give the cavity its mean ``m + Vᵀ w`` and covariance
``k − Vᵀ V``. Or the batch's points take them over: they are data beside the batch's, under the
prior, and what they said under it, their log evidence, is taken off again.

TensorFlow is needed for the prior at each ε and its gradient alone; the linear algebra between it
and a bound is written out here, forwards and backwards, on BLAS and LAPACK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.linalg import block_diag

from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.numerics import stacks, triangular
from streaming_gp.numerics.stacks import transposed

FEW_ROWS = 32
"""Of fewer a product with a triangle takes as long as one with a square."""


class PriorValues(NamedTuple):
    """Prior and noise at S values of ε, or derivatives by each entry.

    Latent functions come in G groups of C columns; K = 1 where groups share a kernel, else G.
    Stacks have the groups of all ε one after another: [S G, ...].

    :param among: The covariance of the points [S, K, T, T].
    :param between: That of points and data [S, K, T, N]; N = 0 where the points are the data.
    :param variance: The variance at the data [S, K, N], likewise.
    :param mean_points: [S, G, T, C].
    :param mean_data: [S, G, N, C], likewise.
    :param noise: The variance of the noise at all data [S, G, N]; zero if it is not Gaussian.
    """

    among: Any
    between: Any
    variance: Any
    mean_points: Any
    mean_data: Any
    noise: Any

    def stacked(self) -> PriorValues:
        """Those of every group at every ε, as stacks."""
        S, G = self.noise.shape[:2]
        shapes = [one.shape[2:] for one in self]
        return PriorValues(
            *(
                np.broadcast_to(one, (S, G, *shape)).reshape(S * G, *shape)
                for one, shape in zip(self, shapes, strict=True)
            )
        )

    def unstacked(self, by: PriorValues) -> PriorValues:
        """Derivatives by these, from those by the stacks."""
        S, G = self.noise.shape[:2]
        parts = (one.reshape(S, G, *one.shape[1:]) for one in by)
        return PriorValues(
            *(
                part if one.shape[1] == G else np.sum(part, axis=1, keepdims=True)
                for one, part in zip(self, parts, strict=True)
            )
        )


def prior_values(local: Any, points: tf.Tensor, X: tf.Tensor) -> PriorValues:
    """Prior and noise at the ε that the parameters hold now, in TensorFlow: without the axis S.

    :param local: The :class:`.LocalModel`.
    :param points: Inputs of which all covariances are wanted [T, D].
    :param X: The data's inputs [N, D], at which the noise is wanted.
    """
    gp = local.gp
    among = cov.covariance(gp.kernel, points)
    mean_points = cov.to_groups(gp.prior_mean(points), gp.num_groups)
    between, variance = cov.covariance(gp.kernel, points, X), cov.variance(gp.kernel, X)
    mean_data = cov.to_groups(gp.prior_mean(X), gp.num_groups)
    noise = tf.zeros([tf.shape(X)[0], gp.num_latent], X.dtype)
    if is_conjugate(local.likelihood):
        noise = local.likelihood.conditional_variance(X, noise)
    noise = cov.to_groups(noise, gp.num_groups)[:, :, 0]
    return PriorValues(among, between, variance, mean_points, mean_data, noise)


class UnderCavity(NamedTuple):
    """f at a batch's points and data, under the cavity: of a stack of groups and values of ε, or
    derivatives by each entry.

    :param among: The covariance of the points [S G, M, M]; the nugget is in it.
    :param between: That of points and data [S G, M, N].
    :param variance: The variance at the data [S G, N].
    :param mean: The mean at the data [S G, N, C].
    :param noise: The variance of the data's noise [S G, N].
    """

    among: np.ndarray
    between: np.ndarray
    variance: np.ndarray
    mean: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True, eq=False)
class Observed:
    """Earlier pseudo-observations in every group.

    :param blocks: The diagonal blocks [G, m, m] of R.
    :param targets: s [G, R, C].
    :param nugget: [R].
    :param q: N(mean [G, R, C], root rootᵀ) of their u at an earlier ε, as mean and root; None where
        nobody asks.
    """

    blocks: Sequence[np.ndarray]
    targets: np.ndarray
    nugget: np.ndarray
    q: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, members: Sequence[PseudoObservations], groups: int, columns: int) -> Observed:
        """Members as observations of so many groups of so many columns."""
        nothing = np.zeros((groups, 0, columns))
        return cls(
            _joined([one.square for one in members]),
            np.concatenate([nothing, *(one.pseudo_targets for one in members)], axis=1),
            np.repeat([one.nugget for one in members], [len(one.Z) for one in members]),
        )

    @property
    def number(self) -> int:
        """R."""
        return len(self.nugget)

    def weighted(self, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for a stack B [S G, R, Q]."""
        return self._weight(np.array(B, order="C"), True)

    def unweighted(self, B: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """``R B``, perhaps written over B, which must lie in C order then."""
        return self._weight(B if overwrite else np.array(B, order="C"), False)

    def _weight(self, B: np.ndarray, is_transposed: bool) -> np.ndarray:
        start, groups = 0, len(self.targets)
        for R, kind in zip(self.blocks, self._kinds, strict=True):
            part = B[:, start : start + R.shape[1]]
            if kind == "diagonal":
                part *= stacks.tiled(np.einsum("gmm->gm", R)[:, :, None], len(B))
            elif kind == "triangle":
                for index, one in enumerate(part):
                    triangular.product(R[index % groups], one, is_transposed, overwrite=True)
            else:
                left = stacks.tiled(transposed(R) if is_transposed else R, len(B))
                part[:] = stacks.product(left, part)
            start += R.shape[1]
        return B

    @cached_property
    def _kinds(self) -> list[str]:
        """How products with each block are cheapest."""
        return [_kind(block) for block in self.blocks]

    def held(self, K: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q of u, which has white noise, at one ε: its mean [G, R, C] and root [G, R, R].

        With ``K = L Lᵀ`` and ``I + Lᵀ R Rᵀ L = C Cᵀ`` it is N(m + S Sᵀ R (s − Rᵀ m), S Sᵀ) for
        ``S = L C⁻ᵀ``.

        :param K: The prior covariance of the points [G, R, R], without their nuggets.
        :param mean: Their prior mean [G, R, C].
        """
        upper = transposed(stacks.cholesky(K, self.nugget))
        design = transposed(self.weighted(transposed(upper)))
        chol = stacks.cholesky(stacks.gram(design), 1.0)
        root = transposed(stacks.solve(chol, upper))
        residual = self.targets - self.weighted(mean)
        return mean + root @ stacks.solve(chol, design @ residual), root

    def minus_divergence(
        self, K: np.ndarray, mean: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """``E_q[log p(u | ε)]`` but for its 2π, summed over the stack, and derivatives by K, mean.

        :param K: The prior covariance of the points [S G, R, R], without their nuggets.
        :param mean: Their prior mean [S G, R, C].
        """
        assert self.q is not None
        q_mean, root = (stacks.tiled(one, len(K)) for one in self.q)
        C = mean.shape[2]
        chol = stacks.cholesky(K, self.nugget)
        inverse = stacks.inverse(chol)
        error = stacks.product(inverse, q_mean - mean)
        spread = inverse @ root
        square = np.sum(error * (q_mean - mean)) + C * np.sum(spread * root)
        value = -C * stacks.half_logdet(chol) - 0.5 * square
        by_K = C * (stacks.product(spread, transposed(spread)) - inverse)
        by_K += error @ transposed(error)
        return float(value), 0.5 * by_K, error


def _kind(R: np.ndarray) -> str:
    is_lower = not np.any(np.triu(R, 1))
    if is_lower and not np.any(np.tril(R, -1)):
        return "diagonal"
    return "triangle" if is_lower and R.shape[1] >= FEW_ROWS else "square"


def _joined(blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Small diagonal blocks, one after another, as larger ones: a product takes as long with both,
    and there are fewer.
    """
    joined: list[np.ndarray] = []
    some: list[np.ndarray] = []
    for index, block in enumerate(blocks):
        some.append(block)
        if sum(one.shape[1] for one in some) >= FEW_ROWS or index == len(blocks) - 1:
            joined.append(np.stack([block_diag(*group) for group in zip(*some, strict=True)]))
            some = []
    return joined


@dataclass(frozen=True, eq=False)
class Conditioned:
    """The prior conditioned on earlier pseudo-observations, for a batch; stacks [S G, ...].

    :param observed: The pseudo-observations.
    :param prior: The prior; its points are theirs and then the batch's.
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """

    observed: Observed
    prior: PriorValues

    def __post_init__(self) -> None:
        _ = self.chol, self.projected, self.white  # refused here, if at all

    @cached_property
    def chol(self) -> np.ndarray:
        """L [S G, R, R]."""
        R, observed = self.observed.number, self.observed
        K = stacks.with_diagonal(self.prior.among[:, :R, :R], observed.nugget)
        B = observed.weighted(transposed(observed.weighted(K)))
        return stacks.cholesky(B, 1.0, overwrite=True)

    @cached_property
    def projected(self) -> np.ndarray:
        """V [S G, R, M + N] of the batch's points and of its data."""
        R = self.observed.number
        parts = self.prior.among[:, :R, R:], self.prior.between[:, :R]
        between = np.concatenate(parts, axis=2)
        return stacks.solve(self.chol, self.observed.weighted(between), overwrite=True)

    @cached_property
    def white(self) -> np.ndarray:
        """w [S G, R, C]."""
        mean = self.observed.weighted(self.prior.mean_points[:, : self.observed.number])
        targets = stacks.tiled(self.observed.targets, len(mean))
        return stacks.solve(self.chol, targets - mean, overwrite=True)

    @property
    def log_evidence(self) -> float:
        """``log 𝒵`` of the pseudo-observations, without their constants, summed over the stack."""
        columns = self.white.shape[2]
        return -columns * stacks.half_logdet(self.chol) - 0.5 * float(np.sum(self.white**2))

    def batch(self, nugget: float) -> UnderCavity:
        """The batch, whose points have this nugget."""
        R, prior = self.observed.number, self.prior
        V_points, V_data = self._split(self.projected)
        among = prior.among[:, R:, R:] - stacks.product(transposed(V_points), V_points)
        return UnderCavity(
            stacks.with_diagonal(among, nugget, overwrite=True),
            prior.between[:, R:] - stacks.product(transposed(V_points), V_data),
            prior.variance - np.einsum("srn,srn->sn", V_data, V_data),
            prior.mean_data + transposed(V_data) @ self.white,
            prior.noise,
        )

    def pulled_back(self, by: UnderCavity, by_evidence: float) -> PriorValues:
        """Derivatives by the prior's values.

        Those by V are linear in V and w, so that ``Pᵀ V̄``, those by k(Z, ·), come from ``Pᵀ V``.
        Nothing depends on V and w but by ``VᵀV``, ``Vᵀw`` and ``wᵀw``, which no rotation of both
        changes. So ``Y = V̄Vᵀ + w̄wᵀ`` is symmetric, and the derivative by K is ``−½ Pᵀ Y P`` (Murray
        2016, "Differentiation of the Cholesky decomposition"); ``−½ C log det B`` adds C to the
        diagonal of Y.

        :param by: Those by what :meth:`batch` gives.
        :param by_evidence: That by the log evidence.
        """
        R, M = self.observed.number, by.among.shape[1]
        back, white_back = self._back(self.projected), self._back(self.white)
        points, data = self._split(back)
        by_points = -2.0 * stacks.product(points, by.among)
        by_points -= stacks.product(data, transposed(by.between))
        by_data = data * (-2.0 * by.variance[:, None])
        by_data -= stacks.product(points, by.between)
        by_data += white_back @ transposed(by.mean)
        by_between = np.concatenate([by_points, by_data], axis=2)
        by_white = data @ by.mean - by_evidence * white_back
        by_K = stacks.product(by_between, transposed(back)) + by_white @ transposed(white_back)
        if by_evidence != 0.0:
            half = self.observed.unweighted(stacks.inverse(self.chol))
            squared = self.observed.unweighted(transposed(half))
            by_K += by_evidence * self.white.shape[2] * squared
        by_prior = PriorValues(*map(np.zeros_like, self.prior))
        by_prior.among[:, :R, :R], by_prior.among[:, R:, R:] = -0.5 * by_K, by.among
        by_prior.among[:, :R, R:] = by_between[:, :, :M]
        by_prior.between[:, :R], by_prior.between[:, R:] = by_between[:, :, M:], by.between
        by_prior.variance[:], by_prior.noise[:] = by.variance, by.noise
        by_prior.mean_points[:, :R] = -by_white
        by_prior.mean_data[:] = by.mean
        return by_prior

    def _back(self, B: np.ndarray) -> np.ndarray:
        """``Pᵀ B`` for B [S G, R, Q]."""
        solved = stacks.solve(self.chol, B, transposed=True)
        return self.observed.unweighted(solved, overwrite=True)

    def _split(self, projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the points [S G, R, M], and of the data [S G, R, N]."""
        number = self.prior.among.shape[1] - self.observed.number
        return projected[:, :, :number], projected[:, :, number:]


@dataclass(frozen=True, eq=False)
class TakenOver:
    """Earlier pseudo-observations as data of a batch's points, under the prior.

    :param observed: The pseudo-observations.
    :param prior: The prior; its points are theirs and then the batch's.
    :param shared: The variance of white noise that their points and the new ones have in common,
        where they are the same variables [R, M].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """

    observed: Observed
    prior: PriorValues
    shared: np.ndarray

    def __post_init__(self) -> None:
        _ = self._earlier  # refused here, if at all

    @cached_property
    def _earlier(self) -> Conditioned:
        """The same without the batch."""
        R, prior = self.observed.number, self.prior
        prior = PriorValues(
            prior.among[:, :R, :R], prior.between[:, :R, :0], prior.variance[:, :0],
            prior.mean_points[:, :R], prior.mean_data[:, :0], prior.noise,
        )  # fmt: skip
        return Conditioned(self.observed, prior)

    @property
    def log_evidence(self) -> float:
        """As :attr:`Conditioned.log_evidence`."""
        return self._earlier.log_evidence

    def batch(self, nugget: float) -> UnderCavity:
        """The batch under the prior, and after its data the R pseudo-observations."""
        R, prior, observed = self.observed.number, self.prior, self.observed
        of_earlier = transposed(observed.weighted(prior.among[:, :R, R:] + self.shared))
        variance = np.sum(self._earlier.chol**2, axis=2) - 1.0
        mean = observed.weighted(prior.mean_points[:, :R])
        return UnderCavity(
            stacks.with_diagonal(prior.among[:, R:, R:], nugget),
            np.concatenate([prior.between[:, R:], of_earlier], axis=2),
            np.concatenate([prior.variance, variance], axis=1),
            np.concatenate([prior.mean_data, mean], axis=1),
            np.concatenate([prior.noise, np.ones_like(variance)], axis=1),
        )

    def pulled_back(self, by: UnderCavity, by_evidence: float) -> PriorValues:
        """As :meth:`Conditioned.pulled_back`."""
        R, observed = self.observed.number, self.observed
        N = by.variance.shape[1] - R
        none = UnderCavity(
            by.among[:, :0, :0], by.between[:, :0, :0], by.variance[:, :0], by.mean[:, :0],
            np.zeros_like(self.prior.noise),
        )  # fmt: skip
        of_evidence = self._earlier.pulled_back(none, by_evidence)
        weighted = observed.unweighted(by.variance[:, N:, None] * np.eye(R))
        by_prior = PriorValues(*map(np.zeros_like, self.prior))
        by_prior.among[:, :R, :R] = of_evidence.among + observed.unweighted(transposed(weighted))
        by_prior.among[:, :R, R:] = observed.unweighted(transposed(by.between[:, :, N:]))
        by_prior.among[:, R:, R:] = by.among
        by_prior.between[:, R:] = by.between[:, :, :N]
        by_prior.variance[:], by_prior.noise[:] = by.variance[:, :N], by.noise[:, :N]
        by_mean = observed.unweighted(by.mean[:, N:])
        by_prior.mean_points[:, :R] = of_evidence.mean_points + by_mean
        by_prior.mean_data[:] = by.mean[:, :N]
        return by_prior
