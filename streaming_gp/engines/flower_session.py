"""Open questions to nodes of Flower: each is put again until it is answered, or overdue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from streaming_gp.engines.flower_link import LOG
from streaming_gp.engines.flower_run import Run
from streaming_gp.engines.remote import QUESTION
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.task import Delivery, LocalTask, encode_task

PAUSE = 0.1
"""The seconds until a SuperLink is asked again whether replies have come."""


@dataclass(eq=False)
class _Parcel:
    """Something to be sent until there is a reply.

    :param key: The public key of the node that it is for.
    :param topic: What it is.
    :param content: Its bytes.
    :param since: When it was first to be sent.
    :param message: The identity of the message that is on its way; None if none is.
    :param node: The node that it is on its way to.
    """

    key: bytes
    topic: str
    content: bytes
    since: float
    message: str | None = None
    node: int = 0


class FlowerSession:
    """Parcels on their way, by the name of a client, or of a place.

    :param run: Where messages are sent.
    :param keys: The public key of the node of each.
    :param deadline: The seconds for an answer; None waits for ever.
    """

    def __init__(self, run: Run, keys: Mapping[str, bytes], deadline: float | None) -> None:
        self._run, self._keys = run, keys
        self._deadline = float("inf") if deadline is None else deadline
        self._parcels: dict[str, _Parcel] = {}
        self._arrived: deque[tuple[str, bytes, str]] = deque()
        self._begin = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._parcels)

    def submit(self, task: LocalTask, duration: float | None) -> None:
        self.send(task.client_id, QUESTION, encode_task(task))

    def next(self) -> Delivery:
        name, content, objection = self.reply()
        if objection:
            return Delivery(name, None, objection)
        return Delivery(name, content)

    def send(self, name: str, topic: str, content: bytes) -> None:
        """Send something until there is a reply.

        :raises InvalidDataError: if something sent under this name has no reply yet.
        """
        if name in self._parcels:
            raise InvalidDataError(f"client {name!r} has an open question already")
        self._parcels[name] = _Parcel(self._keys[name], topic, content, self.now)

    def reply(self) -> tuple[str, bytes, str]:
        """Wait for whatever comes next: a name, what was replied, and why not if it was not."""
        while not self._arrived:
            self._exchange()
            self._give_up()
            if not self._arrived:
                time.sleep(PAUSE)
        found = self._arrived.popleft()
        del self._parcels[found[0]]
        return found

    def _exchange(self) -> None:
        import httpx

        try:
            self._dispatch()
            self._collect()
        except httpx.TransportError as error:
            LOG.warning("the SuperLink is not there: %s", error)
        except httpx.HTTPStatusError as error:
            message = f"the SuperLink does not go on with this run, begin another: {error}"
            raise NoAnswerError(message) from error

    def _dispatch(self) -> None:
        """Send what is not on its way, to nodes that are there."""
        waiting = [one for one in self._parcels.values() if one.message is None]
        nodes = self._run.nodes() if waiting else {}
        for parcel in waiting:
            if parcel.key in nodes:
                parcel.node = nodes[parcel.key]
                parcel.message = self._run.send(parcel.node, parcel.topic, parcel.content)

    def _collect(self) -> None:
        """Take in replies; what has got lost is to be sent again."""
        sent = {p.message: (name, p) for name, p in self._parcels.items() if p.message is not None}
        replies = self._run.replies({message: parcel.node for message, (_, parcel) in sent.items()})
        for message, reply in replies.items():
            name, parcel = sent[message]
            if reply is None:
                parcel.message = None
            else:
                self._arrived.append((name, *reply))

    def _give_up(self) -> None:
        """News of what is overdue."""
        come = {name for name, *_ in self._arrived}
        for name, parcel in self._parcels.items():
            if name not in come and self.now > parcel.since + self._deadline:
                self._arrived.append((name, b"", f"no answer within {self._deadline:g} s"))
