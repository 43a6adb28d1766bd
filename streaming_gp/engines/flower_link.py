"""What the Flower engine asks of Flower's insides: its runtime interface, and messages of bytes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_gp.errors import InvalidDataError

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported

LOG = logging.getLogger("streaming_gp.flower")
BEAT = 15.0
"""The seconds after which a task is said to be alive; Flower gives up after a minute without."""
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_RECORD, _TOPIC, _CONTENT, _OBJECTION = "streaming_gp", "topic", "content", "objection"
_HERE = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Link:
    """The runtime interface of a SuperLink or a SuperNode, for whoever knows its secret.

    :param address: Its host and port.
    :param secret: What it was started with, by which tasks are given out.
    :param certificate: What its certificate is verified by; None for a connection without TLS,
        which stays on this machine.
    :raises InvalidDataError: if Flower is not installed, or there is no TLS to another machine.
    """

    address: str
    secret: bytes
    certificate: bytes | None

    def __post_init__(self) -> None:
        _flwr()
        if self.certificate is None and self.address.rpartition(":")[0] not in _HERE:
            raise InvalidDataError(f"wanted a certificate for {self.address!r}, got None")

    def client(self, kind: Any, *interceptors: Any) -> Any:
        """A client of Flower's, which does not try again by itself."""
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        return kind.from_server_address(
            self.address,
            self.certificate is None,
            self.certificate,
            [RuntimeVersionHttpInterceptor(component_name="streaming_gp"), *interceptors],
        )

    def runtime(self, *interceptors: Any) -> Any:
        """A client of the runtime interface."""
        from flwr.supercore.runtime import RuntimeHttpClient

        return self.client(RuntimeHttpClient, *interceptors)

    @contextmanager
    def tasks(self) -> Iterator[Any]:
        """A client that is given tasks."""
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        signs = SuperExecAuthHttpInterceptor(
            master_secret=self.secret, protected_methods=frozenset({_ACQUIRE})
        )
        client = self.runtime(signs)
        try:
            yield client
        finally:
            client.close()


def acquired(tasks: Any, kind: str) -> Any | None:
    """A task that nobody else has, with the token to answer it by; None if there is none.

    :param tasks: A client that is given tasks.
    :param kind: Flower's name of a kind of task.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    found = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return found if found.token else None


@contextmanager
def alive(client: Any) -> Iterator[None]:
    """Say now and then that a task is being worked on, for the time of a ``with`` block."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def finish(client: Any, context: Any = None) -> None:
    """Say that a task is done."""
    from flwr.common.constant import SubStatus
    from flwr.common.serde import context_to_proto
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    told = None if context is None else context_to_proto(context)
    client.PushTaskOutput(PushTaskOutputRequest(context=told, sub_status=SubStatus.COMPLETED))


# ---- messages of plain bytes ----


def record_of(topic: str, content: bytes) -> Any:
    """What is sent to a place."""
    return _record({_TOPIC: topic, _CONTENT: content})


def reply_of(content: bytes | None, objection: str | None) -> Any:
    """What a place answers: bytes, or why not."""
    return _record({_CONTENT: content or b"", _OBJECTION: objection or ""})


def topic_and_content(message: Any) -> tuple[str, bytes]:
    """What :func:`record_of` made a message of.

    :raises InvalidDataError: if it is another one.
    """
    written = _written(message)
    topic, content = written.get(_TOPIC), written.get(_CONTENT)
    if not (isinstance(topic, str) and isinstance(content, bytes)):
        raise InvalidDataError("it is no message of this package")
    return topic, content


def content_and_objection(message: Any) -> tuple[bytes, str]:
    """What :func:`reply_of` made a message of, or anything else as an objection."""
    written = _written(message)
    content, objection = written.get(_CONTENT), written.get(_OBJECTION)
    if not (isinstance(content, bytes) and isinstance(objection, str)):
        return b"", "what it answered is no message"
    return content, objection[:1000]


def _record(written: dict[str, Any]) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord(written)})


def _written(message: Any) -> dict[str, Any]:
    """The one record of a message; nothing if it has none."""
    try:
        return dict(message.content.config_records[_RECORD])
    except (KeyError, ValueError):
        return {}


def _flwr() -> Any:
    try:
        import flwr.app
    except ImportError as error:
        message = "the Flower engine needs Flower: pip install 'streaming-gp[flower]'"
        raise InvalidDataError(message) from error
    return flwr.app


def public_key(path: str | os.PathLike[str]) -> bytes:
    """A node's public key as Flower names it, from a file as ``ssh-keygen`` writes it.

    :raises InvalidDataError: if there is no file, or no such key in it.
    """
    _flwr()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key = load_ssh_public_key(Path(path).read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidDataError(f"{path} holds no public key: {error}") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidDataError(f"wanted an elliptic curve's public key, got {path}")
    return bytes(public_key_to_bytes(key))
