"""The merged factor anew, from all data that were merged, while these are remembered.

What is merged time and again is projected at the ε of each time, on points that were chosen before
later data came. Where all of these data are remembered it can be had as if they came now, as one
batch: points and ε are fitted to the bound on all of them, which takes for noise what the budget
leaves, and the factor is what the data say on these points. That is done when a stream has grown by
half, so that it is rare; batches that come between are absorbed at the ε that is there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.anew import onto
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.optimiser import Report
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.gp.strategies.learning_sample import LONG_STREAM
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.gp.strategies.remembered import is_complete
from streaming_gp.gp.strategies.two_scales import TwoScaleFactor, at_noise, num_data, of_two_scales
from streaming_gp.linalg import LOG_TWO_PI

GROWTH = 1.5
"""A stream has grown by so much when the next fit is due."""
ITERATIONS = 9
"""Of a stream as long as a budget is to last for; a shorter one takes a share of them, as the next
fit goes on from there."""
DATA_PER_POINT = 5
"""So many data, at random, say where points are best."""

MOST_POINTS = 1000
"""A fit on more points takes longer than all updates between two of them."""


def serves(fitter: Fitter, ledger: GPLedger) -> bool:
    """Whether the merged factor can be had anew, and its ε is to be that of all data alike."""
    forgets = fitter.local.hyperparameters.forget(ledger) is not ledger  # what forgets copies
    if forgets or not fitter.anew.is_possible or MERGED not in ledger.factors:
        return False
    merged = of_two_scales(ledger.factors[MERGED])
    return len(merged.Z) <= MOST_POINTS and is_complete(merged)


def fitted(
    fitter: Fitter, ledger: GPLedger, move: bool, report: Report = lambda *_: None
) -> GPLedger:
    """The ledger with its merged factor fitted anew, if that is due and rounding allows it.

    Of ε the merged factor alone speaks then: q(ε) has its mean at the new ε and keeps its width.
    The noise stays as it is until the next fit will see a long stream. Before that, a budget holds
    the data so well that they seem to have less of it.

    :param move: Whether points may move.
    :param report: Called with (iteration, bound).
    """
    number = num_data(ledger)
    merged = of_two_scales(ledger.factors[MERGED])
    if number < GROWTH * merged.num_fitted:
        return ledger
    with suppress(NumericalError):
        share = min(1.0, number / LONG_STREAM)
        ledger = _fitted(fitter, ledger, merged, share, move, report)
    now = replace(of_two_scales(ledger.factors[MERGED]), num_fitted=number)
    return ledger.replaced(MERGED, now)


def _fitted(
    fitter: Fitter,
    ledger: GPLedger,
    merged: TwoScaleFactor,
    share: float,
    move: bool,
    report: Report,
) -> GPLedger:
    """The same, where ``share`` of a long stream has come."""
    assert merged.remembered is not None
    local, before = fitter.local, fitter.location(ledger.posterior)
    (points,) = plain(Process(merged.pseudo_observations))
    X, Y = merged.remembered.data
    some = np.random.default_rng(len(X)).permutation(len(X))[: DATA_PER_POINT * len(points.Z)]
    iterations, hold_noise = int(np.ceil(share * ITERATIONS)), share * GROWTH < 1.0
    Z, epsilon = fitter.anew.best(
        (X[some], Y[some]), points, before, iterations, move, hold_noise, report
    )
    precision = local.noise_precision(epsilon, X)
    told = SingleObservations.of_data(X, Y, precision, local.gp.num_groups)
    said, constant = onto(PriorAt(local.prior, epsilon[None]), told, Z, points.nugget)
    constant += 0.5 * float(np.sum(np.log(precision) - LOG_TWO_PI))
    noises = (float(np.mean(1.0 / one)) for one in (local.noise_precision(before, X), precision))
    unit = ledger.prior.unit_of_epsilon
    factors = {
        name: replace(one, hyperparameters=unit) for name, one in at_noise(ledger, *noises).items()
    }
    factors[MERGED] = replace(
        merged,
        pseudo_observations=(said,),
        hyperparameters=_moved(ledger, epsilon),
        log_scale=constant,
    )
    return ledger.with_factors(factors)


def _moved(ledger: GPLedger, epsilon: np.ndarray) -> expfam.Factor:
    """The factor of ε that moves the mean of q(ε) to ``epsilon``, if there is no other."""
    q, prior = ledger.posterior.hyperparameters, ledger.prior.hyperparameters
    assert q is not None
    assert prior is not None
    moved = type(q).from_mean_scale(epsilon, np.asarray(q.scale))
    return (moved.as_arrays() / prior).as_arrays()
