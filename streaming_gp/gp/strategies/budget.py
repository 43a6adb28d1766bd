"""Fewer factors, fewer points: merges factors and keeps a budget."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import mul
from types import MappingProxyType

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.protocol import MERGED


def within_budget(
    fitter: Fitter,
    ledger: GPLedger,
    budget: int,
    wanted: int,
    epsilon: np.ndarray,
    kept: Collection[str],
    move: bool,
) -> GPLedger:
    """The ledger with room for ``wanted`` more points.

    All but the newest batches, which keep a quarter of the budget, are merged onto half of it. A
    quarter becomes free, so that merging is rare and its cost is spread over many batches.

    :param budget: The largest number of points of all batches together.
    :param epsilon: The ε [E] at which information is weighed against location.
    :param kept: Names of factors that must stay as they are.
    :param move: Whether points may move.
    :raises InvalidDataError: if the factors that must stay leave no room.
    """
    if ledger.posterior.num_pseudo_points + wanted <= budget:
        return ledger
    apart = {*newest(ledger, budget // 4), *kept}
    older = [name for name in ledger.factors if name not in apart]
    if older:
        number = min(budget // 2, budget - wanted - _num_points(ledger, apart))
        if number >= 1:
            ledger = merged(fitter, ledger, older, number, epsilon, move)
    if ledger.posterior.num_pseudo_points + wanted > budget:
        raise InvalidDataError(
            f"no room for {wanted} more pseudo-points: the factors that stay hold "
            f"{ledger.posterior.num_pseudo_points} of a budget of {budget}"
        )
    return ledger


def compressed(
    fitter: Fitter, ledger: GPLedger, number: int, epsilon: np.ndarray, move: bool
) -> tuple[GPLedger, float]:
    """All factors as one on at most ``number`` points, and the nats that this loses."""
    after = merged(fitter, ledger, list(ledger.factors), number, epsilon, move)
    before, now = (
        fitter.factorisations.log_normaliser(epsilon, one.posterior) for one in (ledger, after)
    )
    return after, before - now


def merged(
    fitter: Fitter,
    ledger: GPLedger,
    names: Collection[str],
    number: int,
    epsilon: np.ndarray,
    move: bool,
) -> GPLedger:
    """The named factors as one on at most ``number`` of their points, which may move."""
    after = multiplied(ledger, names)
    factor = after.factors[MERGED]
    if len(factor.Z) <= number:
        return after
    iterations = fitter.optimiser.projection_iterations if move else 0
    fewer = fitter.merging.thinned(factor, said_beside(after, MERGED), epsilon, number, iterations)
    return after.replaced(MERGED, fewer)


def multiplied(ledger: GPLedger, names: Collection[str]) -> GPLedger:
    """The named factors, and the one that was merged before, as one factor: their product."""
    joining = [name for name in ledger.factors if name == MERGED or name in names]
    product = reduce(mul, (ledger.factors[name] for name in joining))
    kept = {name: f for name, f in ledger.factors.items() if name not in joining}
    return pvi.Ledger(ledger.prior, MappingProxyType({MERGED: product, **kept}))


def said_beside(ledger: GPLedger, name: str) -> Process:
    """What all other factors say of f; of ε alone they need not say anything proper."""
    others = (factor for other, factor in ledger.factors.items() if other != name)
    return Process(tuple(one for factor in others for one in factor.pseudo_observations))


def newest(ledger: GPLedger, most_points: int) -> list[str]:
    """The newest batches that hold at most so many points together."""
    names: list[str] = []
    points = 0
    for name in reversed(list(ledger.factors)):
        points += len(ledger.factors[name].Z)
        if points > most_points or name == MERGED:
            break
        names.append(name)
    return names


def _num_points(ledger: GPLedger, names: Collection[str]) -> int:
    return sum(len(factor.Z) for name, factor in ledger.factors.items() if name in names)
