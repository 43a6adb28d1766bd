"""Clients in other organisations, on NVFlare's certificates and connections."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streaming_gp.engines import nvflare_cell as cells
from streaming_gp.engines.remote import (
    ANSWER,
    DEADLINE,
    QUESTION,
    RESULT,
    RemoteSession,
    keep,
    place_of,
    refuse_missed,
)
from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.inputs import Positive, typed
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.desk import Desk, UnknownQuestionError
from streaming_gp.pvi.task import Delivery, LocalTask, encode_task, failure_of

PATIENCE = 10.0
"""So many seconds a site keeps a request waiting for an answer before it says: not yet."""
PAUSE = 0.2
"""The seconds until a site that was not there is looked for again."""


@typed
@dataclass(frozen=True)
class NVFlare:
    """Sites that start on their own, behind their own doors, and connect to the coordinator.

    It uses what NVFlare provisions and how its parts are connected: a certificate for each
    participant, TLS with certificates on both sides, and connections that only sites open. It does
    not use NVFlare's jobs, which end with the process of any of their parts. The coordinator runs
    :func:`~streaming_gp.pvi.fit`; each site runs :func:`~streaming_gp.pvi.serve`. Messages of
    this package travel, as bytes, and no objects.

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
    deadline: Positive | None = DEADLINE
    timeout: Positive = 60.0
    address: str | None = None
    inbox: str | os.PathLike[str] | None = None

    # ---- the coordinator's end ----

    @contextmanager
    def session(self, clients: Clients) -> Iterator[NVFlareSession]:
        """Let sites in for the time of a ``with`` block.

        :raises InvalidDataError: if NVFlare is not installed, the kit is none of a coordinator, or
            a client is no ``Site``: no data are sent.
        """
        kit = self._kit_of(coordinator=True)
        for client in clients.values():
            place_of(client)
        session = NVFlareSession(clients, self.deadline, self.timeout)
        with cells.connected(kit, self.address, session.connect):
            try:
                yield session
            finally:
                session.close()

    def publish(self, places: Iterable[str], content: bytes) -> None:
        """Send a result to places, such as the bytes of a file that ``gp.export`` has written.

        :param places: The names in their certificates.
        :param content: The bytes that each of them finds in its inbox.
        :raises NoAnswerError: if places refuse it, or are not there by the deadline; says which.
        :raises InvalidDataError: as :meth:`session`.
        """
        names = list(places)
        kit = self._kit_of(coordinator=True)
        session = NVFlareSession({}, self.deadline, self.timeout)
        with cells.connected(kit, self.address, session.connect):
            missed = {name: why for name in names if (why := session.tell(name, content))}
        refuse_missed(missed)

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

        replies: dict[str, Callable[[bytes], bytes | None]] = {
            QUESTION: lambda content: desk.answer(desk.put(content), PATIENCE),
            ANSWER: lambda content: desk.answer(content.decode(errors="replace"), PATIENCE),
            RESULT: lambda content: keep(content, self.inbox),
        }

        def prepare(cell: Any) -> None:
            for topic, reply in replies.items():
                cell.register_request_cb(cells.CHANNEL, topic, _replying(reply))

        with cells.connected(kit, self.address, prepare):
            yield

    def _kit_of(self, coordinator: bool) -> cells.Kit:
        kit = cells.read_kit(self.kit)
        if kit.is_coordinators != coordinator:
            wanted, given = ("a coordinator", "a site")[:: 1 if coordinator else -1]
            raise InvalidDataError(f"wanted the kit of {wanted}, got that of {given}: {self.kit}")
        return kit


class NVFlareSession(RemoteSession):
    """Open questions, each pursued by a thread of its own until it is answered or overdue.

    :param clients: The clients, whose places are the names of cells.
    :param deadline: The seconds for an answer; None waits for ever.
    :param timeout: The seconds that a message may travel.
    """

    def __init__(self, clients: Clients, deadline: float | None, timeout: float) -> None:
        super().__init__(deadline)
        self._clients, self._timeout = clients, timeout
        self._cell: Any = None
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closed = threading.Event()

    def connect(self, cell: Any) -> None:
        """Use this cell."""
        self._cell = cell
        cell.set_cell_disconnected_cb(self._give_up_waiting)

    def close(self) -> None:
        """Pursue nothing any more."""
        self._closed.set()

    def _put(self, task: LocalTask) -> None:
        place = place_of(self._clients[task.client_id])
        threading.Thread(target=self._pursue, args=(task, place), daemon=True).start()

    def _wait(self) -> Delivery:
        return self._arrived.get()

    def tell(self, place: str, content: bytes) -> str | None:
        """Send a result to a place, again and again until it has come or is overdue.

        :returns: why it did not come.
        """
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

        begin = self.now
        while self.now <= begin + self._deadline:
            if self._cell.is_cell_connected(place):
                reply = self._requested(place, RESULT, content)
                code = reply.get_header(MessageHeaderKey.RETURN_CODE)
                if code in (ReturnCode.OK, ReturnCode.INVALID_REQUEST):
                    return reply.get_header(MessageHeaderKey.ERROR)
            self._closed.wait(PAUSE)
        return f"it did not come within {self._deadline:g} s"

    # ---- one question ----

    def _pursue(self, task: LocalTask, place: str) -> None:
        name = task.client_id
        question, nonce = encode_task(task), task.nonce.encode()
        asked, is_known = self.now, False
        while not self._closed.is_set():
            if self.now > asked + self._deadline:
                self._arrived.put(self._overdue(name))
                return
            if not self._cell.is_cell_connected(place):
                self._closed.wait(PAUSE)
                continue
            topic = ANSWER if is_known else QUESTION
            reply = self._requested(place, topic, nonce if is_known else question)
            delivery, is_known = _read(task, reply, is_known)
            if delivery is not None:
                self._arrived.put(delivery)
                return
            if not is_known:
                self._closed.wait(PAUSE)

    def _requested(self, place: str, topic: str, content: bytes) -> Any:
        seconds = PATIENCE + self._timeout
        message = cells.message_of(content)
        return self._cell.send_request(cells.CHANNEL, topic, place, message, seconds, optional=True)

    def _give_up_waiting(self, agent: Any) -> None:
        """A reply that was on its way over a broken connection will not come."""
        for waiter in list(self._cell.waiters.values()):
            if agent.get_fqcn() in waiter.targets:
                waiter.set()


def _read(task: LocalTask, reply: Any, was_known: bool) -> tuple[Delivery | None, bool]:
    """The delivery in a reply, if there is one, and whether the site knows the question now."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

    code, name = reply.get_header(MessageHeaderKey.RETURN_CODE), task.client_id
    if code == ReturnCode.OK and not reply.payload:
        return None, True
    if code == ReturnCode.OK:
        size = len(reply.payload)
        if size > task.largest_answer:
            return Delivery(name, None, f"its answer is too large: {size} bytes"), True
        return Delivery(name, bytes(reply.payload)), True
    if code == ReturnCode.INVALID_REQUEST:
        reason = reply.get_header(MessageHeaderKey.ERROR, "no reason given")
        return Delivery(name, None, f"it refused the question: {reason!s:.1000}"), True
    return None, was_known and code != ReturnCode.INVALID_SESSION


def _replying(reply: Callable[[bytes], bytes | None]) -> Callable[[Any], Any]:
    """The callback of NVFlare for a request.

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
            reason = failure_of(error, "this place").reason
            return make_reply(ReturnCode.INVALID_REQUEST, error=reason)

    return replied
