"""What a batch says that is absorbed."""

from __future__ import annotations

from typing import NamedTuple

from streaming_gp.gp.process.observations import PseudoObservations


class Left(NamedTuple):
    """What the points of a solution leave of the data; see :class:`.FitReport`."""

    unexplained: float = 0.0
    shown_error: float | None = None


class Absorbed(NamedTuple):
    """What a batch says of its points, and what is reported of it.

    :param observations: As a factor holds it.
    :param free_energy: The bound, in nats.
    :param left: What the points leave.
    :param clipped_sites: As in :class:`.FitReport`.
    """

    observations: PseudoObservations
    free_energy: float
    left: Left = Left()
    clipped_sites: int = 0
