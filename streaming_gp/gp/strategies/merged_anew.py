"""The merged factor anew, from all data that were merged, while these are remembered.

What is merged time and again is projected at the ε of each time, on points that were chosen before
later data came. Where all of these data are remembered it can be had as if they came now, as one
batch: points are moved to where the bound on all of them is largest, and the factor is what the
data say on these points. That is done when a stream has grown by half, so that it is rare.

At the fine ε, which batches go on to learn, points move alone (:func:`on_better_points`). At the
coarse one ε is fitted along with them (:func:`fitted`), as this bound takes for noise what the
budget leaves, and batches that come between are absorbed at the ε that is there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.anew import onto
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.optimiser import Report
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.gp.strategies.learning_sample import LONG_STREAM
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.gp.strategies.remembered import is_complete
from streaming_gp.gp.strategies.two_scales import TwoScaleFactor, at_noise, num_data, of_two_scales
from streaming_gp.numerics.linalg import LOG_TWO_PI

GROWTH = 1.5
"""A stream has grown by so much when the next fit is due."""
ITERATIONS = 9
"""Of a stream as long as a budget is to last for; a shorter one takes a share of them, as the next
fit goes on from there."""
DATA_PER_POINT = 5
"""So many data, at random, say where points are best."""

MOST_LOST = 1.0
"""Nats for each target. Projections that have lost more have left more than the noise: better
points are not enough then."""
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
    merged = of_two_scales(ledger.factors[MERGED])
    if not _is_due(ledger, merged):
        return ledger
    after = ledger
    with suppress(NumericalError):
        after = _fitted(fitter, ledger, merged, move, report)
    return _marked(ledger, after)


def on_better_points(fitter: Fitter, ledger: GPLedger, move: bool) -> GPLedger:
    """The ledger with its merged factor anew at the ε [E] that it has, if that is due and possible.

    :param move: Whether points may move; if not, the factor alone is made anew.
    """
    if not serves(fitter, ledger):
        return ledger
    merged = of_two_scales(ledger.factors[MERGED])
    assert merged.remembered is not None
    knows_all = merged.remembered.targets.size >= merged.num_projected
    if not (knows_all and merged.lost_per_target <= MOST_LOST and _is_due(ledger, merged)):
        return ledger
    epsilon, after = fitter.location(ledger.posterior), ledger
    with suppress(NumericalError):
        Z = merged.Z
        if move:
            Z, _ = _best(fitter, merged, epsilon, _iterations(ledger), learn=False)
        said, constant = _on(fitter, merged, epsilon, Z)
        better = replace(merged, pseudo_observations=(said,), log_scale=constant, widened=1.0)
        after = ledger.replaced(MERGED, better)
    return _marked(ledger, after)


def _is_due(ledger: GPLedger, merged: TwoScaleFactor) -> bool:
    return num_data(ledger) >= GROWTH * merged.num_fitted


def _share(ledger: GPLedger) -> float:
    """How much of a long stream has come, in (0, 1]."""
    return min(1.0, num_data(ledger) / LONG_STREAM)


def _iterations(ledger: GPLedger) -> int:
    return int(np.ceil(_share(ledger) * ITERATIONS))


def _marked(before: GPLedger, after: GPLedger) -> GPLedger:
    """The ledger, which knows how many data there were when its merged factor was fitted."""
    merged = of_two_scales(after.factors[MERGED])
    return after.replaced(MERGED, replace(merged, num_fitted=num_data(before)))


def _best(
    fitter: Fitter, merged: TwoScaleFactor, epsilon: np.ndarray, iterations: int, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Places [M, D] and ε [E] that raise the bound on the data, or on a random part of many."""
    assert merged.remembered is not None
    (points,) = plain(Process(merged.pseudo_observations))
    X, Y = merged.remembered.data
    some = np.random.default_rng(len(X)).permutation(len(X))[: DATA_PER_POINT * len(points.Z)]
    return fitter.anew.best((X[some], Y[some]), points, epsilon, iterations, **options)


def _on(
    fitter: Fitter, merged: TwoScaleFactor, epsilon: np.ndarray, Z: np.ndarray
) -> tuple[PseudoObservations, float]:
    """What the data say on points Z [M, D] at ε [E], and its log constant."""
    assert merged.remembered is not None
    local, (points,) = fitter.local, plain(Process(merged.pseudo_observations))
    X, Y = merged.remembered.data
    precision = local.noise_precision(epsilon, X)
    told = SingleObservations.of_data(X, Y, precision, local.gp.num_groups)
    said, constant = onto(PriorAt(local.prior, epsilon[None]), told, Z, points.nugget)
    return said, constant + 0.5 * float(np.sum(np.log(precision) - LOG_TWO_PI))


def _fitted(
    fitter: Fitter, ledger: GPLedger, merged: TwoScaleFactor, move: bool, report: Report
) -> GPLedger:
    """The same, which is due."""
    assert merged.remembered is not None
    local, before = fitter.local, fitter.location(ledger.posterior)
    X, hold_noise = merged.remembered.Z, _share(ledger) * GROWTH < 1.0
    options = {"move": move, "hold_noise": hold_noise, "report": report}
    Z, epsilon = _best(fitter, merged, before, _iterations(ledger), **options)
    said, constant = _on(fitter, merged, epsilon, Z)
    noises = (float(np.mean(1.0 / local.noise_precision(at, X))) for at in (before, epsilon))
    unit = ledger.prior.unit_of_epsilon
    factors = {
        name: replace(one, hyperparameters=unit) for name, one in at_noise(ledger, *noises).items()
    }
    factors[MERGED] = replace(
        merged,
        pseudo_observations=(said,),
        hyperparameters=_moved(ledger, epsilon),
        log_scale=constant,
        widened=1.0,
    )
    return ledger.with_factors(factors)


def _moved(ledger: GPLedger, epsilon: np.ndarray) -> expfam.Factor:
    """The factor of ε that moves the mean of q(ε) to ``epsilon``, if there is no other."""
    q, prior = ledger.posterior.hyperparameters, ledger.prior.hyperparameters
    assert q is not None
    assert prior is not None
    moved = type(q).from_mean_scale(epsilon, np.asarray(q.scale))
    return (moved.as_arrays() / prior).as_arrays()
