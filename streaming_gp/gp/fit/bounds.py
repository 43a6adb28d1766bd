"""Local bounds: free energies of a batch, by f at its points and data under the cavity.

A bound knows nothing of stacks, cavities and ledgers. It is given f of one group of latent
functions, :class:`.UnderCavity`: covariances among M points, between these and N data, variances,
means and noise. Sites ``exp(λ f − ½ w f²)`` stand for the data; those of Gaussian noise are known.
With them a batch's q(f) is in closed form, and so are its gradients, written out by hand. In the
closed forms all arrays have an axis of S values of ε in front, or of groups at one ε, and what is
said "in nats" is a sum over it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood, ScalarLikelihood, SwitchedLikelihood

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.cavity import UnderCavity
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.sites import Look, Sites, is_conjugate, tilted_moments, without_sites
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.inputs import require_power, typed
from streaming_gp.numerics import stacks
from streaming_gp.numerics.linalg import (
    LOG_TWO_PI,
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
)
from streaming_gp.numerics.stacks import times, transposed
from streaming_gp.serialization import storable

LEAST_VARIANCE = 1e-12
"""Of q(f) as a part of the cavity's: what is below it is rounding."""
Moments: TypeAlias = tuple[Any, Any, Any, Any, Any]
"""Of :meth:`.LocalModel.look`: values of ε, X, Y, and mean and variance of f there."""


