"""Fewer factors, fewer points: merges factors and keeps a budget."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import mul
from types import MappingProxyType

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.strategies.protocol import MERGED

MOST_MERGED = 2000
"""Within a larger budget data are dropped, those that the others predict best, as merging costs the
cube of it."""


def within_budget(
    fitter: Fitter,
    ledger: GPLedger,
    budget: int,
    epsilon: np.ndarray,
    kept: Collection[str],
    move: bool,
) -> GPLedger:
    """The ledger with at most ``budget`` points: of the older factors' points those go by which
    least is lost.

    The newest batch stays apart, and others while they hold a tenth of the budget together. Where
    batches are small, a tenth of the budget becomes free at once, so that merging is rare and its
    cost is spread over many of them.

    :param budget: The largest number of points of all batches together.
    :param epsilon: The ε [E] at which information is weighed against location.
    :param kept: Names of factors that must stay as they are.
    :param move: Whether points may move.
    :raises InvalidDataError: if the factors that must stay leave no room.
    """
    if ledger.posterior.num_pseudo_points <= budget:
        return ledger
    if budget > MOST_MERGED and not kept:
        within = fitter.data.within(ledger, budget, epsilon)
        if within is not None:
            return within
    tenth = budget // 10
    apart = {*newest(ledger, tenth, budget // 2), *kept}
    held = sum(len(one.Z) for name, one in ledger.factors.items() if name in apart)
    spare = tenth if len(list(ledger.factors.values())[-1].Z) <= tenth else 0
    older = [name for name in ledger.factors if name not in apart]
    number = min(budget - held, max(budget - held - spare, 1))
    if number < 1 or not older:
        raise InvalidDataError(
            f"no room for so many pseudo-points: the factors that stay hold {held} of a budget of "
            f"{budget}"
        )
    if list(ledger.factors) == older and len(older) == 1 and older[0] != MERGED:  # keeps its name
        fewer = fitter.merged(ledger.factors[older[0]], epsilon, number, move)
        return ledger.replaced(older[0], fewer)
    return merged(fitter, ledger, older, number, epsilon, move)


def compressed(
    fitter: Fitter, ledger: GPLedger, number: int, epsilon: np.ndarray, move: bool
) -> tuple[GPLedger, float]:
    """All factors as one on at most ``number`` points, and the nats that this loses."""
    after = merged(fitter, ledger, list(ledger.factors), number, epsilon, move)
    before, now = (fitter.log_normaliser(epsilon, one.posterior) for one in (ledger, after))
    return after, before - now


def merged(
    fitter: Fitter,
    ledger: GPLedger,
    names: Collection[str],
    number: int,
    epsilon: np.ndarray,
    move: bool,
) -> GPLedger:
    """The named factors as one on at most ``number`` of their points, which may move.

    What newer batches say does not count in this, as they are merged later on.
    """
    after = multiplied(ledger, names)
    factor = after.factors[MERGED]
    if len(factor.Z) <= number:
        return after
    return after.replaced(MERGED, fitter.merged(factor, epsilon, number, move))


def multiplied(ledger: GPLedger, names: Collection[str]) -> GPLedger:
    """The named factors, and the one that was merged before, as one factor: their product."""
    joining = [name for name in ledger.factors if name == MERGED or name in names]
    product = reduce(mul, (ledger.factors[name] for name in joining))
    kept = {name: f for name, f in ledger.factors.items() if name not in joining}
    return pvi.Ledger(ledger.prior, MappingProxyType({MERGED: product, **kept}))


def newest(ledger: GPLedger, some_points: int, most_points: int) -> list[str]:
    """The newest batch, if it holds no more than ``most_points``, and those before it while all
    hold at most ``some_points`` together.
    """
    names: list[str] = []
    points = 0
    for name in reversed(list(ledger.factors)):
        points += len(ledger.factors[name].Z)
        if name == MERGED or points > (some_points if names else most_points):
            break
        names.append(name)
    return names
