"""Common to engines whose clients are in other processes: open questions, deadlines, places."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.client import Client, Clients, Site
from streaming_gp.pvi.engine import OpenQuestions
from streaming_gp.pvi.task import Delivery, RefusedQuestionError
from streaming_gp.serialization import write_bytes

QUESTION, ANSWER, RESULT = "question", "answer", "result"
"""Topics: a question; is there an answer, to the question of this nonce; a result to keep."""
DEADLINE = 3600.0
"""The seconds for an answer, where nobody says otherwise."""


class RemoteSession(OpenQuestions):
    """Questions on their way, on a real clock.

    :param clients: The clients by name.
    :param deadline: The seconds for an answer; None waits for ever.
    """

    def __init__(self, clients: Clients, deadline: float | None) -> None:
        super().__init__(clients)
        self._deadline = math.inf if deadline is None else deadline
        self._begin = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

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
