"""What a model holds at one moment, as one value that is replaced as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fitting.projection import GPLedger


@dataclass(frozen=True, eq=False)
class Present:
    """What a stream has come to.

    :param ledger: Prior and factors.
    :param num_latent_gps: The number L of latent functions.
    :param dims: D and P of the data; None where that is not known before the first batch.
    :param num_updates: The number of batches that have been learned from.
    :param shift: How far the newest update that learned moved ε; see
        :meth:`LearningSchedule.wants`.
    :param time: The time of the newest batch; None before the first one.
    :param only_class: The class of all labels so far, while there is but one.
    """

    ledger: GPLedger
    num_latent_gps: int
    dims: tuple[int | None, int | None]
    num_updates: int = 0
    shift: float = math.inf
    time: float | None = None
    only_class: float | None = None


T = TypeVar("T")


class ReadOnly(Generic[T]):
    """An attribute that says how else to get what assigning to it is meant to do.

    :param place: The name of the attribute that holds the value.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        value: T = vars(owner)[self._place]
        return value

    def __set__(self, owner: Any, value: T) -> None:
        raise InvalidDataError(
            f"{self._place[1:]} cannot be changed, as what was learned so far rests on them: make "
            "a model with others by StreamingGP(...) or StreamingGP.from_state(...)"
        )
