"""Clients as resident actors on a Ray cluster: their data stay where they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streaming_gp.engines.ray_cluster import ActorDiedError, begin, message_of
from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.engine import Delivery
from streaming_gp.pvi.messages import Ask, Failure, encoded
from streaming_gp.pvi.reading import delivery_of, described
from streaming_gp.pvi.resident import Resident
from streaming_gp.pvi.site import Clients, Site


@typed
@dataclass(frozen=True)
class Ray:
    """One actor for each client. Only questions and answers travel, and there is at most one open
    question to a client, so that nothing can pile up. Answers travel as messages of this package:
    no object of a client is unpickled by the server.

    A question carries all that an actor needs besides its data. An actor that dies is started
    again, with a growing pause, and the question is put again; what it had half done is lost and
    nothing is counted twice. One that misses the deadline is stopped, and its answer is reported
    as missing.

    :param address: The address of a running cluster, "auto" for the one this machine belongs to;
        None starts one on this machine for the time of a session, which listens on the loopback
        interface alone. A cluster that runs already listens where it was told to, and whoever is
        let into it can run code on all its machines; tokens, TLS and the like are Ray's own
        settings and are left as they are.
    :param deadline: The seconds for an answer, restarts included; None waits for ever.
    :param max_restarts: The largest number of restarts of an actor for one question.
    :param pause: The seconds before the first restart; they double with each.
    :param num_cpus: The number of processors that each actor keeps for itself as long as the
        session lasts. All actors must find room: with none to spare for the last, its first
        question waits for ever.
    """

    address: str | None = None
    deadline: float | None = None
    max_restarts: int = 3
    pause: float = 0.5
    num_cpus: float = 0.0

    @contextmanager
    def session(self, clients: Clients) -> Iterator[RaySession]:
        """Actors for the time of a ``with`` block.

        :raises InvalidDataError: if Ray is not installed.
        """
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            begin(ray, self.address)
        session = RaySession(ray, self, clients)
        try:
            yield session
        finally:
            session.close()
            if started:
                ray.shutdown()


class RaySession:
    """Actors, and their open questions."""

    def __init__(self, ray: Any, settings: Ray, clients: Clients) -> None:
        self._ray = ray
        self._settings = settings
        self._data = {name: ray.put(client) for name, client in clients.items()}
        self._actors = {name: self._start(name) for name in clients}
        self._open: dict[Any, _Question] = {}
        self._begin = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    @property
    def open(self) -> frozenset[str]:
        return frozenset(question.ask.client_id for question in self._open.values())

    def submit(self, ask: Ask, duration: float | None) -> None:
        if ask.client_id in self.open:
            raise InvalidDataError(f"client {ask.client_id!r} has an open question already")
        self._put(_Question(ask, time.monotonic()))

    def next(self) -> Delivery:
        while True:
            ready, _ = self._ray.wait(list(self._open), num_returns=1, timeout=self._patience())
            if not ready:
                late = self._overdue()
                if late is not None:
                    return late
                continue
            question = self._open.pop(ready[0])
            delivery = self._delivered(ready[0], question)
            if delivery is not None:
                return delivery

    def close(self) -> None:
        """Stop all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor)

    # ---- one question ----

    def _put(self, question: _Question) -> None:
        actor = self._actors[question.ask.client_id]
        self._open[actor.answer.remote(question.ask)] = question

    def _delivered(self, reference: Any, question: _Question) -> Delivery | None:
        """The answer; None if the actor has died and the question was put again."""
        name = question.ask.client_id
        try:
            message = message_of(self._ray, reference)
        except ActorDiedError:
            self._actors[name] = self._start(name)
            if question.restarts == self._settings.max_restarts:
                return Delivery(name, None, f"its actor died {question.restarts + 1} times")
            time.sleep(self._settings.pause * 2**question.restarts)
            self._put(_Question(question.ask, question.asked, question.restarts + 1))
            return None
        if message is None:
            return Delivery(name, None, "what it answered is no message")
        return delivery_of(name, message)

    def _start(self, name: str) -> Any:
        actor = self._ray.remote(num_cpus=self._settings.num_cpus)(_ClientActor)
        return actor.remote(self._data[name])

    # ---- deadlines ----

    def _patience(self) -> float | None:
        """Seconds until the first open question is overdue."""
        if self._settings.deadline is None:
            return None
        first = min(question.asked for question in self._open.values())
        return max(0.0, first + self._settings.deadline - time.monotonic())

    def _overdue(self) -> Delivery | None:
        """Give up the oldest question, if its deadline is over, and its actor with it."""
        reference = min(self._open, key=lambda ref: self._open[ref].asked)
        deadline = self._settings.deadline
        if deadline is None or time.monotonic() < self._open[reference].asked + deadline:
            return None
        name = self._open.pop(reference).ask.client_id
        self._ray.kill(self._actors[name])
        self._actors[name] = self._start(name)
        return Delivery(name, None, f"no answer within {deadline:g} s")


@dataclass(frozen=True, eq=False)
class _Question:
    """An open question.

    :param ask: The question itself.
    :param asked: The time at which it was put, on the monotonic clock.
    :param restarts: The number of times that its actor was started again since then.
    """

    ask: Ask
    asked: float
    restarts: int = 0


class _ClientActor:
    """Lives where its data are, reads them if it is a site, and keeps them, and what a worker may
    forget. A client that is continuous goes on in a thread of its own, an iteration at a time,
    while no question is open.
    """

    def __init__(self, client: Client | Site) -> None:
        self._client = Resident(client)
        self._lock, self._unasked = threading.Lock(), threading.Event()
        threading.Thread(target=self._go_on, daemon=True).start()

    def answer(self, ask: Ask) -> bytes:
        """A message: objects of a client are not unpickled where the server is."""
        self._unasked.clear()
        try:
            with self._lock:
                return encoded(self._client.answer(ask))
        except BaseException as error:  # a client may run anything
            return encoded(Failure(described(error)))
        finally:
            self._unasked.set()

    def _go_on(self) -> None:
        while self._unasked.wait():
            with self._lock:
                if not self._client.advance(1):
                    self._unasked.clear()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        message = "the Ray engine needs Ray: pip install 'streaming-gp[ray]'"
        raise InvalidDataError(message) from error
    return ray
