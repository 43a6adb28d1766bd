"""What hyperparameters are learned from where a batch has a pseudo-point at every input.

Nothing about f is optimised then, so that this need be neither all of the batch nor all that is
known of f.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Exact, PowerEP, Variational
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import Sites, nothing_said
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.compression import Some, neighbours
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.gp.strategies.selection import greedy_gain
from streaming_gp.inputs import require_positive_integer, typed
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class LearningSample:
    """What ε is learned from, of a batch that has a pseudo-point at every input.

    :param num_data: The largest number of a batch's data.
    :param num_points: The largest number of pseudo-points at which these are looked at; None for
        one at every input, which is exact.
    :param num_earlier: The largest number of earlier pseudo-points under which these are looked at
        as they are. Of more the cavity is reduced to so many, or to neighbours.
    :param alpha: Where these are few and noise is Gaussian, the power of power EP's energy in
        [0, 1]: 1 is FITC, which finds the noise of the data; 0 is the variational bound, which
        takes for noise also what so few points leave unexplained.
    :param num_neighbours: How many earlier observations near each of the data the cavity is reduced
        to, where these are held or remembered. They show how f varies over short distances, which a
        batch alone does not where data are dense only together.
    :raises InvalidDataError: if a number is not positive, or alpha out of its range.
    """

    num_data: int = 300
    num_points: int | None = None
    num_earlier: int = 200
    alpha: float = 1.0
    num_neighbours: int = 2

    def __post_init__(self) -> None:
        for name in ("num_data", "num_points", "num_earlier", "num_neighbours"):
            if getattr(self, name) is not None:
                require_positive_integer(name, getattr(self, name))
        if not 0.0 <= self.alpha <= 1.0:
            raise InvalidDataError(f"alpha must lie in [0, 1], got {self.alpha}")


MOST_REMEMBERED = 500
"""A point ε answers to all earlier pseudo-points up to so many; beyond, to those near the batch."""

FINE_SHARE, FINE_POINTS = 0.4, (40, 70)
"""Points for each datum of a batch, for :func:`fine`, and the least and the most of them."""
LARGEST_SHARE = 1 / 6
"""Points for each datum of a batch, for :func:`coarse`."""
LONG_STREAM = 12_000
"""So many data a budget is to last for; what ε can say of f on more points than that is lost."""
FEWEST_POINTS = 5
NEIGHBOURS = 2
"""A batch is served by its own share of the points and by as many of its neighbours'."""


def points_per_datum(budget: int) -> float:
    """How many points serve each datum when a stream has become long."""
    return NEIGHBOURS * budget / LONG_STREAM


def fine(num_data: int) -> LearningSample:
    """What ε is learned from once a budget is full: with a point at every input, ε would be finer
    still than what a budget can hold, and predictions too sure.

    :param num_data: The number of the batch's data.
    """
    return LearningSample(num_points=int(np.clip(np.ceil(FINE_SHARE * num_data), *FINE_POINTS)))


def coarse(num_data: int, budget: int) -> LearningSample:
    """So few points of a batch that it takes for noise what the budget cannot hold.

    :param num_data: The number of the batch's data.
    :param budget: The number of points of all batches.
    """
    share = min(LARGEST_SHARE, points_per_datum(budget))
    number = max(np.ceil(share * num_data), min(FEWEST_POINTS, np.ceil(LARGEST_SHARE * num_data)))
    return LearningSample(num_points=int(number), alpha=0.0)


def learned(
    fitter: Fitter,
    cavity: Process,
    batch: Batch,
    sample: LearningSample,
    num_left: int | None = None,
    known: SingleObservations | None = None,
) -> tuple[expfam.Factor | None, FitReport, Sites | None]:
    """The factor of ε, learned from a part of the batch under the part of the cavity near it; what
    was done; and where sites of the batch may start, if noise is not Gaussian.

    :param num_left: How many of the cavity's points, at random, will be left later on, if that is
        to count. Those near a batch are many as long as a stream is short, or has just been there.
    :param known: Earlier observations of one input each, whose neighbours stand for a cavity of
        more than a few points; None for its marginal at some of these.
    """
    X, Y = batch.data
    rng = np.random.default_rng(batch.seed)
    some = np.sort(rng.permutation(len(X))[: sample.num_data])
    left = None
    if num_left is not None and sample.num_earlier <= num_left < cavity.num_pseudo_points:
        left = rng.permutation(cavity.num_pseudo_points)[:num_left]
    small = _near(fitter, cavity, X[some], sample, left, known)
    number = len(some) if sample.num_points is None else sample.num_points
    bound = _bound(sample.alpha, fitter.bound.is_conjugate) if number < len(some) else Exact()
    part = replace(batch, data=(X[some], Y[some]))

    def place(candidates: Candidates) -> np.ndarray:
        if number >= len(some):
            return candidates.inputs
        return np.asarray(candidates.inputs[greedy_gain(candidates, number)])

    effort = min(fitter.optimiser.full_effort_points, sample.num_earlier - 1)
    if not fitter.bound.is_conjugate:  # labels say less of ε: under a small cavity all effort pays
        effort = sample.num_earlier + sample.num_data
    found, report, sites = fitter.by(bound, effort).learned(small, part, place)
    share = len(X) / len(some)
    report = report._replace(free_energy=share * report.free_energy)
    return found, report, None if sites is None else _among_others(sites, some, len(X))


def _among_others(sites: Sites, some: np.ndarray, number: int) -> Sites:
    """Sites of some of the data, and for the others such as say next to nothing."""
    found = nothing_said(number, sites.precision.shape[1])
    for part, known in zip(found, sites, strict=True):
        part[some] = known
    return found


def _near(
    fitter: Fitter,
    cavity: Process,
    X: np.ndarray,
    sample: LearningSample,
    left: Some,
    known: SingleObservations | None,
) -> Process:
    """The part of the cavity near X, where it has more than a few points."""
    remembers = fitter.local.hyperparameters.memory(lambda: 1.0, lambda: 1.0) != 0.0
    earlier = max(MOST_REMEMBERED, sample.num_earlier) if remembers else sample.num_earlier
    if cavity.num_pseudo_points <= max(earlier, sample.num_neighbours):
        return cavity
    if known is None or len(known.Z) <= sample.num_neighbours:
        return fitter.nearby(cavity, X, sample.num_earlier, left)
    prior = PriorAt(fitter.local.prior, fitter.location(cavity)[None])
    return Process((neighbours(prior, known, X, sample.num_neighbours),), cavity.hyperparameters)


def _bound(alpha: float, is_conjugate: bool) -> LocalBound:
    return PowerEP(alpha) if is_conjugate and alpha > 0.0 else Variational()
