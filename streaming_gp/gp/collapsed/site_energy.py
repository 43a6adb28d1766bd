"""q(f) at given sites as a function of the prior's values: linear algebra in NumPy, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.collapsed.at_sites import AtData, Pull, SiteBound
from streaming_gp.gp.collapsed.batch import BatchUnderCavity, under_cavity
from streaming_gp.gp.collapsed.cavity import Cavity
from streaming_gp.gp.collapsed.energy import Known, observed
from streaming_gp.gp.collapsed.prior_values import PriorValues


class Forwards(NamedTuple):
    """q(f) of L latent functions at S values of ε, and what its derivatives are made of.

    :param mean: [S, N, L].
    :param variance: [S, N, L].
    :param bound: The free energy in nats without what is expected of the data, over all ε [].
    :param of_cavity: The arrays of :class:`.Cavity`, each [S, L, ...].
    :param kept: Those of :class:`.AtData`, likewise.
    """

    mean: Any
    variance: Any
    bound: Any
    of_cavity: tuple[Any, Any, Any]
    kept: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class SiteEnergy:
    """The free energy of a batch without what is expected of its data.

    :param of: Where the points of the batch are.
    :param by_evidence: How often the log evidence of the cavity is added.
    """

    of: SiteBound
    by_evidence: float

    @property
    def forms(self) -> Forwards:
        """What :meth:`forwards` gives, without its arrays."""
        return Forwards(None, None, None, (None,) * 3, (None,) * self.of.num_kept)

    def forwards(self, known: Known, sites: Sites, values: PriorValues) -> Forwards:
        """q(f); the bound is minus infinity if a covariance is not positive.

        :param known: Of which the observations are not asked for.
        :param values: The prior; its points are the rows that speak and then the batch's.
        """
        shape = len(values.among), *np.shape(sites.precision)
        try:
            with np.errstate(all="ignore"):  # a line search may ask for any ε
                found = [self._of_function(known, sites, values, one) for one in range(shape[2])]
        except np.linalg.LinAlgError:
            none, worst = np.zeros(shape), np.float64(-np.inf)
            return Forwards(none, none, worst, (none,) * 3, (none,) * self.of.num_kept)
        q, cavities = zip(*found, strict=True)
        evidence = self.by_evidence * sum(cavity.log_evidence for cavity in cavities)
        return Forwards(
            np.stack([one.mean for one in q], axis=2),
            np.stack([one.variance for one in q], axis=2),
            np.float64(evidence - sum(one.kl for one in q)),
            _stacked([(one.chol, one.projected, one.white) for one in cavities]),
            _stacked([one.kept for one in q]),
        )

    def _of_function(
        self, known: Known, sites: Sites, values: PriorValues, index: int
    ) -> tuple[AtData, Cavity]:
        prior = values.of_group(index)
        batch = under_cavity(prior, observed(known, index), self.of.on_points)
        nugget = float(known.nugget) if self.of.on_points else 0.0
        described = batch.described(prior, np.zeros((1, 1)), nugget)
        return self.of.posterior(described, *(part[:, index] for part in sites)), batch.cavity

    def backwards(
        self,
        known: Known,
        sites: Sites,
        values: PriorValues,
        found: Forwards,
        by: Sequence[np.ndarray],
    ) -> PriorValues:
        """Derivatives of the free energy by the prior's values; zeros where it is not finite.

        :param found: What :meth:`forwards` gave.
        :param by: Derivatives of what is expected of the data by means and variances [S, N, L].
        """
        if not np.isfinite(found.bound):
            return PriorValues(*map(np.zeros_like, values))
        parts = []
        for index in range(found.mean.shape[2]):
            cavity = Cavity(observed(known, index), *(one[:, index] for one in found.of_cavity))
            kept = tuple(one[:, index] for one in found.kept)
            mean, variance, *pull = (one[:, :, index] for one in (*found[:2], *by))
            q = AtData(mean, variance, found.bound, kept)
            pulled = self.of.pulled_back(q, Pull(*(part[:, index] for part in sites), *pull))
            batch = BatchUnderCavity(cavity, pulled.among.shape[1])
            parts.append(batch.pulled_back(pulled, self.by_evidence, values.of_group(index)))
        return values.gathered(parts)


def _stacked(ones: Sequence[tuple[np.ndarray, ...]]) -> tuple[Any, ...]:
    """Each of the arrays [S, ...] of several functions as one [S, L, ...]."""
    return tuple(np.stack(arrays, axis=1) for arrays in zip(*ones, strict=True))
