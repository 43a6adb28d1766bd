"""q(f) at given sites as a function of the prior's values: linear algebra in NumPy, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.collapsed.at_sites import AtData, Pull, SiteBound, moments
from streaming_gp.gp.collapsed.batch import BatchUnderCavity, UnderCavity
from streaming_gp.gp.collapsed.cavity import Cavity
from streaming_gp.gp.collapsed.known import Batch, Known, described, observed
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.taken_over import TakenOver


class Forwards(NamedTuple):
    """q(f) of L latent functions at S values of ε, and what its derivatives are made of.

    :param mean: At the data, and of what is taken over after them [S, N + R, L].
    :param variance: Likewise.
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

    Pseudo-observations that its points take over are data of unit noise: their sites are known.

    :param of: Where the points of the batch are.
    :param by_evidence: How often the log evidence of what is earlier is added.
    :param takes_over: Whether the points take over what is earlier.
    """

    of: SiteBound
    by_evidence: float
    takes_over: bool

    @property
    def forms(self) -> Forwards:
        """What :meth:`forwards` gives, without its arrays."""
        return Forwards(None, None, None, (None,) * 3, (None,) * self.of.num_kept)

    def batches(self, known: Known, values: PriorValues) -> list[tuple[Batch, UnderCavity]]:
        """The batch in every latent function, prepared for :meth:`posterior`.

        :param known: Of which the observations are not asked for.
        :param values: The prior; its points are the rows that speak and then the batch's.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        none, found = np.zeros((1, 1)), []
        for index in range(len(known.targets)):
            kind = self.of.on_points, self.takes_over
            batch, at = described(known, values.of_group(index), index, none, *kind)
            found.append((batch, self.of.prepared(at)))
        return found

    def posterior(self, batch: UnderCavity, sites: Sites, index: int) -> AtData:
        """q(f) of one latent function.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        return self.of.posterior(batch, *with_earlier(sites, index, batch.residual.shape[1]))

    def forwards(self, known: Known, sites: Sites, values: PriorValues) -> Forwards:
        """q(f); the bound is minus infinity if a covariance is not positive."""
        try:
            with np.errstate(all="ignore"):  # a line search may ask for any ε
                batches = self.batches(known, values)
                q = [self.posterior(one, sites, index) for index, (_, one) in enumerate(batches)]
        except np.linalg.LinAlgError:
            none, worst = np.zeros((len(values.among), *np.shape(sites[0]))), np.float64(-np.inf)
            return Forwards(none, none, worst, (none,) * 3, (none,) * self.of.num_kept)
        N = len(sites.precision)
        evidence = sum(batch.log_evidence(self.by_evidence) for batch, _ in batches)
        bound = evidence + sum(expected_of_earlier(one, N) - one.kl for one in q)
        cavities = [batch.cavity for batch, _ in batches]
        return Forwards(
            *moments(q),
            np.float64(bound),
            _stacked([(one.chol, one.projected, one.white) for one in cavities]),
            _stacked([one.kept for one in q]),
        )

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
        N, parts = len(sites.precision), []
        for index in range(found.mean.shape[2]):
            mean, variance = (one[:, :, index] for one in found[:2])
            kept = tuple(one[:, index] for one in found.kept)
            by_mean, by_variance = (one[:, :, index] for one in by)
            pull = Pull(
                *with_earlier(sites, index, mean.shape[1]),
                np.concatenate([by_mean, -mean[:, N:]], axis=1),
                np.concatenate([by_variance, np.full_like(variance[:, N:], -0.5)], axis=1),
            )
            pulled = self.of.pulled_back(AtData(mean, variance, found.bound, kept), pull)
            cavity = Cavity(observed(known, index), *(one[:, index] for one in found.of_cavity))
            batch = self._batch(cavity, pulled.among.shape[1])
            parts.append(batch.pulled_back(pulled, self.by_evidence, values.of_group(index)))
        return values.gathered(parts)

    def _batch(self, cavity: Cavity, num_points: int) -> Batch:
        return TakenOver(cavity) if self.takes_over else BatchUnderCavity(cavity, num_points)


def with_earlier(sites: Sites, index: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Sites [N] of one latent function, and after them those of unit noise."""
    parts = []
    for part, of_noise in zip(sites, (0.0, 1.0), strict=True):
        found = np.full(number, of_noise)
        found[: len(part)] = part[:, index]
        parts.append(found)
    return parts[0], parts[1]


def expected_of_earlier(q: AtData, N: int) -> float:
    """``Σ E log N(0; t, 1)`` without its constant, summed over ε, for what comes after N data."""
    return -0.5 * float(np.sum(q.mean[:, N:] ** 2) + np.sum(q.variance[:, N:]))


def _stacked(ones: Sequence[tuple[np.ndarray, ...]]) -> tuple[Any, ...]:
    """Each of the arrays [S, ...] of several functions as one [S, L, ...]."""
    return tuple(np.stack(arrays, axis=1) for arrays in zip(*ones, strict=True))
