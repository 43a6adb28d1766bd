"""All clients in this process, one after another, on a simulated clock: the oracle."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.engine import Delivery
from streaming_gp.pvi.messages import Ask
from streaming_gp.pvi.reading import described
from streaming_gp.pvi.resident import Resident
from streaming_gp.pvi.site import Clients


@typed
@dataclass(frozen=True)
class Serial:
    """Answers are worked out at once and delivered when they would have arrived.

    Where the schedule gives durations the order of arrival depends on these alone, so that an
    asynchronous run replays exactly. Elsewhere a client takes as long as its fit took.

    :param latency: The number of iterations that a client with a worker makes, after each answer,
        before the next question reaches it.
    :raises InvalidDataError: if it is negative.
    """

    latency: int = 0

    def __post_init__(self) -> None:
        if self.latency < 0:
            raise InvalidDataError(f"latency must not be negative, got {self.latency}")

    @contextmanager
    def session(self, clients: Clients) -> Iterator[SerialSession]:
        """Clients at work for the time of a ``with`` block."""
        yield SerialSession(clients, self.latency)


class SerialSession:
    """A queue of deliveries by simulated time of arrival."""

    def __init__(self, clients: Clients, latency: int) -> None:
        self._clients = {name: Resident(client) for name, client in clients.items()}
        self._latency = latency
        self._arrivals: list[tuple[float, int, Delivery]] = []
        self._numbers = count()
        self._now = 0.0

    @property
    def now(self) -> float:
        return self._now

    @property
    def open(self) -> frozenset[str]:
        return frozenset(delivery.client_id for _, _, delivery in self._arrivals)

    def submit(self, ask: Ask, duration: float | None) -> None:
        if ask.client_id in self.open:
            raise InvalidDataError(f"client {ask.client_id!r} has an open question already")
        start = time.perf_counter()
        delivery = _answered(self._clients[ask.client_id], ask, self._latency)
        taken = time.perf_counter() - start if duration is None else duration
        heapq.heappush(self._arrivals, (self._now + taken, next(self._numbers), delivery))

    def next(self) -> Delivery:
        self._now, _, delivery = heapq.heappop(self._arrivals)
        return delivery


def _answered(client: Resident, ask: Ask, latency: int) -> Delivery:
    """A client that fails costs its own answer only."""
    try:
        client.advance(latency)
        return Delivery(ask.client_id, client.answer(ask))
    except KeyboardInterrupt:  # that of the user
        raise
    except BaseException as error:  # a client may run anything
        return Delivery(ask.client_id, None, described(error))
