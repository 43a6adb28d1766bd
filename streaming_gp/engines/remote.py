"""Common to engines whose sites are programs of other organisations."""

from __future__ import annotations

import os
from collections.abc import Mapping

from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.client import Clients, Site
from streaming_gp.serialization import write_bytes

QUESTION, ANSWER, RESULT = "question", "answer", "result"
"""Topics: a question; is there an answer, to the question of this nonce; a result to keep."""


def places_of(clients: Clients) -> dict[str, str]:
    """The place of each client, by its name.

    :raises InvalidDataError: if a client is no ``Site``: no data are sent.
    """
    with_data = [name for name, client in clients.items() if not isinstance(client, Site)]
    if with_data:
        raise InvalidDataError(f"wanted sites, whose data are theirs; got data of {with_data}")
    return {n: c.place or n for n, c in clients.items() if isinstance(c, Site)}


def keep(content: bytes, inbox: str | os.PathLike[str] | None) -> None:
    """The newest result takes the place of the one before, whole or not at all.

    :param inbox: The file that it is kept in; None takes no results.
    :raises InvalidDataError: if there is none.
    """
    if inbox is None:
        raise InvalidDataError("this place takes no results: it has no inbox")
    write_bytes(inbox, content)


def refuse_missed(missed: Mapping[str, str]) -> None:
    """Say where a result did not come to.

    :param missed: The reason, by place.
    :raises NoAnswerError: if there is any.
    """
    if missed:
        raise NoAnswerError(f"the result did not come to {dict(missed)}")
