"""When hyperparameters are learned; between these updates a batch is only absorbed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


@runtime_checkable
class LearningSchedule(Protocol):
    """Says of every update of a stream whether it learns: a frozen dataclass of plain fields."""

    def wants(self, num_updates: int, shift: float) -> bool:
        """Whether the next update learns.

        :param num_updates: The number of batches so far.
        :param shift: How far the newest update that learned moved ε, as a root mean square over
            its entries, each in standard deviations of q(ε) (in e-folds where ε is a point);
            infinite before there was one.
        """
        ...


@storable
@dataclass(frozen=True)
class EveryUpdate:
    """Learn at every update.

    :param every: Learn at every update whose number is a multiple of this, the first one among
        them.
    :raises InvalidDataError: if it is not a positive integer.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if not is_positive_integer(self.every):
            raise InvalidDataError(f"every must be a positive integer, got {self.every!r}")

    def wants(self, num_updates: int, shift: float) -> bool:
        return num_updates % self.every == 0


@storable
@typed
@dataclass(frozen=True)
class UntilSettled:
    """Learn until an update hardly moves ε any more, and then now and again.

    One small step is not the end of learning: small batches move ε little each, and a long way
    together. So every update learns that makes the stream longer by a certain share, too.

    :param shift: ε has settled when an update moved it by less, in standard deviations of q(ε).
    :param every: Learn at every update whose number is a multiple of this all the same, so that a
        stream that changes is noticed; None for never.
    :param growth: Learn all the same when the stream has grown by this share of its updates; None
        for never.
    :raises InvalidDataError: if a number is not positive.
    """

    shift: float = 0.5
    every: int | None = 20
    growth: float | None = 0.5

    def __post_init__(self) -> None:
        for name in ("shift", "growth"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise InvalidDataError(f"{name} must be positive, got {value!r}")
        if self.every is not None and not is_positive_integer(self.every):
            raise InvalidDataError(f"every must be a positive integer or None, got {self.every!r}")

    def wants(self, num_updates: int, shift: float) -> bool:
        again = self.every is not None and num_updates % self.every == 0
        return again or shift >= self.shift or self._has_grown(num_updates)

    def _has_grown(self, num_updates: int) -> bool:
        """Whether the next update is the first beyond another power of ``1 + growth``."""
        if self.growth is None or num_updates == 0:
            return False
        if num_updates * self.growth < 1.0:  # powers lie closer than numbers
            return True
        before, after = (math.log(n, 1.0 + self.growth) for n in (num_updates, num_updates + 1))
        return math.floor(before) < math.floor(after)


@storable
@dataclass(frozen=True)
class NeverLearn:
    """Absorb every batch at the q(ε) that is there."""

    def wants(self, num_updates: int, shift: float) -> bool:
        return False
