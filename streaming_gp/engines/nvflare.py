"""Clients in other organisations, on NVFlare's certificates and connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streaming_gp.engines import nvflare_cell as cells
from streaming_gp.engines.nvflare_kit import Kit, read_kit
from streaming_gp.engines.nvflare_session import PATIENCE, NVFlareSession
from streaming_gp.engines.remote import ANSWER, QUESTION, RESULT, keep, places_of, refuse_missed
from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.desk import Desk, UnknownQuestionError


@typed
@dataclass(frozen=True)
class NVFlare:
    """Sites that start on their own, behind their own doors, and connect to the coordinator.

    It uses what NVFlare provisions and how its parts are connected: a certificate for each
    participant, TLS with certificates on both sides, and connections that only sites open. It does
    not use NVFlare's jobs, which end with the process of any of their parts. The coordinator runs
    :func:`~streaming_gp.pvi.fit`; each site runs :func:`~streaming_gp.pvi.serve`. What travels is
    messages of this package, as bytes, and no objects.

    A question is put again, to whichever process of the site is there, until it is answered or
    overdue: sites and network may come and go.

    :param kit: The folder that ``nvflare provision`` made for this participant.
    :param deadline: The seconds for an answer; None waits for ever. An answer that is missing by
        then is reported, and the site is asked anew in the next round.
    :param timeout: The seconds that a message may travel before it is taken for lost. A connection
        that breaks is noticed at once.
    :param address: The host and port to listen at, for a coordinator, or to connect to, for a site,
        as in "10.0.0.1:8002"; those of the kit if None.
    :param inbox: The file that a site keeps the newest result in that the coordinator has published
        (``publish``); None refuses them.
    :raises InvalidDataError: if a number of seconds is not positive.
    """

    kit: str | os.PathLike[str]
    deadline: float | None = None
    timeout: float = 60.0
    address: str | None = None
    inbox: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        require_positive("timeout", self.timeout)
        if self.deadline is not None:
            require_positive("deadline", self.deadline)

    # ---- the coordinator's end ----

    @contextmanager
    def session(self, clients: Clients) -> Iterator[NVFlareSession]:
        """Let sites in for the time of a ``with`` block.

        :raises InvalidDataError: if NVFlare is not installed, the kit is none of a coordinator, or
            a client is no ``Site``: no data are sent.
        """
        kit = self._kit_of(coordinator=True)
        session = self._session_with(places_of(clients))
        with cells.connected(kit, self.address, session.connect):
            try:
                yield session
            finally:
                session.close()

    def publish(self, places: Iterable[str], content: bytes) -> None:
        """Send a result to places, such as the bytes of a file that ``gp.export`` has written.

        :param places: The names in their certificates.
        :param content: What each of them finds in its inbox.
        :raises NoAnswerError: if places refuse it, or are not there by the deadline; says which.
        :raises InvalidDataError: as :meth:`session`.
        """
        names = list(places)
        kit, session = self._kit_of(coordinator=True), self._session_with({n: n for n in names})
        with cells.connected(kit, self.address, session.connect):
            missed = {name: why for name in names if (why := session.tell(name, content))}
        refuse_missed(missed)

    def _session_with(self, places: dict[str, str]) -> NVFlareSession:
        return NVFlareSession(places, self.deadline, self.timeout)

    # ---- a site's end ----

    @contextmanager
    def open(self, desk: Desk) -> Iterator[None]:
        """Connect sites with the coordinator for the time of a ``with`` block.

        :raises InvalidDataError: if NVFlare is not installed, or the kit is not of the place where
            these sites say that they are.
        """
        kit = self._kit_of(coordinator=False)
        strangers = [
            s.client_id for s in desk.sites.values() if (s.place or s.client_id) != kit.name
        ]
        if strangers:
            raise InvalidDataError(f"{self.kit} is the kit of {kit.name!r}, not of {strangers}")

        replies = {
            QUESTION: lambda content: desk.answer(desk.put(content), PATIENCE),
            ANSWER: lambda content: desk.answer(content.decode(errors="replace"), PATIENCE),
            RESULT: self._keep,
        }

        def prepare(cell: Any) -> None:
            for topic, reply in replies.items():
                cell.register_request_cb(cells.CHANNEL, topic, _replying(reply))

        with cells.connected(kit, self.address, prepare):
            yield

    def _keep(self, content: bytes) -> None:
        keep(content, self.inbox)

    def _kit_of(self, coordinator: bool) -> Kit:
        kit = read_kit(self.kit)
        if kit.is_coordinators != coordinator:
            wanted, found = ("a coordinator", "a site")[:: 1 if coordinator else -1]
            raise InvalidDataError(f"wanted the kit of {wanted}, got that of {found}: {self.kit}")
        return kit


def _replying(reply: Callable[[bytes], bytes | None]) -> Callable[[Any], Any]:
    """What NVFlare calls with a request.

    :param reply: Makes the bytes of the reply from those of the request; None if there are none
        yet.
    """

    def replied(request: Any) -> Any:
        from nvflare.fuel.f3.cellnet.defs import ReturnCode
        from nvflare.fuel.f3.cellnet.utils import make_reply

        try:
            return cells.message_of(reply(bytes(request.payload or b"")) or b"")
        except UnknownQuestionError as error:
            return make_reply(ReturnCode.INVALID_SESSION, error=str(error))
        except (StreamingGPError, OSError) as error:
            cells.LOG.warning("refused what the coordinator sent: %s", error)
            return make_reply(ReturnCode.INVALID_REQUEST, error=str(error))

    return replied
