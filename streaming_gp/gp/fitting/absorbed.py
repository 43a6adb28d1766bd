"""What a batch says that is absorbed."""

from __future__ import annotations

from typing import NamedTuple

from streaming_gp.gp.process.pseudo_observations import PseudoObservations


class Absorbed(NamedTuple):
    """What a batch says of its points, and what is reported of it.

    :param observations: As a factor holds it.
    :param free_energy: The bound, in nats.
    :param unexplained: As in :class:`.FitReport`.
    :param clipped_sites: Likewise.
    :param shown_error: Likewise.
    """

    observations: PseudoObservations
    free_energy: float
    unexplained: float = 0.0
    clipped_sites: int = 0
    shown_error: float | None = None
