"""How earlier batches lose their say of f, where the function changes with time.

What they say of ε stays: :class:`VariationalHyperparameters` has a forgetting factor of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, runtime_checkable

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.strategies.budget import multiplied
from streaming_gp.gp.strategies.protocol import (
    MERGED,
    PseudoPointStrategy,
    check_allowed,
    check_window,
)
from streaming_gp.inputs import require_fraction, require_positive_integer, typed
from streaming_gp.serialization import storable


@runtime_checkable
class Forgetting(Protocol):
    """How much earlier factors still say of f when a new batch comes: a frozen dataclass of plain
    fields.
    """

    def check(self, pseudo_points: PseudoPointStrategy) -> None:
        """Refuse pseudo-points that this cannot be done to.

        :raises InvalidDataError: naming them.
        """
        ...

    def forget(self, ledger: GPLedger, elapsed: float) -> GPLedger:
        """The ledger that a new batch finds.

        :param elapsed: The time since the batch before, at least 0; 1 where nobody has said.
        """
        ...


@storable
@dataclass(frozen=True)
class ForgetNothing:
    """The function stays the same, and every batch counts in full for ever.

    >>> steady = sgp.StreamingGP(*parts, forgetting=sgp.ForgetNothing())
    """

    def check(self, pseudo_points: PseudoPointStrategy) -> None:
        """Every strategy will do."""

    def forget(self, ledger: GPLedger, elapsed: float) -> GPLedger:
        return ledger


@storable
@typed
@dataclass(frozen=True)
class Fading:
    """All that factors say of f fades: ``q(f) ∝ p(f) Π_a t_a(f)^(λ^age)`` when a new batch comes.

    Where no data come the function returns to its prior (stabilised forgetting: Kulhavý & Zarrop
    1993). With Gaussian noise the data of a factor have the noise variance σ² / λ^age. Only
    :meth:`StreamingGP.update` fades, and a batch that is revisited counts in full again.

    :param power: λ in (0, 1], for every unit of time. The time is counted in batches unless
        ``update`` is told what time it is.
    :raises InvalidDataError: if the power is out of its range.

    >>> fading = sgp.StreamingGP(*parts, forgetting=sgp.Fading(0.9))
    >>> info = fading.update((X, Y), time=0.0)
    >>> info = fading.update((X, Y), time=2.0)  # the first batch counts .9² then
    """

    power: float

    def __post_init__(self) -> None:
        require_fraction("power", self.power)

    def check(self, pseudo_points: PseudoPointStrategy) -> None:
        check_allowed(pseudo_points, "fading")

    def forget(self, ledger: GPLedger, elapsed: float) -> GPLedger:
        return faded(ledger, self.power**elapsed)


@storable
@typed
@dataclass(frozen=True)
class SlidingWindow:
    """The newest batches alone say what f is: what older ones said is divided out.

    At known hyperparameters that is what :meth:`StreamingGP.remove` does; q(ε) remembers all
    batches. Those that were merged by :meth:`StreamingGP.compress` count as one.

    :param num_batches: The number of batches in the window, the new one among them.
    :raises InvalidDataError: if it is not a positive integer.

    >>> window = sgp.StreamingGP(*parts, forgetting=sgp.SlidingWindow(1))
    >>> infos = [window.update(shard) for shard in shards]
    >>> sum(len(one.Z) for one in window.factors.values())
    10
    """

    num_batches: int

    def __post_init__(self) -> None:
        require_positive_integer("num_batches", self.num_batches)

    def check(self, pseudo_points: PseudoPointStrategy) -> None:
        check_window(pseudo_points, self.num_batches)

    def forget(self, ledger: GPLedger, elapsed: float) -> GPLedger:
        names = [name for name, factor in ledger.factors.items() if factor.pseudo_observations]
        return _without_function(ledger, names[: max(0, len(names) + 1 - self.num_batches)])


def faded(ledger: GPLedger, power: float) -> GPLedger:
    """The ledger in which all that factors say of f is raised to a power in [0, 1]."""
    if power == 1.0:
        return ledger
    if power == 0.0:
        return _without_function(ledger, ledger.factors)
    return ledger.with_factors({name: one.faded(power) for name, one in ledger.factors.items()})


def _without_function(ledger: GPLedger, names: Collection[str]) -> GPLedger:
    """The ledger in which these factors say nothing of f, and are one factor of ε."""
    if not names:
        return ledger
    silent = ledger.with_factors({name: ledger.factors[name].faded(0.0) for name in names})
    joined = multiplied(silent, names)
    of_epsilon = joined.factors[MERGED].hyperparameters
    return joined.without(MERGED) if of_epsilon is None else joined


def next_time(newest: float | None, time: float | None) -> float:
    """The time of a batch that comes now: one later than the newest, if nobody says.

    :param newest: The time of the newest batch; None if there was none.
    :param time: What is said.
    :raises InvalidDataError: if that is no finite number, or earlier than the newest.
    """
    if time is None:
        return 0.0 if newest is None else newest + 1.0
    if not (isinstance(time, Real) and math.isfinite(time)):
        raise InvalidDataError(f"time must be a finite number, got {time!r}")
    if newest is not None and time < newest:
        raise InvalidDataError(f"time runs backwards: the newest batch has {newest}, got {time}")
    return float(time)
