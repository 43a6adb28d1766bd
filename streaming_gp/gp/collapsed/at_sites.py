"""q(f) at the data, given sites of any likelihood, and derivatives by the batch under its cavity.

Sites ``exp(λ f − ½ w f²)`` are observations of f with precision w (Rasmussen & Williams 2006,
section 3.4), and stay what they are. E is what is expected of the data under q(f), g and h are its
derivatives by the means and by the variances, and those of ``E − KL`` are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.stacks import transposed

LEAST_VARIANCE = 1e-12
"""As a part of the cavity's: what is below it is rounding."""


class AtData(NamedTuple):
    """q(f) of one latent function at N data and at S values of ε.

    :param mean: [S, N].
    :param variance: [S, N].
    :param kl: The divergence from the cavity in nats, summed over ε [].
    :param kept: What the derivatives are made of: stacks of arrays.
    """

    mean: np.ndarray
    variance: np.ndarray
    kl: np.ndarray
    kept: tuple[np.ndarray, ...]


def moments(q: Sequence[AtData]) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all latent functions, each [S, N, L]."""
    return np.stack([one.mean for one in q], axis=2), np.stack([one.variance for one in q], axis=2)


class Pull(NamedTuple):
    """Of one latent function, what the derivatives start from.

    :param precision_mean: λ [N].
    :param w: [N].
    :param by_mean: g [S, N].
    :param by_variance: h [S, N].
    """

    precision_mean: np.ndarray
    w: np.ndarray
    by_mean: np.ndarray
    by_variance: np.ndarray


class SiteBound(Protocol):
    """Where the pseudo-points of a batch are.

    :cvar on_points: Whether there are points beside the data.
    :cvar num_kept: How many arrays :class:`AtData` keeps.
    """

    on_points: ClassVar[bool]
    num_kept: ClassVar[int]

    def prepared(self, batch: UnderCavity) -> UnderCavity:
        """What :meth:`posterior` needs of a batch, whatever the sites are.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        ...

    def posterior(self, batch: UnderCavity, precision_mean: np.ndarray, w: np.ndarray) -> AtData:
        """q(f) for sites [N]; the residual is that of observations at zero.

        :param batch: From :meth:`prepared`.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        ...

    def pulled_back(self, q: AtData, pull: Pull) -> UnderCavity:
        """Derivatives of ``E − KL``; those by ``among`` are symmetric."""
        ...


class SitesAtInputs:
    """A point at every input, and ``KL(q(f) ‖ p̃(f))``.

    With ``Q = (K̃ + W⁻¹)⁻¹`` and ``a = Q (λ/w − m̃)``, q(f) has the mean ``m̃ + K̃ a`` and the
    covariance ``M K̃``, ``M = W⁻¹ Q`` (eqs. 3.23 to 3.27 there). As sites may say next to nothing,
    only ``H = B⁻¹`` for ``B = I + W^½ K̃ W^½`` is made, of which ``Q = W^½ H W^½``.

    With tildes for ``Q W⁻¹`` the derivatives are ``g̃ + a − ã`` by m̃ and, by K̃,
    ``Q diag(h/w² + ½/w) Q − ½ Q + ½ a aᵀ + sym((g̃ − ã) aᵀ)``. Where the sites are at their fixed
    point, ``w = −2 h`` and ``a = g``, what is left are a and ``½ (a aᵀ − Q)``.
    """

    on_points: ClassVar[bool] = False
    num_kept: ClassVar[int] = 3

    def prepared(self, batch: UnderCavity) -> UnderCavity:
        return batch

    def posterior(self, batch: UnderCavity, precision_mean: np.ndarray, w: np.ndarray) -> AtData:
        mean, K, root = -batch.residual[:, :, 0], batch.among, np.sqrt(w)
        L = stacks.cholesky(root[:, None] * K * root, 1.0, overwrite=True)
        H = stacks.inverse(L)
        a = root * _times(H, (precision_mean - w * mean) / root)
        shift = _times(K, a)
        M = H * (root / root[:, None])
        variance, is_open = _floored(np.einsum("snm,snm->sn", M, K), np.einsum("snn->sn", K))
        trace = np.einsum("snn->", H) - a.size
        kl = 0.5 * (trace + np.sum(a * shift)) + stacks.half_logdet(L)
        return AtData(mean + shift, variance, np.asarray(kl), (H, a, is_open))

    def pulled_back(self, q: AtData, pull: Pull) -> UnderCavity:
        (H, a, is_open), root = q.kept, np.sqrt(pull.w)
        difference = root * _times(H, (pull.by_mean - a) / root)
        half = root[:, None] * H
        by_K = half * (is_open * pull.by_variance / pull.w + 0.5)[:, None]
        by_K = stacks.product(by_K, transposed(half)) - 0.5 * half * root
        outer = (difference + 0.5 * a)[:, :, None] * a[:, None]
        by_K += 0.5 * (outer + transposed(outer))
        none = np.zeros((*a.shape, 0))
        return UnderCavity(by_K, none, none[:, 0], -(difference + a)[:, :, None], np.zeros_like(a))


class SitesOnPoints:
    """M points b, and ``KL(q(b) ‖ p̃(b))``: ordinary sparse inference under the cavity.

    With ``A = chol(K̃_MM)⁻¹ K̃_MN`` the whitened points have the precision ``P = I + A W Aᵀ`` and
    the mean ``c = P⁻¹ A (λ − w m̃)``; f has the mean ``m̃ + Aᵀ c`` and the variance
    ``k̃ + diag(Aᵀ H − Aᵀ A)`` with ``H = P⁻¹ A``.

    With ``p = P⁻¹ (A g − c)`` the derivatives are ``r = g − w Aᵀ p`` by m̃, h by the variance, and
    ``c rᵀ + p (λ − w mean)ᵀ + 2 (H − A) diag(h) − H diag(2 h + w) Aᵀ H W`` by A.
    """

    on_points: ClassVar[bool] = True
    num_kept: ClassVar[int] = 5

    def prepared(self, batch: UnderCavity) -> UnderCavity:
        """With ``chol(K̃_MM)`` and A in the places of covariances."""
        L = stacks.cholesky(batch.among)
        return batch._replace(among=L, between=stacks.solve(L, batch.between))

    def posterior(self, batch: UnderCavity, precision_mean: np.ndarray, w: np.ndarray) -> AtData:
        mean, L, A = -batch.residual[:, :, 0], batch.among, batch.between
        chol = stacks.cholesky(stacks.gram(A * np.sqrt(w)), 1.0, overwrite=True)
        P_inverse = stacks.inverse(chol)
        H = stacks.product(P_inverse, A)
        c = _times(H, precision_mean - w * mean)
        variance = batch.variance + np.einsum("smn,smn->sn", A, H - A)
        variance, is_open = _floored(variance, batch.variance)
        trace = np.einsum("smm->", P_inverse) - c.size
        kl = 0.5 * (trace + np.sum(c**2)) + stacks.half_logdet(chol)
        shift = _times(transposed(A), c)
        return AtData(mean + shift, variance, np.asarray(kl), (L, A, H, c, is_open))

    def pulled_back(self, q: AtData, pull: Pull) -> UnderCavity:
        L, A, H, c, is_open = q.kept
        g, h, w = pull.by_mean, is_open * pull.by_variance, pull.w
        p = _times(H, g + w * _times(transposed(A), c)) - c  # as P⁻¹ is I − H W Aᵀ
        r = g - w * _times(transposed(A), p)
        by_A = c[:, :, None] * r[:, None]
        by_A += p[:, :, None] * (pull.precision_mean - w * q.mean)[:, None]
        by_A += 2.0 * (H - A) * h[:, None]
        square = stacks.product(H * (2.0 * h + w)[:, None], transposed(A))
        by_A -= stacks.product(square, H * w)
        by_between = stacks.solve(L, by_A, transposed=True)
        back = stacks.solve(L, A, transposed=True)
        by_among = -0.5 * stacks.product(by_between, transposed(back))
        return UnderCavity(by_among, by_between, h, -r[:, :, None], np.zeros_like(r))


def _floored(variance: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances that rounding does not make negative, and 1 where it did not, else 0."""
    least = LEAST_VARIANCE * np.abs(prior)
    return np.maximum(variance, least), (variance > least).astype(float)


def _times(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x`` for A [S, M, N] and x [S, N]."""
    found: np.ndarray = (A @ x[:, :, None])[:, :, 0]
    return found
