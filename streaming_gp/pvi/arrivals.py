"""Clients that come group by group, such as the batches of several streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.damping import Damping
from streaming_gp.pvi.engine import Session
from streaming_gp.pvi.history import Traffic
from streaming_gp.pvi.schedule import collect, submit
from streaming_gp.pvi.server import Server


@typed
@dataclass(frozen=True)
class Arrivals:
    """Round t is the t-th group. Who has no factor yet is asked at once, under one posterior, and
    enters in full; then each of the group but the first is asked again, in turn.

    Clients that do not know of one another explain the same twice: answers that enter together go
    too far where their data agree, and private pseudo-points come to lie on the same. Asked again,
    each sees the others in its cavity. Let it choose its points anew,
    ``GPUpdate(keep_points=False)``.

    Groups that have factors are visited again if there are more rounds than groups, each client in
    turn.

    :param groups: The names of the clients that come together, in the order in which they come.
    :param again: Whether clients are asked again. If not, everybody's first answer stays.
    :raises InvalidDataError: if there is no group, or an empty one.
    """

    groups: Sequence[Sequence[str]]
    again: bool = True

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise InvalidDataError(f"wanted groups of names of clients, got {self.groups!r:.100}")

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        traffic = Traffic()
        group = list(self.groups[number % len(self.groups)])
        new = [name for name in group if name not in server.factors]
        self._ask(server, session, new, progress, traffic)
        if self.again or not new:
            for name in group[1:] if new else group:
                self._ask(server, session, [name], progress, traffic)
        return traffic

    def _ask(
        self,
        server: Server,
        session: Session,
        names: Iterable[str],
        progress: float,
        traffic: Traffic,
    ) -> None:
        """Ask clients under one posterior; their answers enter in full."""
        together = list(names)
        if together:
            submit(server, session, together, traffic, None)
            rule = Damping(1.0, len(together))
            collect(server, session, rule, progress, traffic, len(together))
