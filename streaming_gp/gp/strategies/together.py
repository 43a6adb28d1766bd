"""Small batches that learn ε together.

A handful of data has many explanations, and a Gaussian q(ε) learned from them holds on to one:
noise alone, say, or a lengthscale near zero, from where no gradient leads back. Batches that are
as small never get it out of there. So until :data:`ENOUGH` data have come, a batch learns ε with
all earlier ones, under the prior, as if all were one batch; and after that small batches wait for
each other until :data:`WORTH_LEARNING` data have come. They share the factor of ε that they get,
each in proportion to its data, as the tied factors of stochastic EP do (Li et al. 2015): so each
can still be removed.

This is for a point at every input. With Gaussian noise the factor of a batch is its likelihood
then, and the data can be read from it; with other likelihoods factors know the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from streaming_gp.gp.bounds.exact import at_every_input
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.factor import PseudoPointFactor, product_of_epsilon
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.learning_sample import LearningSample
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.gp.strategies.several_batches import data_of, divided, joined_data, without
from streaming_gp.gp.strategies.with_targets import FactorWithTargets, joined_observations

ENOUGH = 200
"""From so many data on, q(ε) is a cavity under which a small batch may be fitted."""
DECIDED = 100
"""From so many earlier data on, a joint fit starts at the q(ε) of before, which takes fewer steps
than to start anew. Of fewer data another explanation may turn out to be the better one.
"""
GROWTH = 0.25
"""Fewer data than that grow by this share before ε is learned anew, which bounds what it costs."""
WORTH_LEARNING = LearningSample.num_data
"""So many data are worth a fit of their own: as many as one looks at."""

MOST_FLOPS = 3e9
"""What the evidence of a batch that learns nothing may take: as much as a look for what is near."""

Fit = Callable[[GPLedger, Batch], tuple[GPLedger, PseudoPointFactor, FitReport]]


def fitted(
    fitter: Fitter, ledger: GPLedger, batch: Batch, budget: int | None, fit: Fit
) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
    """The factor of the next batch of a stream, learned with earlier ones that belong to it.

    What these were told is taken off the free energy, so that the free energies of a stream add up
    to the bound on all of it.

    :param budget: The largest number of points of all batches; None for no limit.
    :param fit: Fits a batch that is new to a ledger.
    :returns: the ledger, in which the batches that it was learned with have new factors as well;
        the factor; what was done.
    """
    names = _company(fitter, ledger, len(batch.data[0]), budget)
    if names == []:
        return fit(ledger, batch)
    assert batch.stream_seed is not None
    batch = replace(batch, seed=batch.stream_seed)  # or free energies would not add up
    if names is None:
        return _waiting(fitter, ledger, batch, budget, fit)
    parts = [data_of(ledger.factors[name]) for name in names]
    rest = without(ledger, names)
    seen, everything = joined_data(parts), joined_data([*parts, batch.data])
    is_decided = not rest.factors and len(seen[0]) >= DECIDED
    joined = replace(
        batch,
        data=everything,
        num_joined=len(everything[0]),
        start=ledger.posterior.hyperparameters if is_decided else None,
    )
    found, factor, report = fit(rest, joined)
    told = _told(fitter, ledger, rest, replace(batch, data=seen), names)
    *earlier, own = divided(
        fitter, rest.posterior, factor, report.epsilon, batch, [*parts, batch.data]
    )
    changes = {**found.factors, **dict(zip(names, earlier, strict=True))}
    after = ledger.with_factors(changes)
    return after, own, report._replace(free_energy=report.free_energy - told)


# ---- which batches ----


def _company(
    fitter: Fitter, ledger: GPLedger, num_new: int, budget: int | None
) -> list[str] | None:
    """The names of the batches that a new one learns with; None if all of them wait for more."""
    held = ledger.posterior.num_pseudo_points
    newest = reversed(list(ledger.factors))
    waiting = list(takewhile(lambda name: _says_nothing_of_epsilon(ledger, name), newest))
    num_waiting = _num_points(ledger, waiting)
    if held < ENOUGH:
        everything = list(ledger.factors)
        if held + num_new > (budget or np.inf) or not _are_data(fitter, ledger, everything):
            return []
        is_worth_it = num_waiting + num_new >= GROWTH * (held - num_waiting)
        return everything if is_worth_it or held + num_new >= ENOUGH else None
    worth = WORTH_LEARNING if budget is None else min(WORTH_LEARNING, budget // 10)
    if num_new >= worth or not _are_data(fitter, ledger, waiting):
        return []
    if num_waiting + num_new < worth:
        return None
    return _that_hold(ledger, waiting, worth - num_new)


def has_learned(ledger: GPLedger) -> bool:
    """Whether ε has been learned from some batch."""
    return not all(_says_nothing_of_epsilon(ledger, name) for name in ledger.factors)


def _says_nothing_of_epsilon(ledger: GPLedger, name: str) -> bool:
    of_epsilon = ledger.factors[name].hyperparameters
    return name != MERGED and not any(np.any(eta) for eta in of_epsilon.natural)


def _num_points(ledger: GPLedger, names: Sequence[str]) -> int:
    return sum(len(ledger.factors[name].Z) for name in names)


def _that_hold(ledger: GPLedger, newest: Sequence[str], most: int) -> list[str]:
    """The newest of these batches that hold at most so many points, in order of arrival."""
    total = np.cumsum([len(ledger.factors[name].Z) for name in newest])
    return list(reversed(newest[: int(np.sum(total <= most))]))


def _are_data(fitter: Fitter, ledger: GPLedger, names: Sequence[str]) -> bool:
    """Whether the factors of these batches are all that their data say: nothing was merged, damped
    or forgotten. Likelihoods are those at today's ε.
    """
    if not fitter.bound.is_conjugate:
        return all(isinstance(ledger.factors[name], FactorWithTargets) for name in names)
    said = [one for name in names for one in ledger.factors[name].pseudo_observations]
    rows = [one for one in said if isinstance(one, PseudoObservations) and one.is_diagonal]
    if not len(rows) == len(said) == len(names):
        return False
    if not names:
        return True
    X = np.concatenate([one.Z for one in rows])
    precision = fitter.local.noise_precision(fitter.location(ledger.posterior), X)
    wanted = at_every_input(X, Sites(precision, precision), fitter.local.gp.num_groups)
    found = np.concatenate([_roots(one) for one in rows], axis=1)
    return np.allclose(found, _roots(wanted), rtol=1e-6, atol=0.0)


# ---- their data and their factors ----


def _roots(one: PseudoObservations) -> np.ndarray:
    """The diagonal of R, which is one over the standard deviation of noise [G, N]."""
    return np.diagonal(one.precision_factor, axis1=1, axis2=2)


# ---- batches that wait ----


def _waiting(
    fitter: Fitter, ledger: GPLedger, batch: Batch, budget: int | None, fit: Fit
) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
    """A batch is absorbed at the present q(ε)."""
    found, cavity = ledger, ledger.posterior
    if budget is None:
        factor, report = absorbed(fitter, cavity, batch, fitter.location(cavity))
    else:
        found, factor, report = fit(ledger, replace(batch, learn=False))
    return found, factor, fitter.of_what_is_kept(cavity, batch, factor, report)


def _told(
    fitter: Fitter, ledger: GPLedger, rest: GPLedger, batch: Batch, names: Sequence[str]
) -> float:
    """The free energy in nats of what earlier batches say now, which is about to be replaced.

    :param rest: The ledger without them.
    :param batch: Their data.
    """
    if not names:
        return 0.0
    factors = [ledger.factors[name] for name in names]
    epsilon, said = fitter.location(ledger.posterior), joined_observations(factors)
    of_epsilon = product_of_epsilon(*(one.hyperparameters for one in factors))
    constant = sum(one.log_scale for one in factors)
    factor = PseudoPointFactor((said.as_pseudo_observations(),), of_epsilon, constant)
    near = _what_is_near(fitter, rest.posterior, batch.data[0])
    report = FitReport(epsilon, every_input.evidence(fitter, near, factor, epsilon), 0, 0.0, 0)
    return fitter.of_what_is_kept(rest.posterior, batch, factor, report).free_energy


def absorbed(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray
) -> tuple[PseudoPointFactor, FitReport]:
    """The likelihood of a batch at ε, with its evidence: under what is near it where a stream is
    long, as all of that would have to be factorised anew whenever ε was learned.
    """
    near = _what_is_near(fitter, cavity, batch.data[0])
    return every_input.at_one_epsilon(fitter, near, replace(batch, learn=False), epsilon)


def _what_is_near(fitter: Fitter, cavity: Process, X: np.ndarray) -> Process:
    if _flops(cavity.num_pseudo_points, len(X)) > MOST_FLOPS:
        return fitter.nearby(cavity, X, LearningSample.num_earlier)
    return cavity


def _flops(num_points: int, num_new: int) -> float:
    """Those of factorising all points at a new ε, shared by the batches that wait at it."""
    return num_points**3 / 3.0 * min(1.0, num_new / WORTH_LEARNING)
