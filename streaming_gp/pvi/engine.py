"""Where clients run: what a schedule asks of an engine, and the engine that runs them here."""

from __future__ import annotations

import abc
import heapq
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Protocol, runtime_checkable

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.client import Client, Clients, Resident, Site
from streaming_gp.pvi.task import Delivery, LocalTask


@runtime_checkable
class Session(Protocol):
    """Clients at work. One question to a client may be open at a time, so no queue can grow."""

    @property
    def now(self) -> float:
        """Seconds on a clock on which clients work side by side."""

    @property
    def open(self) -> frozenset[str]:
        """Clients with an open question."""

    def submit(self, task: LocalTask, duration: float | None) -> None:
        """Put a question to a client.

        :param duration: The seconds that it takes on a simulated clock; real clocks take no notice.
        :raises InvalidDataError: if the client has an open question already.
        """

    def next(self) -> Delivery:
        """Wait for whatever comes next."""


@runtime_checkable
class Engine(Protocol):
    """Where clients run."""

    def session(self, clients: Clients) -> AbstractContextManager[Session]:
        """Bring clients to where they run, for the time of a ``with`` block.

        :param clients: The clients by name; the data of a ``Site`` are read where it comes to run.
            Clients may join and leave meanwhile: the mapping is looked into at each question.
        """


@typed
@dataclass(frozen=True)
class Serial:
    """All clients in this process, one after another, on a simulated clock: the oracle.

    Answers are worked out at once and delivered when they would have arrived. Where the schedule
    gives durations the order of arrival depends on these alone, so that an asynchronous run replays
    exactly. Elsewhere a client takes as long as its fit took.

    :param latency: The number of iterations that a client with a worker makes, after each answer,
        before the next question reaches it.
    :raises InvalidDataError: if it is negative.
    """

    latency: int = 0

    @contextmanager
    def session(self, clients: Clients) -> Iterator[SerialSession]:
        """Clients at work for the time of a ``with`` block."""
        yield SerialSession(clients, self.latency)


class OpenQuestions(abc.ABC):
    """A session in which at most one question to each client is open.

    :param clients: The clients by name; of one that has left by the time that it is asked comes
        the news that there will be no answer.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._open: set[str] = set()
        self._gone: list[str] = []

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._open)

    def submit(self, task: LocalTask, duration: float | None) -> None:
        if task.client_id in self._open:
            raise InvalidDataError(f"client {task.client_id!r} has an open question already")
        client = self._clients.get(task.client_id)
        if client is None:
            self._gone.append(task.client_id)
        else:
            self._put(task, client, duration)
        self._open.add(task.client_id)

    def next(self) -> Delivery:
        gone = self._gone
        delivery = Delivery(gone.pop(), None, "it has left") if gone else self._wait()
        self._open.discard(delivery.client_id)
        return delivery

    @abc.abstractmethod
    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        """Put a question to a client on its way."""

    @abc.abstractmethod
    def _wait(self) -> Delivery:
        """Whatever comes next."""


class SerialSession(OpenQuestions):
    """A queue of deliveries by simulated time of arrival."""

    def __init__(self, clients: Clients, latency: int) -> None:
        super().__init__(clients)
        self._latency = latency
        self._residents: dict[str, Resident] = {}
        self._arrivals: list[tuple[float, int, Delivery]] = []
        self._numbers = count()
        self.now = 0.0

    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        start = time.perf_counter()
        resident = self._residents.get(client.client_id)
        if resident is None or resident.client is not client:  # another one of its name
            resident = self._residents[client.client_id] = Resident(client)
        resident.advance(self._latency)
        delivery = Delivery(task.client_id, resident.answer(task))
        taken = time.perf_counter() - start if duration is None else duration
        heapq.heappush(self._arrivals, (self.now + taken, next(self._numbers), delivery))

    def _wait(self) -> Delivery:
        self.now, _, delivery = heapq.heappop(self._arrivals)
        return delivery
