"""A batch at one ε, in NumPy: its sites, its pseudo-observations, and the bound.

Nothing is optimised, and nothing factorised again: the cavity is held factorised, so that under R
earlier points a batch of N data costs O(R² N). The factor of an optimum is read off here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.cavity import UnderCavity
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import BatchBound
from streaming_gp.gp.fit.points import Inputs, Places
from streaming_gp.gp.fit.projection import Projection, on_points
from streaming_gp.gp.fit.sites import Sites, best_rest, is_conjugate
from streaming_gp.gp.process.observations import Observations, PseudoObservations
from streaming_gp.numerics import stacks
from streaming_gp.numerics.stacks import transposed

OF_NO_POINTS = 1e-9
"""Of the variance of f that points say, where there are none."""


@dataclass(frozen=True, eq=False)
class BatchAtPoints:
    """A batch at one ε, as all groups of latent functions see it.

    :param Z: The points [M, D].
    :param mean: Of f at the points [G, M, C].
    :param nugget: The variance of their white noise.
    :param f: f at points and data [G, ...], of Gaussian noise or of none.
    :param targets: As of :class:`.BatchBound`.
    """

    Z: np.ndarray
    mean: np.ndarray
    nugget: float
    f: UnderCavity
    targets: np.ndarray


class Summary(NamedTuple):
    """A batch as pseudo-observations at its points.

    :param observations: As a factor holds it.
    :param bound: In nats; None where nobody asked.
    :param clipped_sites: As of :class:`.Fitted`.
    :param unexplained: Likewise.
    :param shown_error: Likewise.
    """

    observations: Observations
    bound: float | None = None
    clipped_sites: int = 0
    unexplained: float = 0.0
    shown_error: float | None = None


class OneEpsilon:
    """Batches of one model at one ε."""

    def __init__(self, bound: LocalBound, local: LocalModel, site_steps: int) -> None:
        self.bound = bound
        self.local = local
        self._steps = site_steps
        self._is_conjugate = is_conjugate(local.likelihood)

    # ---- the batch ----

    def on_own_points(
        self, places: Places, data: Inputs, Z: np.ndarray, nugget: float, epsilon: np.ndarray
    ) -> BatchAtPoints:
        """A batch on points of its own under a cavity.

        :raises NumericalError: if the covariance of the points is not positive.
        """
        noise, C = self._noise(epsilon, data.X), data.mean.shape[2]
        nothing = np.zeros((len(noise), 0, C))
        points = places.inputs(Z)
        among = stacks.with_diagonal(places.process.covariance(Z, points.V), nugget)
        f = UnderCavity(among, places.covariance(points, data), data.variance, data.mean, noise)
        return BatchAtPoints(Z, points.mean, nugget, f, nothing)

    def on_shared_points(
        self,
        projection: Projection,
        data: Inputs,
        earlier: tuple[PseudoObservations, ...],
        epsilon: np.ndarray,
    ) -> BatchAtPoints:
        """A batch on points that take over earlier pseudo-observations, under the prior."""
        L, noise = projection.chol, self._noise(epsilon, data.X)
        observed = [projection.observed(one) for one in earlier]
        between = projection.prior.covariance(projection.Z, data.X)
        means = (
            one.pseudo_targets - seen.residual for one, seen in zip(earlier, observed, strict=True)
        )
        f = UnderCavity(
            stacks.product(L, transposed(L)),
            np.concatenate(
                [between, *(stacks.product(L, seen.design) for seen in observed)], axis=2
            ),
            np.concatenate([data.variance, *(seen.variance for seen in observed)], axis=1),
            np.concatenate([data.mean, *means], axis=1),
            np.concatenate([noise, *(np.ones_like(seen.variance) for seen in observed)], axis=1),
        )
        nothing = np.zeros((len(noise), 0, data.mean.shape[2]))
        targets = np.concatenate([nothing, *(one.pseudo_targets for one in earlier)], axis=1)
        return BatchAtPoints(projection.Z, projection.mean, projection.nugget, f, targets)

    def _noise(self, epsilon: np.ndarray, X: np.ndarray) -> np.ndarray:
        """The variance of Gaussian noise [G, N]; of no other, zero."""
        if not self._is_conjugate:
            return np.zeros((self.local.gp.num_groups, len(X)))
        precision = self.local.noise_precision(epsilon, X)
        return np.asarray(1.0 / self.local.grouped(precision)[:, :, 0])

    def site_weights(self, data: Inputs, Y: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
        """Site precisions at the cavity [N], summed over latent functions: no points are there."""
        if not self._is_conjugate:
            mean, variance = data.mean[:, :, 0].T[None], data.variance.T[None]
            given = epsilon[None], data.X, Y, mean, variance
            left, nothing = (1.0 - OF_NO_POINTS) * variance, Sites(0.0 * mean[0], 0.0 * mean[0])
            look = self.bound.look(self.local, given, left, nothing)
            return np.maximum(look.wanted.precision, 0.0).sum(axis=1)
        w = self.bound.site_precision(self._noise(epsilon, data.X), data.variance)
        return np.asarray(data.mean.shape[2] * np.sum(w, axis=0))

    # ---- its pseudo-observations ----

    def summary(
        self,
        batch: BatchAtPoints,
        data: tuple[np.ndarray, np.ndarray],
        epsilon: np.ndarray,
        sites: Sites | None = None,
    ) -> Summary:
        """The batch as observations of its points.

        :param data: X [N, D] and Y [N, P].
        :param epsilon: ε [E].
        :param sites: Those of an optimum, whose bound is known; by default they are looked for.
        :raises NumericalError: if a covariance is not positive, or a site not finite.
        """
        bound = BatchBound(self.bound, self.local, epsilon[None], *data, batch.f, batch.targets)
        try:
            if self._is_conjugate:
                value = bound.value() if sites is None else None
                return self._of_sites(batch, data, None)._replace(bound=value)
            if sites is not None:
                return self._of_sites(batch, data, sites)
            size = len(data[0]), self.local.gp.num_latent
            rest, value = best_rest(bound.look, bound.value, None, size, self._steps)
            summary = self._of_sites(batch, data, rest.sites)
            return summary._replace(bound=value, clipped_sites=rest.clipped)
        except np.linalg.LinAlgError:
            raise NumericalError(
                "the cavity covariance at the pseudo-points is not positive"
            ) from None

    def _of_sites(
        self, batch: BatchAtPoints, data: tuple[np.ndarray, np.ndarray], sites: Sites | None
    ) -> Summary:
        """The factor of sites, by default those of Gaussian noise.

        Of points, as far as f(X) depends on them: about the cavity mean sites are observations
        ``(λ − w m̃)/√w ≈ √w Aᵀ c`` of whitened points c.
        """
        local, f, N = self.local, batch.f, len(data[0])
        L = stacks.cholesky(f.among)
        A = stacks.solve(L, f.between)
        left = np.maximum(f.variance - np.einsum("gmn,gmn->gn", A, A), 0.0)[:, :N]
        if sites is None:
            w = self.bound.site_precision(f.noise[:, :N], left)
            observed = local.grouped(data[1])
        else:
            mean, precision = map(local.grouped, sites)
            w, observed = precision[:, :, 0], mean / precision
        weight = np.concatenate([w, np.ones(batch.targets.shape[:2])], axis=1)
        root = np.sqrt(weight)
        design = A * root[:, None]
        targets = (np.concatenate([observed, batch.targets], axis=1) - f.mean) * root[:, :, None]
        own = design[:, :, :N], targets[:, :N]
        observations, _ = on_points(batch.Z, L, batch.mean, *own, batch.nugget)
        unexplained = float(np.mean(left / (1.0 / w + batch.nugget)))
        error = shown_error(L, design, targets, batch.nugget)
        return Summary(observations, unexplained=unexplained, shown_error=error)


def shown_error(chol: np.ndarray, design: np.ndarray, targets: np.ndarray, nugget: float) -> float:
    """The largest standard deviation of errors at points over the predicted one, without a unit:
    near one, or below where data are few, if the points say all that there is.

    The variational bound counts each observation as if the points said all of f there, and so is
    too sure of them where they do not. Observations ``y ≈ Dᵀ c + noise`` of whitened points c, in
    units of their own noise, give the precision ``P = I + D Dᵀ`` and residuals e. If these are
    larger than the noise, ``P⁻¹ D diag(e²) Dᵀ P⁻¹`` is the variance of the mean of c, and not
    ``P⁻¹`` (White 1980, "A heteroskedasticity-consistent covariance matrix estimator").

    :param chol: The factor L of the points' covariance under the cavity: ``b = m + L c`` [G, M, M].
    :param design: D of the observations, in units of their noise [G, M, N].
    :param targets: The observations less their mean, likewise [G, N, C].
    :param nugget: The variance of the points' white noise.
    """
    inverse = np.linalg.inv(np.eye(design.shape[1]) + design @ transposed(design))
    weights = inverse @ design
    residual = targets - transposed(design) @ (weights @ targets)
    squares = np.mean(residual**2, axis=2)[:, None, :]
    shown, predicted = (
        np.einsum("gmi,gij,gmj->gm", chol, one, chol)
        for one in ((weights * squares) @ transposed(weights), inverse)
    )
    return float(np.sqrt(np.max(shown / (predicted + nugget))))
