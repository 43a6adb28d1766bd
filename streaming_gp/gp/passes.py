"""What a pass over one batch does to the ledger, for each kind of pseudo-points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import mul
from types import MappingProxyType

import numpy as np

from streaming_gp import pvi
from streaming_gp.gp.carrying import on_fewer_points
from streaming_gp.gp.factor import Row
from streaming_gp.gp.local_update import FitReport, LocalUpdate
from streaming_gp.gp.optimiser import Report
from streaming_gp.gp.posing import Data
from streaming_gp.gp.process import Process
from streaming_gp.gp.pseudo_points import PrivatePseudoPoints, SharedPseudoPoints

GPLedger = pvi.Ledger[Process]

FOLDED = "folded"
"""Key of the factor that holds the batches whose own factors are kept no longer."""


@dataclass(frozen=True)
class Visit:
    """One batch at hand.

    :param batch_id: whose factor is refined.
    :param data: X [N, D] and Y [N, P], validated.
    :param seed: of the common random numbers over ε.
    :param report: called with (iteration, free energy).
    :param damping: ρ in (0, 1]; with ρ < 1 a batch's points stay where they are.
    """

    batch_id: str
    data: Data
    seed: int
    report: Report
    damping: float = 1.0


def client_pass(update: LocalUpdate, ledger: GPLedger, visit: Visit) -> tuple[GPLedger, FitReport]:
    """Refine the factor of one batch; ``ledger`` itself never changes."""
    visited = shared_pass if update.pseudo_points.absorbs else private_pass
    return visited(update, ledger, visit)


def private_pass(update: LocalUpdate, ledger: GPLedger, visit: Visit) -> tuple[GPLedger, FitReport]:
    """Cavity, fit on the batch's own points, factor, replace."""
    at = _own_row(ledger, visit.batch_id)
    fit = partial(
        update.fit, data=visit.data, seed=visit.seed, report=visit.report,
        at=at, hold=at is not None and visit.damping < 1.0,
    )  # fmt: skip
    result = pvi.client_pass(ledger, visit.batch_id, fit, visit.damping)
    return result.ledger, result.report


def shared_pass(update: LocalUpdate, ledger: GPLedger, visit: Visit) -> tuple[GPLedger, FitReport]:
    """Carry all factors over to new shared points, then replace the batch's own."""
    rows = ledger.posterior.rows
    at = rows[0] if rows and not update.pseudo_points.moves else None
    moved, q, report = update.fit_shared(
        ledger, visit.batch_id, visit.data, visit.seed, visit.report, at
    )
    result = pvi.client_pass(moved, visit.batch_id, lambda _: (q, report), visit.damping)
    return result.ledger, report


def _own_row(ledger: GPLedger, batch_id: str) -> Row | None:
    factor = ledger.factors.get(batch_id)
    return factor.rows[0] if factor is not None and len(factor.rows) == 1 else None


def faded(update: LocalUpdate, ledger: GPLedger) -> GPLedger:
    """The ledger that a new batch finds: earlier factors say less of ε, and the same of f."""
    share = update.hyperparameters.forgetting_factor
    if share == 1.0:
        return ledger
    factors = {
        name: replace(factor, hyperparameters=factor.hyperparameters**share)
        for name, factor in ledger.factors.items()
    }
    return pvi.Ledger(ledger.prior, MappingProxyType(factors))


# ---- fewer factors, fewer points ----


def with_room(update: LocalUpdate, ledger: GPLedger, epsilon: np.ndarray) -> GPLedger:
    """The ledger with room for another batch under the strategy's budget.

    All but the newest batches, which keep a quarter of the budget, are folded into half of it. A
    quarter becomes free, so that folding is rare and its cost is spread over many batches.

    :param epsilon: where information is weighed against location [E].
    """
    strategy = update.pseudo_points
    if not isinstance(strategy, PrivatePseudoPoints) or strategy.budget is None:
        return ledger
    if ledger.posterior.num_pseudo_points + strategy.largest_batch <= strategy.budget:
        return ledger
    newest = _newest(ledger, strategy.budget // 4)
    older = [name for name in ledger.factors if name not in newest]
    return folded(update, ledger, older, strategy.budget // 2, epsilon)[0]


def _newest(ledger: GPLedger, most_points: int) -> list[str]:
    """The newest batches that hold at most so many points together."""
    names: list[str] = []
    points = 0
    for name in reversed(list(ledger.factors)):
        points += len(ledger.factors[name].Z)
        if points > most_points or name == FOLDED:
            break
        names.append(name)
    return names


def tidied(update: LocalUpdate, ledger: GPLedger) -> GPLedger:
    """The ledger with no more factors than its strategy keeps apart."""
    strategy = update.pseudo_points
    if not isinstance(strategy, SharedPseudoPoints):
        return ledger
    return _newest_apart(ledger, strategy.kept_batches)


def _newest_apart(ledger: GPLedger, number: int) -> GPLedger:
    """Older factors multiplied into one, which on shared points loses nothing."""
    own = [name for name in ledger.factors if name != FOLDED]
    return _joined(ledger, own[:-number]) if len(own) > number else ledger


def _joined(ledger: GPLedger, names: list[str]) -> GPLedger:
    """The named factors, and the folded one, multiplied into the folded one."""
    joining = [name for name in ledger.factors if name == FOLDED or name in names]
    product = reduce(mul, (ledger.factors[name] for name in joining))
    kept = {name: f for name, f in ledger.factors.items() if name not in joining}
    return pvi.Ledger(ledger.prior, MappingProxyType({FOLDED: product, **kept}))


def folded(
    update: LocalUpdate, ledger: GPLedger, names: list[str], number: int, epsilon: np.ndarray
) -> tuple[GPLedger, float]:
    """The named factors as one on at most ``number`` points, and the nats that this loses."""
    joined = _joined(ledger, names)
    factor = joined.factors[FOLDED]
    if len(factor.Z) <= number:
        return joined, 0.0
    rows = [row for name, f in joined.factors.items() if name != FOLDED for row in f.rows]
    fewer, loss = on_fewer_points(
        update.functions, update.optimiser, Process(tuple(rows)), factor, number, epsilon
    )
    return joined.replaced(FOLDED, fewer), loss


# ---- rounds ----


def synchronous_round(
    update: LocalUpdate, ledger: GPLedger, visits: Mapping[str, Visit]
) -> tuple[GPLedger, dict[str, FitReport]]:
    """Every client refines its factor under the same ledger; then all are replaced at once."""
    reports, factors = {}, {}
    for name, visit in visits.items():
        result, reports[name] = client_pass(update, ledger, visit)
        factors[name] = result.factors[name]
    for name, factor in factors.items():
        ledger = ledger.replaced(name, factor)
    return ledger, reports
