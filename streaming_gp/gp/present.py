"""What a model holds at one moment, as one value that is replaced as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """

    ledger: GPLedger
    num_latent_gps: int
    dims: tuple[int | None, int | None]
    num_updates: int = 0
    shift: float = math.inf
    time: float | None = None
