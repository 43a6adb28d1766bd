"""Clients in other organisations, on NVFlare's certificates and connections."""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from streaming_gp.inputs import Positive, missing_extra, typed
from streaming_gp.pvi.client import Client, Clients, Site
from streaming_gp.pvi.desk import Desk, UnknownQuestionError
from streaming_gp.pvi.task import Delivery, LocalTask, encode_task, failure_of

CHANNEL = "streaming_gp"
COORDINATOR = "server"
"""NVFlare's name of the coordinator in messages; the name in its certificate is its own."""
LOG = logging.getLogger("streaming_gp.nvflare")
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
        with connected(kit, self.address, session.connect):
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
        with connected(kit, self.address, session.connect):
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
                cell.register_request_cb(CHANNEL, topic, _replying(reply))

        with connected(kit, self.address, prepare):
            yield

    def _kit_of(self, coordinator: bool) -> Kit:
        kit = read_kit(self.kit)
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
        super().__init__(clients, deadline)
        self._timeout = timeout
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

    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        place = place_of(client)
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
        message = message_of(content)
        return self._cell.send_request(CHANNEL, topic, place, message, seconds, optional=True)

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
            return message_of(reply(bytes(request.payload or b"")) or b"")
        except UnknownQuestionError as error:
            return make_reply(ReturnCode.INVALID_SESSION, error=str(error))
        except (StreamingGPError, OSError) as error:
            reason = failure_of(error, "this place").reason
            return make_reply(ReturnCode.INVALID_REQUEST, error=reason)

    return replied


# ---- the kit ----


@dataclass(frozen=True)
class Kit:
    """A startup kit.

    :param name: The participant's name; that of the coordinator is :data:`COORDINATOR`.
    :param coordinator: The name in the coordinator's certificate; None in its own kit.
    :param scheme: The protocol under the TLS layer, such as "http".
    :param address: Host and port of the coordinator.
    :param certificates: The paths of the certificates and keys, by NVFlare's names for them.
    """

    name: str
    coordinator: str | None
    scheme: str
    address: str
    certificates: Mapping[str, str]

    @property
    def is_coordinators(self) -> bool:
        """Whether it is the kit of the coordinator."""
        return self.coordinator is None


def read_kit(folder: str | os.PathLike[str]) -> Kit:
    """The kit that a folder holds, as ``nvflare provision`` writes it.

    :param folder: The participant's folder, in which there is one called "startup".
    """
    startup = Path(folder) / "startup"
    try:
        role = "server" if (startup / "fed_server.json").exists() else "client"
        written = json.loads((startup / f"fed_{role}.json").read_text())
        (server,) = written["servers"]
        own = server if role == "server" else written["client"]
        return Kit(
            name=COORDINATOR if role == "server" else own["fqsn"],
            coordinator=None if role == "server" else server["identity"],
            scheme=server["service"]["scheme"],
            address=server["service"]["target"],
            certificates=_certificates(startup, own, role),
        )
    except InvalidDataError:
        raise
    except Exception as error:  # a file may hold anything
        raise InvalidDataError(f"{folder} holds no startup kit of NVFlare: {error!r}") from error


def _certificates(startup: Path, written: dict[str, Any], role: str) -> dict[str, str]:
    security = written.get("connection_security", "mtls")
    if security != "mtls":
        raise InvalidDataError(f"wanted a kit with mutual TLS, got {security!r} in {startup}")
    files = {
        "ca_cert": "ssl_root_cert",
        f"{role}_cert": "ssl_cert",
        f"{role}_key": "ssl_private_key",
    }
    paths = {name: startup / written[key] for name, key in files.items()}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise InvalidDataError(f"certificates are missing: {missing}")
    return {"connection_security": "mtls"} | {name: str(path) for name, path in paths.items()}


# ---- the cell ----


