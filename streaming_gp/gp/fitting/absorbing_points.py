"""A batch on points at one ε, in NumPy: its sites, what they say of the points, and the bound.

With Gaussian noise the bounds are the energies of power EP, of which the variational bound is one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import MIN_SITE_PRECISION, Sites, SiteSteps, is_conjugate
from streaming_gp.gp.collapsed.at_sites import AtData, SitesOnPoints
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import OnPoints, low_rank
from streaming_gp.gp.collapsed.site_energy import with_earlier
from streaming_gp.gp.fitting.absorbed import Absorbed, Left
from streaming_gp.gp.fitting.absorbing_sites import RestingSites
from streaming_gp.gp.fitting.at_points import AtPoints, on_own_points, on_shared_points
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.places import Inputs, Places, Start
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.fitting.projection import Projection
from streaming_gp.gp.fitting.solver import Solution
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.numerics.threads import one_blas_thread


class PointsAtRest:
    """What batches of one model say of their points at one ε.

    :param local: The model.
    :param alpha: The power of the energy, in [0, 1]; zero unless noise is Gaussian.
    :param steps: Fixed-point steps of sites.
    """

    def __init__(self, local: LocalModel, alpha: float, steps: SiteSteps) -> None:
        self.local = local
        self.bound = OnPoints(alpha)
        self.is_conjugate = is_conjugate(local.likelihood)
        self.resting = RestingSites(local, steps)

    def observed(self, Y: np.ndarray) -> np.ndarray | float:
        """What residuals are of [G, N, C]: the data, or zero where sites say all of them."""
        return self._grouped(Y) if self.is_conjugate else 0.0

    @one_blas_thread()
    def of_solution(
        self,
        factorisations: Factorisations,
        cavity: Process,
        solution: Solution,
        onto: Projection | None,
    ) -> tuple[PseudoObservations, Left]:
        """What the sites of a solution say of its points, and what these leave of the data.

        :param cavity: Prior times all other factors, before they were projected onto the points.
        :param onto: That projection, if there was one.
        """
        problem, epsilon = solution.problem, solution.report.epsilon
        X, observed = problem.X.numpy(), self.observed(problem.Y.numpy())
        if onto is not None:
            data = Places(DenseProcess(onto.prior)).at(X)
            at = on_shared_points(onto, data, observed, plain(cavity))
        else:
            places = Places(factorisations.at(epsilon, Process(plain(cavity))))
            Z = problem.moved(solution.offsets).numpy()
            at = on_own_points(places, places.at(X), Start(Z, float(problem.nugget)), observed)
        return self.said(at, epsilon, X, solution.sites)

    def said(
        self, at: AtPoints, epsilon: np.ndarray, X: np.ndarray, sites: Sites
    ) -> tuple[PseudoObservations, Left]:
        """What sites say of points, and what these leave of the data.

        :param at: The data, whose residuals are those of :meth:`observed`.
        :param sites: Those on the data, unless their noise is Gaussian.
        """
        if self.is_conjugate:
            return at.said(1.0 / self._widened(at, self._noise(epsilon, X)), 0.0)
        precision_mean, w = map(self._grouped, sites)
        return at.said(w[:, :, 0], precision_mean)

    def __call__(
        self, at: AtPoints, epsilon: np.ndarray, data: Data, start: Sites | None = None
    ) -> Absorbed:
        """The same with the bound, less the log evidence of what the points take over.

        :param start: Where sites start, if they are to start elsewhere.
        :raises NumericalError: if a covariance is not positive, or a site not finite.
        """
        if self.is_conjugate:
            noise = self._noise(epsilon, data[0])
            said, left = at.said(1.0 / self._widened(at, noise), 0.0)
            return Absorbed(said, self._energy(at, noise), left)
        try:
            found, bound = self.resting(partial(_posteriors, at), epsilon, data, start)
        except np.linalg.LinAlgError:
            raise NumericalError("the posterior covariance at the points is not positive") from None
        said, left = self.said(at, epsilon, data[0], found.sites)
        return Absorbed(said, bound, left, found.clipped)

    def site_weights(
        self, places: Places, data: Inputs, Y: np.ndarray, epsilon: np.ndarray
    ) -> np.ndarray:
        """Site precisions at the cavity [N], summed over latent functions.

        In the energies of power EP what points leave widens the noise: one at the first datum here.
        """
        if not self.is_conjugate:
            moments_at_cavity = data.mean[:, :, 0].T, data.variance.T
            at = (one[None] for one in moments_at_cavity)
            sites = self.local.at_data.step(epsilon[None], data.X, Y, *at).wanted
            return np.maximum(sites.precision, MIN_SITE_PRECISION).sum(axis=1)
        widened = self._noise(epsilon, data.X)
        if self.bound.alpha > 0.0:
            first = places.at(data.X[:1])
            variance = places.cavity.covariance(first.X, first.V)[:, 0]
            left = data.variance - places.covariance(first, data)[:, 0] ** 2 / variance
            widened = widened + self.bound.alpha * np.maximum(left, 0.0)
        return np.asarray(data.mean.shape[2] * np.sum(1.0 / widened, axis=0))

    # ---- Gaussian noise ----

    def _energy(self, at: AtPoints, noise: np.ndarray) -> float:
        """As :class:`.OnPoints` has it; what is taken over adds no constants of its own."""
        precisions = at.precisions(1.0 / self._widened(at, noise))
        found = low_rank(at.joint.design, 1.0 / precisions, at.joint.residual)
        correction = self.bound.correction(at.left / noise)
        correction += 0.5 * sum(float(np.sum(one.left)) for one in at.earlier)
        C, size = at.joint.residual.shape[2], at.data.residual.size
        return found.value - C * correction - 0.5 * size * LOG_TWO_PI

    def _widened(self, at: AtPoints, noise: np.ndarray) -> np.ndarray:
        return noise + self.bound.alpha * at.left

    def _noise(self, epsilon: np.ndarray, X: np.ndarray) -> np.ndarray:
        """The variance of the noise [G, N]."""
        return np.asarray(1.0 / self._grouped(self.local.noise_precision(epsilon, X))[:, :, 0])

    def _grouped(self, values: np.ndarray) -> np.ndarray:
        """[N, L] → [G, N, C]."""
        groups = len(values), self.local.gp.num_groups, -1
        return np.reshape(values, groups).swapaxes(0, 1)


def _posteriors(at: AtPoints, sites: Sites) -> list[AtData]:
    """q(f) of every latent function, and of what is taken over after it."""
    joint, found = at.joint, []
    number = joint.variance.shape[1]
    for index, part in enumerate(zip(at.chol, *joint, strict=True)):
        L, design, variance, residual = (one[None] for one in part)
        batch = UnderCavity(L, design, variance, residual, np.zeros((1, 0)))
        found.append(SitesOnPoints().posterior(batch, *with_earlier(sites, index, number)))
    return found
