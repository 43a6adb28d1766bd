"""Common to engines whose clients are in other processes: open questions, deadlines, places."""

from __future__ import annotations

import abc
import math
import os
import time
from collections.abc import Mapping

from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.client import Client, Site
from streaming_gp.pvi.task import Delivery, LocalTask, RefusedQuestionError
from streaming_gp.serialization import write_bytes

QUESTION, ANSWER, RESULT = "question", "answer", "result"
"""Topics: a question; is there an answer, to the question of this nonce; a result to keep."""
DEADLINE = 3600.0
"""The seconds for an answer, where nobody says otherwise."""


class RemoteSession(abc.ABC):
    """Questions on their way, at most one to each client, on a real clock.

    :param deadline: The seconds for an answer; None waits for ever.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline = math.inf if deadline is None else deadline
        self._open: set[str] = set()
        self._begin = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._open)

    def submit(self, task: LocalTask, duration: float | None) -> None:
        if task.client_id in self._open:
            raise InvalidDataError(f"client {task.client_id!r} has an open question already")
        self._put(task)
        self._open.add(task.client_id)

    def next(self) -> Delivery:
        delivery = self._wait()
        self._open.discard(delivery.client_id)
        return delivery

    @abc.abstractmethod
    def _put(self, task: LocalTask) -> None:
        """Put a question on its way."""

    @abc.abstractmethod
    def _wait(self) -> Delivery:
        """Whatever comes next."""

    def _overdue(self, name: str) -> Delivery:
        return Delivery(name, None, f"no answer within {self._deadline:g} s")


def place_of(client: Client | Site) -> str:
    """The place of a client."""
    if not isinstance(client, Site):
        raise InvalidDataError(
            f"wanted sites, whose data are theirs; got data of {client.client_id!r}"
        )
    return client.place or client.client_id


def keep(content: bytes, inbox: str | os.PathLike[str] | None) -> None:
    """The newest result takes the place of the one before, whole or not at all.


    :param inbox: The file that it is kept in; None takes no results.
    """
    if inbox is None:
        raise RefusedQuestionError("NoInbox")
    write_bytes(inbox, content)


def refuse_missed(missed: Mapping[str, str]) -> None:
    """Say where a result did not come to."""
    if missed:
        raise NoAnswerError(f"the result did not come to {dict(missed)}")
