"""NVFlare's insides, as its engine asks for them: a startup kit, and a cell that takes bytes from
peers alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_gp.errors import InvalidDataError

CHANNEL = "streaming_gp"
COORDINATOR = "server"
"""NVFlare's name of the coordinator in messages; the name in its certificate is its own."""
LOG = logging.getLogger("streaming_gp.nvflare")


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
        is_coordinators = (startup / "fed_server.json").exists()
        file = "fed_server.json" if is_coordinators else "fed_client.json"
        written = json.loads((startup / file).read_text())
        (server,) = written["servers"]
        service, client = server["service"], {} if is_coordinators else written["client"]
        return Kit(
            name=COORDINATOR if is_coordinators else client["fqsn"],
            coordinator=None if is_coordinators else server["identity"],
            scheme=service["scheme"],
            address=service["target"],
            certificates=(
                _certificates(startup, server, "server")
                if is_coordinators
                else _certificates(startup, client, "client")
            ),
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
        message = "the NVFlare engine needs NVFlare: pip install 'streaming-gp[nvflare]'"
        raise InvalidDataError(message) from error
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
