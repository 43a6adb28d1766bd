"""Sites of labels and counts that are found anew while a stream grows.

A site is fitted where its batch expects f. While labels of one class come, f goes far up, and there
a label says next to nothing of how far f may come down again: when the other class comes, f does,
and what was known of the first is lost. With a point at every input factors know their targets, so
that all sites can be found once more, together, as a further pass of PVI over these batches would.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.several_batches import data_of, divided, joined_data, without
from streaming_gp.gp.strategies.together import ENOUGH
from streaming_gp.gp.strategies.with_targets import FactorWithTargets, joined_observations, sites_of

GROWTH = 0.25
"""Sites are found anew whenever the points that are held have grown by this share."""
MOST_POINTS = 2000
"""Of more, that takes too long for one batch."""


def refreshed(
    fitter: Fitter,
    ledger: GPLedger,
    batch: Batch,
    factor: PseudoPointFactor,
    report: FitReport,
) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
    """The ledger and the factor of a new batch, with sites at ε found anew if that is due.

    What factors say of ε stays. Where a covariance is not positive sites stay as well. What all of
    them gain by it goes to the free energy of the batch, so that those of a stream add up.

    :param ledger: The ledger without the batch.
    :param factor: The batch's factor.
    :param report: What was done; at its ε sites are found.
    """
    known = [n for n, one in ledger.factors.items() if isinstance(one, FactorWithTargets)]
    knows = isinstance(factor, FactorWithTargets)
    if not (knows and known) or not _is_due(ledger.posterior.num_pseudo_points, len(factor.Z)):
        return ledger, factor, report
    rest, old = without(ledger, known), [*(ledger.factors[name] for name in known), factor]
    with suppress(NumericalError):
        (*earlier, factor), gained = _anew(fitter, rest.posterior, batch, old, report.epsilon)
        ledger = ledger.with_factors({**ledger.factors, **dict(zip(known, earlier, strict=True))})
        report = report._replace(free_energy=report.free_energy + gained)
    return ledger, factor, report


def _anew(
    fitter: Fitter,
    cavity: Process,
    batch: Batch,
    factors: Sequence[PseudoPointFactor],
    epsilon: np.ndarray,
) -> tuple[list[PseudoPointFactor], float]:
    """The factors with sites that are found together at ε [E], and the nats that these gain.

    :param cavity: Prior times all other factors.
    """
    parts, said = [data_of(one) for one in factors], joined_observations(factors)
    constant = sum(one.log_scale for one in factors)
    before = PseudoPointFactor((said.as_pseudo_observations(),), log_scale=constant)
    told = every_input.evidence(fitter, cavity, before, epsilon)
    data = joined_data(parts)
    joined = replace(batch, data=data, num_joined=len(data[0]), sites=sites_of(said))
    found, report = every_input.at_one_epsilon(fitter, cavity, joined, epsilon)
    divided_again = divided(fitter, cavity, found, epsilon, batch, parts)
    return [
        replace(new, hyperparameters=old.hyperparameters)
        for new, old in zip(divided_again, factors, strict=True)
    ], report.free_energy - told


def _is_due(num_held: int, num_new: int) -> bool:
    """Whether the next power of 1 + growth is reached, so that a ledger alone decides.

    Of fewer points all sites are found together whenever ε is learned.
    """
    if num_held < ENOUGH or num_held + num_new > MOST_POINTS:
        return False
    before, after = np.log([num_held, num_held + num_new]) / np.log(1.0 + GROWTH)
    return int(after) > int(before)
