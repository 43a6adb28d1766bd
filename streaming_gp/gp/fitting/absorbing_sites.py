"""Any likelihood at one ε: its sites are looked for, here with a point at every input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.exact import at_every_input
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import Sites, SiteSteps, nothing_said
from streaming_gp.gp.collapsed.at_sites import AtData, SitesAtInputs, moments
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.resting import Look, Rested, Step, rested
from streaming_gp.gp.collapsed.site_energy import expected_of_earlier
from streaming_gp.gp.fitting.absorbed import Absorbed
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.dense import DenseProcess

MOST_ROUNDS = 8
"""Of fixed-point steps; one is enough but where a batch is far from what was expected."""

Posterior = Callable[[Sites], list[AtData]]
"""q(f) of every latent function, for given sites."""


class RestingSites:
    """Looks for the sites of batches of one model at one ε.

    :param local: The model.
    :param steps: Fixed-point steps of the sites.
    """

    def __init__(self, local: LocalModel, steps: SiteSteps) -> None:
        self.local = local
        self.steps = steps

    def __call__(
        self, q_at: Posterior, epsilon: np.ndarray, data: Data, start: Sites | None = None
    ) -> tuple[Rested, float]:
        """Sites at rest, and the bound in nats.

        Where a likelihood is not log-concave, which shows in sites that are cut off, there are
        several optima: of those from the start and from nothing said the better one counts.

        :param q_at: q(f), also of pseudo-observations that points take over, after the data.
        :param epsilon: [E].
        :param data: X [N, D] and Y [N, P].
        :param start: Where the sites start; with nothing said by default.
        :raises NumericalError: if a site is not finite.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        nothing = nothing_said(len(data[0]), self.local.gp.num_latent)
        rested_from = partial(self._rested_from, q_at, epsilon, data)
        if start is None:
            return rested_from(nothing)
        try:
            found = rested_from(start)
        except NumericalError:
            return rested_from(nothing)
        if found[0].clipped:
            with suppress(NumericalError):
                found = max(found, rested_from(nothing), key=itemgetter(1))
        return found

    def _rested_from(
        self, q_at: Posterior, epsilon: np.ndarray, data: Data, start: Sites
    ) -> tuple[Rested, float]:
        """The same from one start."""
        N = len(data[0])

        def look(q: list[AtData]) -> Look:
            at_data = (one[:, :N] for one in moments(q))
            return self.local.at_data.step(epsilon[None], *data, *at_data)

        found = self._rested(lambda now: look(q_at(now)), start)
        q = q_at(found.sites)
        expected = look(q).expected
        return found, expected + sum(expected_of_earlier(one, N) - float(one.kl) for one in q)

    def _rested(self, step: Step, sites: Sites) -> Rested:
        """A round of steps, and more where the first one ends far from rest."""
        for _ in range(MOST_ROUNDS):
            found = rested(step, sites, self.steps)
            if found.is_near:
                break
            sites = found.sites
        return found


class SitesAtRest:
    """What batches of one model say at one ε, with a point at every input.

    :param local: The model.
    :param steps: Fixed-point steps of the sites.
    """

    def __init__(self, local: LocalModel, steps: SiteSteps) -> None:
        self.local = local
        self.resting = RestingSites(local, steps)

    def __call__(
        self, cavity: DenseProcess, epsilon: np.ndarray, data: Data, start: Sites | None
    ) -> Absorbed:
        """What a batch says.

        :param cavity: The cavity at ε.
        :param epsilon: [E].
        :param data: X [N, D] and Y [N, P].
        :param start: Where its sites start; with nothing said by default.
        :raises NumericalError: if a covariance is not positive, or a site not finite.
        """
        V = cavity.project(data[0])
        covariances, means = cavity.covariance(data[0], V), cavity.mean(data[0], V)
        q_at = partial(_posteriors, covariances, means)
        try:
            found, bound = self.resting(q_at, epsilon, data, start)
        except np.linalg.LinAlgError:
            raise NumericalError("the cavity covariance at the inputs is not positive") from None
        said = at_every_input(data[0], found.sites, self.local.gp.num_groups)
        return Absorbed(said, bound, clipped_sites=found.clipped)


def _posteriors(covariances: np.ndarray, means: np.ndarray, sites: Sites) -> list[AtData]:
    """q(f) of every latent function under a cavity of these covariances [L, N, N] and means."""
    none = np.zeros((1, covariances.shape[1], 0))
    found = []
    for K, mean, *site in zip(covariances, means, *(part.T for part in sites), strict=True):
        batch = UnderCavity(K[None], none, none[:, 0], -mean[None], none[:, :, 0:0])
        found.append(SitesAtInputs().posterior(batch, *site))
    return found