@contextmanager
def connected(kit: Kit, address: str | None, prepare: Callable[[Any], None]) -> Iterator[Any]:
    """A cell for the time of a ``with`` block.

    Certificates are asked for on both sides, and NVFlare closes a connection whose certificate is
    of another name than its messages.

    :param kit: The startup kit.
    :param address: Host and port, where the kit's are not to be used.
    :param prepare: Registers callbacks with the cell, before it is connected.
    """
    cells = _core_cell().CoreCell
    if kit.name in cells.ALL_CELLS:
        raise InvalidDataError(f"{kit.name!r} is connected already in this process")
    forget = _memory_of(cells)
    identities = None if kit.is_coordinators else {COORDINATOR: kit.coordinator}
    port = kit.address.rpartition(":")[2]
    default = f"0.0.0.0:{port}" if kit.is_coordinators else kit.address  # as NVFlare's own server
    url = f"{kit.scheme}://{address or default}"
    cell = cells(kit.name, url, True, dict(kit.certificates), auth_identity_map=identities)
    try:
        cell.add_incoming_filter("*", "*", lambda message: _refusal(cell, message))
        prepare(cell)
        if kit.is_coordinators:
            _log_failed_handshakes()
        cell.start()
        yield cell
    finally:
        cell.stop()
        forget()


def _memory_of(cells: Any) -> Callable[[], None]:
    """NVFlare keeps names of cells, and counters of each, as long as the process lives.

    :returns: a function that forgets those that come from now on, so that there can be another
        cell.
    """
    from nvflare.fuel.f3.stats_pool import StatsPoolManager

    books = [cells.ALL_CELLS, StatsPoolManager.pools]
    before = [set(book) for book in books]

    def forget() -> None:
        for book, names in zip(books, before, strict=True):
            for name in set(book) - names:
                del book[name]

    return forget


def message_of(content: bytes) -> Any:
    """A message of plain bytes."""
    return _core_cell().Message(None, content)


def _core_cell() -> Any:
    try:
        from nvflare.fuel.f3.cellnet import core_cell
    except ImportError as error:
        raise missing_extra("the NVFlare engine", "NVFlare", "nvflare") from error
    return core_cell


# ---- refusals ----


def _refusal(cell: Any, message: Any) -> Any:
    """NVFlare passes messages on from site to site, and builds objects as messages tell it to. None
    of that is wanted here.

    :returns: None for a message to go on with.
    """
    from nvflare.fuel.f3.cellnet.defs import ReturnCode
    from nvflare.fuel.f3.cellnet.utils import make_reply

    objection = _objection(cell, message)
    if objection is None:
        return None
    LOG.warning("refused a message of %r: %s", _peer(message), objection)
    return make_reply(ReturnCode.AUTHENTICATION_ERROR)


def _objection(cell: Any, message: Any) -> str | None:
    from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType

    header, peer = message.get_header, _peer(message)
    kind, topic = header(MessageHeaderKey.MSG_TYPE), header(MessageHeaderKey.TOPIC)
    if header(MessageHeaderKey.ORIGIN) != peer:
        return f"it says that it comes from {header(MessageHeaderKey.ORIGIN)!r}"
    if header(MessageHeaderKey.DESTINATION) != cell.get_fqcn():
        return f"it is for {header(MessageHeaderKey.DESTINATION)!r}"
    if header(MessageHeaderKey.PAYLOAD_ENCODING) not in (Encoding.BYTES, Encoding.NONE):
        return "it is not made of bytes"
    wanted = {MessageType.REPLY} if cell.get_fqcn() == COORDINATOR else {MessageType.REQ}
    if topic != "bye" and (kind not in wanted or header(MessageHeaderKey.CHANNEL) != CHANNEL):
        return f"nobody waits for a {kind} of topic {topic!r}"
    return None


def _peer(message: Any) -> str | None:
    from nvflare.fuel.f3.cellnet.defs import MessagePropKey

    return getattr(message.get_prop(MessagePropKey.ENDPOINT), "name", None)


def _log_failed_handshakes() -> None:
    """Who comes without TLS, or without a certificate, is turned away before NVFlare hears of it;
    asyncio tells of that in debug mode alone.
    """
    from nvflare.fuel.f3.drivers.aio_context import AioContext

    loop = AioContext.get_global_context().get_event_loop()

    def note(_: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "transport" in context and isinstance(error, OSError):
            LOG.warning("refused a connection from %s: %s", _address_in(error), error)
        else:
            LOG.debug("asyncio: %s (%r)", context.get("message"), error)

    loop.set_exception_handler(note)
    loop.slow_callback_duration = math.inf
    loop.set_debug(True)


def _address_in(error: BaseException) -> str:
    """Whose handshake failed: by then asyncio knows it only where the error was raised."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        known = frame.f_locals.get("extra")
        if isinstance(known, dict) and "peername" in known:
            host, port, *_ = known["peername"]
            return f"{host}:{port}"
    return "an unknown address"
