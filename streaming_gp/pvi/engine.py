"""What a schedule asks of an engine: take questions, deliver answers in the order they arrive."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from streaming_gp.pvi.messages import Ask
from streaming_gp.pvi.site import Clients


@dataclass(frozen=True, eq=False)
class Delivery:
    """An answer, or the news that there will be none.

    :param client_id: The client that was asked.
    :param answer: Its answer, as it is or as the bytes of a message: what it is, is found out where
        it is read. None if the client failed.
    :param error: What went wrong, if something did.
    """

    client_id: str
    answer: Any
    error: str | None = None


@runtime_checkable
class Session(Protocol):
    """Clients at work. One question to a client may be open at a time, so no queue can grow."""

    @property
    def now(self) -> float:
        """Seconds on a clock on which clients work side by side."""
        ...

    @property
    def open(self) -> frozenset[str]:
        """Clients with an open question."""
        ...

    def submit(self, ask: Ask, duration: float | None) -> None:
        """Put a question to a client.

        :param duration: The seconds that it takes on a simulated clock; real clocks take no notice.
        :raises InvalidDataError: if the client has an open question already.
        """
        ...

    def next(self) -> Delivery:
        """Wait for whatever comes next."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Where clients run."""

    def session(self, clients: Clients) -> AbstractContextManager[Session]:
        """Bring clients to where they run, for the time of a ``with`` block.

        :param clients: The clients by name; the data of a ``Site`` are read where it comes to run.
        """
        ...
