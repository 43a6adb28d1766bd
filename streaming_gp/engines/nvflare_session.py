"""The coordinator's end of NVFlare's connections: questions are pursued until they are answered."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from streaming_gp.engines import nvflare_cell as cells
from streaming_gp.engines.remote import ANSWER, QUESTION, RESULT
from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.task import Delivery, LocalTask, encode_task

PATIENCE = 10.0
"""So many seconds a site keeps a request waiting for an answer before it says: not yet."""
PAUSE = 0.2
"""The seconds until a site that was not there is looked for again."""


class NVFlareSession:
    """Open questions, each pursued by a thread of its own until it is answered or overdue.

    :param places: The place of each client, which is the name of its cell.
    :param deadline: The seconds for an answer; None waits for ever.
    :param timeout: The seconds that a message may travel.
    """

    def __init__(self, places: Mapping[str, str], deadline: float | None, timeout: float) -> None:
        self._places, self._timeout = places, timeout
        self._deadline = float("inf") if deadline is None else deadline
        self._cell: Any = None
        self._open: set[str] = set()
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._begin = time.monotonic()

    def connect(self, cell: Any) -> None:
        """Use this cell."""
        self._cell = cell
        cell.set_cell_disconnected_cb(self._give_up_waiting)

    def close(self) -> None:
        """Pursue nothing any more."""
        self._closed.set()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._open)

    def submit(self, task: LocalTask, duration: float | None) -> None:
        if task.client_id in self._open:
            raise InvalidDataError(f"client {task.client_id!r} has an open question already")
        self._open.add(task.client_id)
        threading.Thread(target=self._pursue, args=(task,), daemon=True).start()

    def next(self) -> Delivery:
        delivery = self._arrived.get()
        self._open.discard(delivery.client_id)
        return delivery

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

    def _pursue(self, task: LocalTask) -> None:
        name, place = task.client_id, self._places[task.client_id]
        question, nonce = encode_task(task), task.nonce.encode()
        asked, is_known = self.now, False
        while not self._closed.is_set():
            if self.now > asked + self._deadline:
                self._arrived.put(Delivery(name, None, f"no answer within {self._deadline:g} s"))
                return
            if not self._cell.is_cell_connected(place):
                self._closed.wait(PAUSE)
                continue
            topic = ANSWER if is_known else QUESTION
            reply = self._requested(place, topic, nonce if is_known else question)
            delivery, is_known = _read(name, reply, is_known)
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


def _read(name: str, reply: Any, was_known: bool) -> tuple[Delivery | None, bool]:
    """What a reply delivers, if anything, and whether the site knows the question now."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

    code = reply.get_header(MessageHeaderKey.RETURN_CODE)
    if code == ReturnCode.OK and not reply.payload:
        return None, True
    if code == ReturnCode.OK:
        return Delivery(name, bytes(reply.payload)), True
    if code == ReturnCode.INVALID_REQUEST:
        reason = reply.get_header(MessageHeaderKey.ERROR, "no reason given")
        return Delivery(name, None, f"it refused the question: {reason!s:.1000}"), True
    return None, was_known and code != ReturnCode.INVALID_SESSION
