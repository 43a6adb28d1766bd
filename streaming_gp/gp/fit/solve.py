"""How a batch is solved: at one ε in NumPy, or with ε and places of points learned.

At one ε nothing is optimised, and nothing factorised again: the cavity is held factorised, so that
under R earlier points a batch of N data costs O(R² N). The factor of an optimum is read off there
as well. Otherwise site steps and runs of the optimiser take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.cavity import UnderCavity
from streaming_gp.gp.fit.frozen import FrozenObjective
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import NO_SITES, BatchBound, Objective, Problem
from streaming_gp.gp.fit.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.fit.points import Inputs, Places
from streaming_gp.gp.fit.projection import Projection, on_points
from streaming_gp.gp.fit.sites import Sites, best_rest, is_conjugate, nothing_said
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


@dataclass(frozen=True, eq=False)
class Solution:
    """An optimum of the local free energy.

    :param problem: The batch under its cavity.
    :param offsets: Those of the points [M D].
    :param variables: Those of ε [V].
    :param sites: Of Gaussian noise none.
    :param q: q(ε); None where ε is a point.
    :param epsilon: The point estimate of ε [E].
    :param free_energy: In nats, without what is known already.
    :param iterations: The number of optimiser iterations.
    :param clipped_sites: The number of sites whose negative precision was cut off.
    """

    problem: Problem
    offsets: np.ndarray
    variables: np.ndarray
    sites: Sites
    q: expfam.Gaussian | None
    epsilon: np.ndarray
    free_energy: float
    iterations: int = 0
    clipped_sites: int = 0

    @property
    def Z(self) -> np.ndarray:
        """The points [M, D]."""
        return np.asarray(self.problem.moved(self.offsets))


class Solver:
    """Maximises the local free energy of one batch under its cavity."""

    def __init__(
        self,
        objective: Objective | FrozenObjective,
        local: LocalModel,
        optimiser: LocalOptimiser,
        problem: Problem,
    ) -> None:
        self.objective = objective
        self.local = local
        self.optimiser = optimiser
        self.problem = problem
        self._is_conjugate = is_conjugate(local.likelihood)

    def solve(self, report: Report, move: bool) -> Solution:
        """The optimum of the local free energy.

        :param report: Called with (iteration, free energy).
        :param move: Whether the points may move.
        :raises NumericalError: if the bound is not finite.
        """
        local, optimiser, problem = self.local, self.optimiser, self.problem
        offsets, has_seen_data = np.zeros(problem.Z.size), bool(problem.earlier)
        variables = local.hyperparameters.initial(local.parameters, has_seen_data)
        sites = self._sites_at_first()
        rounds = 1 if self._is_conjugate else optimiser.rounds
        most = max(1, optimiser.iterations(sum(len(one.Z) for one in problem.earlier)) // rounds)
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._at_rest(offsets, variables, sites)
            run = self._run(offsets, variables, sites, most, report, iterations, move)
            offsets, variables, steps = run
            iterations += steps
            if move:
                offsets = self._relocated(offsets, variables, sites, rounds)
            elif steps == 0:
                break  # the sites rest at an optimum
        more = optimiser.more_iterations(most) if move and rounds == 1 else 0
        if more > 0 and iterations == most:  # over q(ε) alone
            run = self._run(offsets, variables, sites, more, report, most, move=False)
            _, variables, steps = run
            iterations += steps
        sites, clipped = self._at_rest(offsets, variables, sites)
        return self._solution(offsets, variables, sites, iterations, clipped)

    def at_rest(self) -> Solution:
        """The sites at the present q(ε) and the points at the start: nothing is optimised."""
        offsets = np.zeros(self.problem.Z.size)
        variables = self.local.hyperparameters.unmoved(self.local.parameters.size)
        sites, clipped = self._at_rest(offsets, variables, self._sites_at_first())
        return self._solution(offsets, variables, sites, 0, clipped)

    def _sites_at_first(self) -> Sites:
        if self._is_conjugate:
            return NO_SITES
        return nothing_said(len(self.problem.X), self.local.gp.num_latent)

    def _at_rest(
        self, offsets: np.ndarray, variables: np.ndarray, sites: Sites
    ) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites until they rest; also counts clipped ones."""
        if self._is_conjugate:
            return sites, 0
        most = self.optimiser.site_steps
        return self.objective.rest(offsets, variables, self.problem, sites, most)[:2]

    def _run(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        sites: Sites,
        most: int,
        report: Report,
        before: int,
        move: bool,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """One optimiser run, with the sites held: offsets, variables, iterations (``most``).

        :param before: The number of iterations that there were.
        """
        moving = offsets if move else np.zeros(0)
        limits: list[Any] = [(None, None)] * len(moving)
        limits += self.local.hyperparameters.limits(self.local.parameters)
        if not limits:
            return offsets, variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            places, rest = point[: len(moving)], point[len(moving) :]
            at = places if move else offsets
            loss, gradient = self.objective(at, rest, self.problem, sites)
            return loss, gradient[len(gradient) - len(point) :]

        def onward(iteration: int, free_energy: float) -> None:
            report(before + iteration, free_energy)

        start = np.concatenate([moving, variables])
        method, tolerance = self.optimiser.method, self.optimiser.tolerance
        point, steps = minimise(loss_and_gradient, start, limits, method, most, onward, tolerance)
        return point[: len(moving)] if move else offsets, point[len(moving) :], steps

    def _relocated(
        self, offsets: np.ndarray, variables: np.ndarray, sites: Sites, rounds: int
    ) -> np.ndarray:
        """Locations moved on at the centre of q(ε), which is one value of ε instead of S.

        Moved before q(ε) they would settle where the old ε wants them, and hold it there.
        """
        steps = self.optimiser.location_iterations // rounds
        if steps == 0:
            return offsets
        centre = replace(self.problem, noise=np.zeros_like(self.problem.noise[:1]))

        def loss_and_gradient(places: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.objective(places, variables, centre, sites)
            return loss, gradient[: len(places)]

        return minimise(loss_and_gradient, offsets, None, self.optimiser.method, steps)[0]

    def _solution(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        sites: Sites,
        iterations: int,
        clipped: int,
    ) -> Solution:
        problem, strategy = self.problem, self.local.hyperparameters
        loss, _ = self.objective(offsets, variables, problem, sites)
        q: Any = strategy.posterior(variables, problem.location, problem.scale)
        if q is None:
            given = variables, problem.location, problem.scale, problem.noise
            epsilon = strategy.draw(*map(tf.constant, given))[0].numpy()
        else:
            epsilon = np.asarray(q.mean)
        return Solution(
            problem, offsets, variables, sites, q, epsilon,
            -loss - self.objective.remembered, iterations, clipped,
        )  # fmt: skip