@dataclass(frozen=True)
class LocalBound:
    """The local free energy of one batch under a cavity: a frozen dataclass.

    Of the package's own two are in closed form, :class:`Variational` and :class:`PowerEP`. One of
    your own derives from :class:`SparseBound`.
    """

    has_shared_points: ClassVar[bool] = False
    """Whether points start among those of all earlier batches, too."""
    is_evidence_bound: ClassVar[bool] = False
    """Whether it is the expected log-likelihood less a divergence: then an update reports that of
    the one factor that is kept for all ε."""

    def check(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood that the bound is not for.

        :raises InvalidDataError: naming the likelihood and what was wanted.
        """

    def site_precision(self, noise: Any, left: Any) -> Any:
        """The precision w of the sites of Gaussian noise, arrays or tensors [..., N].

        :param noise: The variance of the noise, likewise.
        :param left: The variance of f at the data given the points.
        """
        return 1.0 / noise

    def of(self, likelihood: Likelihood) -> LocalBound:
        """The bound in the form that it has for a likelihood."""
        return self

    def look(self, local: LocalModel, moments: Moments, left: Any, sites: Sites) -> Look:
        """What a likelihood that is not Gaussian says of sites, averaged over ε.

        :param local: The model.
        :param moments: Of f at the data.
        :param left: The part of the variance of f that the points leave [S, N, L].
        :param sites: The sites that q(f) has now.
        """
        return local.look(*moments)

    def gaussian_process(
        self,
        kernel: Any,
        mean_function: Any,
        num_latent: int,
        num_groups: int,
        likelihood: Any = None,
    ) -> GaussianProcess:
        """The prior, which conditions on the pseudo-observations that this bound leaves."""
        return GaussianProcess(kernel, mean_function, num_latent, num_groups, likelihood)


# ---- q(f) for given sites ----


class AtData(NamedTuple):
    """q(f) of one latent function at N data.

    :param mean: [S, N].
    :param variance: [S, N].
    :param kl: The divergence from the cavity in nats [].
    :param kept: The arrays that derivatives are made of.
    """

    mean: np.ndarray
    variance: np.ndarray
    kl: float
    kept: tuple[np.ndarray, ...]


class OnPoints(LocalBound):
    """M points b: ordinary sparse inference under the cavity, whose value and gradient are written
    out, for Gaussian noise and at given sites.

    For Gaussian noise ``F = log N(y; m̃, AᵀA + D) − cost`` for whitened points, with
    ``A = chol(K̃_MM)⁻¹ K̃_MN``, the variances ``r = diag(K̃_NN − AᵀA)`` that they leave, and
    ``D = σ² + α r``; each bound says what its α is, and what r costs.

    At given sites the whitened points have the precision ``P = I + A W Aᵀ`` and the mean
    ``c = P⁻¹ A (λ − w m̃)``; f has the mean ``m̃ + Aᵀ c`` and the variance
    ``k̃ + diag(Aᵀ H − Aᵀ A)`` with ``H = P⁻¹ A``, and the divergence is that of the points.
    """

    widening: ClassVar[float] = 0.0
    """α."""

    def cost(self, share: np.ndarray) -> tuple[float, np.ndarray]:
        """The cost in nats of variance that the points leave, and its derivative.

        :param share: r / σ² [S, N].
        """
        return 0.5 * float(np.sum(share)), np.full_like(share, 0.5)

    def value_and_gradient(
        self, f: UnderCavity, Y: np.ndarray, num_earlier: int = 0
    ) -> tuple[float, UnderCavity]:
        """The bound for Gaussian noise in nats, and its derivatives; those by ``among`` are
        symmetric.

        :param f: f under the cavity, in a group of C functions.
        :param Y: Observations [N, C], or [S, N, C].
        :param num_earlier: The number of observations, the last ones, that are earlier
            pseudo-observations, whose constants are not counted.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        L = stacks.cholesky(f.among)
        A = stacks.solve(L, f.between)
        noise, left = f.noise, f.variance - np.einsum("smn,smn->sn", A, A)
        own = np.arange(left.shape[1]) < left.shape[1] - num_earlier
        widening = self.widening * own
        share = np.maximum(left, 0.0) / noise
        parts = self.cost(share[:, own]), OnPoints.cost(self, share[:, ~own])
        cost, by_share = parts[0][0] + parts[1][0], np.concatenate([p[1] for p in parts], axis=1)
        density = low_rank(A, noise * (1.0 + widening * share), Y - f.mean)
        S, N, C = density.a.shape
        value = density.value - C * cost - 0.5 * S * (N - num_earlier) * C * LOG_TWO_PI
        by_noise = density.by_diagonal + C * by_share * share / noise
        by_left = widening * density.by_diagonal - C * by_share / noise
        by_variance = np.where(left > 0.0, by_left, 0.0)
        by_A = density.by_design - 2.0 * by_variance[:, None] * A
        by_between = stacks.solve(L, by_A, transposed=True)
        if not widening.any() and np.all(left > 0.0):
            half = stacks.solve(L, _by_design_times_design(density, A), transposed=True)
            by_among = -0.5 * stacks.solve(L, transposed(half), transposed=True)
        else:
            # No rotation of the whitened points changes anything; see Conditioned.pulled_back.
            back = stacks.solve(L, A, transposed=True)
            by_among = -0.5 * stacks.product(by_between, transposed(back))
        return value, UnderCavity(by_among, by_between, by_variance, density.a, by_noise)

    def prepared(self, f: UnderCavity) -> UnderCavity:
        """f with ``chol(K̃_MM)`` and A in the places of covariances, which is what :meth:`posterior`
        needs of them, whatever the sites are.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        L = stacks.cholesky(f.among)
        return f._replace(among=L, between=stacks.solve(L, f.between))

    def posterior(self, f: UnderCavity, precision_mean: np.ndarray, w: np.ndarray) -> AtData:
        """q(f) of one latent function for sites [S or 1, N].

        :param f: From :meth:`prepared`.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        mean, L, A = f.mean[:, :, 0], f.among, f.between
        chol = stacks.cholesky(stacks.gram(A * np.sqrt(w)[:, None]), 1.0, overwrite=True)
        P_inverse = stacks.inverse(chol)
        H = stacks.product(P_inverse, A)
        c = times(H, precision_mean - w * mean)
        variance = f.variance + np.einsum("smn,smn->sn", A, H - A)
        least = LEAST_VARIANCE * np.abs(f.variance)
        is_open, variance = (variance > least).astype(float), np.maximum(variance, least)
        trace = np.einsum("smm->", P_inverse) - c.size
        kl = 0.5 * (trace + np.sum(c**2)) + stacks.half_logdet(chol)
        return AtData(mean + times(transposed(A), c), variance, float(kl), (L, A, H, c, is_open))

    def pulled_back(
        self,
        q: AtData,
        precision_mean: np.ndarray,
        w: np.ndarray,
        by_mean: np.ndarray,
        by_variance: np.ndarray,
    ) -> UnderCavity:
        """Derivatives of ``E − KL``, for E that has these by means and variances [S, N].

        With ``p = P⁻¹ (A g − c)`` they are ``r = g − w Aᵀ p`` by m̃, h by the variance, and
        ``c rᵀ + p (λ − w mean)ᵀ + 2 (H − A) diag(h) − H diag(2 h + w) Aᵀ H W`` by A.
        """
        L, A, H, c, is_open = q.kept
        g, h = by_mean, is_open * by_variance
        p = times(H, g + w * times(transposed(A), c)) - c  # as P⁻¹ is I − H W Aᵀ
        r = g - w * times(transposed(A), p)
        by_A = c[:, :, None] * r[:, None]
        by_A += p[:, :, None] * (precision_mean - w * q.mean)[:, None]
        by_A += 2.0 * (H - A) * h[:, None]
        square = stacks.product(H * (2.0 * h + w)[:, None], transposed(A))
        by_A -= stacks.product(square, H * w[:, None])
        by_between = stacks.solve(L, by_A, transposed=True)
        back = stacks.solve(L, A, transposed=True)
        by_among = -0.5 * stacks.product(by_between, transposed(back))
        return UnderCavity(by_among, by_between, h, r[:, :, None], np.zeros_like(r))


@storable
@dataclass(frozen=True)
class Variational(OnPoints):
    """``F = Σ_n E_q[log p(y_n | f_n)] − KL(q(b) ‖ p̃(b))``, with a cavity in the prior's place.

    For Gaussian noise this is Titsias' collapsed bound (2009): ``cost = ½ Σ_n r_n/σ_n²``.
    """

    is_evidence_bound: ClassVar[bool] = True


@storable
@typed
@dataclass(frozen=True)
class PowerEP(OnPoints):
    """Power EP (Bui, Yan & Turner 2017); as α → 0 it tends to the variational bound, and α = 1 is
    EP (FITC).

    Gaussian noise widens by α times the variance that the points leave:
    ``cost = (1 − α)/(2α) Σ_n log(1 + α r_n/σ_n²)``. Other likelihoods have sites by their tilted
    distributions, and an energy that is stationary in them.

    :param alpha: α in (0, 1].
    :raises InvalidDataError: if it is not.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise InvalidDataError(
                f"alpha of power EP must lie in (0, 1], got {self.alpha}; 0 would be variational"
            )

    def check(self, likelihood: Likelihood) -> None:
        """:raises InvalidDataError: if data are not each of one function, or sites would be found
        by moments under too small a power.
        """
        if not is_conjugate(likelihood):
            require_power("alpha", self.alpha, "Variational()")
        if not isinstance(likelihood, ScalarLikelihood) or isinstance(
            likelihood, SwitchedLikelihood
        ):
            raise InvalidDataError(
                "alpha must be 0 unless each observation is of one latent function; got "
                f"{self.alpha} for {type(likelihood).__name__}"
            )

    def of(self, likelihood: Likelihood) -> LocalBound:
        return self if is_conjugate(likelihood) else TiltedPowerEP(self.alpha)

    @property
    def widening(self) -> float:  # type: ignore[override]
        return self.alpha

    def site_precision(self, noise: Any, left: Any) -> Any:
        return 1.0 / (noise + self.alpha * left)

    def cost(self, share: np.ndarray) -> tuple[float, np.ndarray]:
        factor = 0.5 * (1.0 - self.alpha)
        value = factor / self.alpha * float(np.sum(np.log1p(self.alpha * share)))
        return value, factor / (1.0 + self.alpha * share)


class LowRank(NamedTuple):
    """``log N(residual; 0, S)`` less its constant, for ``S = AᵀA + D``, and derivatives.

    :param value: In nats.
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


def _by_design_times_design(density: LowRank, A: np.ndarray) -> np.ndarray:
    """The derivative of Titsias' bound by A, times Aᵀ, without a product of M² N numbers.

    It is ``A a aᵀ Aᵀ − C (I − P⁻¹)`` for ``P = I + A D⁻¹ Aᵀ``, and the trace adds ``C A D⁻¹ Aᵀ``.
    """
    C = density.a.shape[2]
    shown = A @ density.a
    by_gram = C * (stacks.inverse(density.chol) + density.gram)
    return stacks.with_diagonal(shown @ transposed(shown) + by_gram, -C)


# ---- bounds of your own, which TensorFlow differentiates ----


@dataclass(frozen=True)
class LocalFunction:
    """f at a batch's points and data under the cavity at one ε, in TensorFlow.

    Latent functions come in G groups of C. After the N data of a batch on shared points there are
    the R earlier pseudo-observations that the points take over; else R = 0.

    :param among: The covariance of the points [G, M, M], the nugget in it.
    :param between: That of points and data [G, M, N + R].
    :param variance: The variance at the data [G, N + R].
    :param mean: The mean at the data [G, N + R, C].
    :param precision: w of the sites [G, N + R].
    :param precision_mean: λ of the sites [G, N + R, C].
    :param expected_log_likelihood: Gives ``Σ_n E log p(y_n | f_n)`` in nats, from means [G, N, C]
        and variances [G, N] of f at the data.
    :param log_tilted: Gives ``Σ_n log E p(y_n | f_n)^α`` in nats, from α, these moments of a
        cavity, and those of the tilted distribution, about.
    """

    among: tf.Tensor
    between: tf.Tensor
    variance: tf.Tensor
    mean: tf.Tensor
    precision: tf.Tensor
    precision_mean: tf.Tensor
    expected_log_likelihood: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    log_tilted: Callable[..., tf.Tensor]
    num_data: tf.Tensor

    def posterior(self) -> LocalPosterior:
        """q(f) for the sites: ordinary sparse inference (:class:`OnPoints`)."""
        L = tf.linalg.cholesky(self.among)
        A, w = solve_lower(L, self.between), self.precision
        P = tf.matmul(A * w[:, None], A, transpose_b=True)
        ones = tf.ones_like(P[0, :, 0])
        chol = tf.linalg.cholesky(add_to_diagonal(P, ones))
        centred = self.precision_mean - w[..., None] * self.mean
        c = tf.linalg.cholesky_solve(chol, A @ centred)
        mean = self.mean + tf.matmul(A, c, transpose_a=True)
        explained = tf.reduce_sum(tf.square(A), -2)
        spread = tf.reduce_sum(tf.square(solve_lower(chol, A)), -2)
        left = tf.maximum(self.variance - explained, 0.0)
        variance = tf.maximum(left + spread, LEAST_VARIANCE * self.variance)
        C = tf.cast(tf.shape(c)[-1], c.dtype)
        inverse = solve_lower(chol, tf.linalg.diag(ones)[None])
        trace = tf.reduce_sum(tf.square(inverse), [-2, -1]) - tf.reduce_sum(ones)
        kl = 0.5 * C * tf.reduce_sum(trace + logdet_from_cholesky(chol))
        kl += 0.5 * tf.reduce_sum(tf.square(c))
        N = self.num_data
        error = tf.square(self.precision_mean[:, N:] - mean[:, N:])
        kl += 0.5 * (tf.reduce_sum(error) + C * tf.reduce_sum(variance[:, N:]))
        return LocalPosterior(mean[:, :N], variance[:, :N], left[:, :N], kl)


class LocalPosterior(NamedTuple):
    """q(f) at the data.

    :param mean: [G, N, C].
    :param variance: [G, N].
    :param left: The part of it that the points leave [G, N].
    :param kl: The divergence of the points from the cavity, less what is expected of earlier
        pseudo-observations that they take over: [], in nats.
    """

    mean: tf.Tensor
    variance: tf.Tensor
    left: tf.Tensor
    kl: tf.Tensor


class SparseBound(LocalBound, abc.ABC):
    """A bound of your own on a few points: it says what the free energy is, and TensorFlow has the
    gradient.

    Sites of a likelihood that is not Gaussian take the fixed-point steps of ordinary sparse
    inference; those of Gaussian noise are known by ``site_precision``.
    """

    @abc.abstractmethod
    def free_energy(self, f: LocalFunction) -> tf.Tensor:
        """The bound at one ε: [], in nats, of TensorFlow operations.

        The hyperparameters' part is not in it. It is compiled: assume no fixed number of data or
        points.
        """


@dataclass(frozen=True)
class TiltedPowerEP(SparseBound):
    """Power EP's energy for a likelihood that is not Gaussian (Bui, Yan & Turner 2017, section 3).

    A site ``t_n = exp(λ f̄ − ½ τ f̄²)`` is of what the points say of f_n, ``f̄_n``, which leave the
    variance r_n. With the cavity ``q(f̄_n) / t_n^α = N(m, v)`` and ``A`` the log-partition of a
    Gaussian by its moments it is

    ``Σ_n E_q[log t_n] + 1/α Σ_n (log Z_n + A(m, v) − A(q(f̄_n))) − KL``

    for ``Z_n = ∫ N(f; m, v + r_n) p(y_n | f)^α df``, stationary in the sites where each tilted
    distribution has the moments of q. With Gaussian noise it is :class:`PowerEP`.

    :param alpha: α in (0, 1].
    """

    alpha: float

    def look(self, local: LocalModel, moments: Moments, left: Any, sites: Sites) -> Look:
        return local.look_tilted(*moments, left, sites, self.alpha)

    def free_energy(self, f: LocalFunction) -> tf.Tensor:
        q, N = f.posterior(), f.num_data
        own, mean = tf.maximum(q.variance - q.left, LEAST_VARIANCE * q.variance), q.mean[..., 0]
        w, site_mean = f.precision[:, :N], f.precision_mean[:, :N, 0]
        of_sites = site_mean * mean - 0.5 * w * (own + tf.square(mean))
        at, cavity = without_sites(mean, own, site_mean, w, self.alpha)
        about, spread = tilted_moments(at, cavity, q.left, site_mean, w, self.alpha)
        moments = at[..., None], cavity + q.left, about[..., None], spread
        tilted = f.log_tilted(self.alpha, *moments)
        gained = _log_partition(at, cavity) - _log_partition(mean, own)
        return tf.reduce_sum(of_sites) + (tilted + tf.reduce_sum(gained)) / self.alpha - q.kl


def _log_partition(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """Of Gaussians by their moments, but for its 2π."""
    return 0.5 * (tf.math.log(variance) + tf.square(mean) / variance)
