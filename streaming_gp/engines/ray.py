"""Clients as resident actors on a Ray cluster: their data stay where they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.client import Client, Clients, Resident, Site
from streaming_gp.pvi.guards import describe
from streaming_gp.pvi.task import Delivery, Failure, LocalTask, encode_answer

_RAW, _EXCEPTION = b"RAW", b"3"
"""Ray's marks of bytes that were returned as they are, and of a pickled exception."""
_OBJECTS = (b"XLANG", b"PYTHON", b"ACTOR_HANDLE", _EXCEPTION)


@typed
@dataclass(frozen=True)
class Ray:
    """One actor for each client. Only questions and answers travel, and there is at most one open
    question to a client, so that nothing can pile up. Answers travel as messages of this package:
    no object of a client is unpickled by the server.

    A question carries all that an actor needs besides its data. An actor that dies is started
    again, with a growing pause, and the question is put again; a fit that was half done is lost and
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
        try:
            import ray
        except ImportError as error:
            message = "the Ray engine needs Ray: pip install 'streaming-gp[ray]'"
            raise InvalidDataError(message) from error
        started = not ray.is_initialized()
        if started:
            _begin(ray, self.address)
        session = RaySession(ray, self, clients)
        try:
            yield session
        finally:
            session.close()
            if started:
                ray.shutdown()


@dataclass(frozen=True, eq=False)
class _Question:
    """An open question."""

    task: LocalTask
    since: float  # on the monotonic clock
    restarts: int = 0  # of its actor since then


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
        return frozenset(question.task.client_id for question in self._open.values())

    def submit(self, task: LocalTask, duration: float | None) -> None:
        if task.client_id in self.open:
            raise InvalidDataError(f"client {task.client_id!r} has an open question already")
        self._put(_Question(task, time.monotonic()))

    def next(self) -> Delivery:
        deadline = self._settings.deadline
        while True:
            oldest = min(self._open, key=lambda reference: self._open[reference].since)
            patience = None
            if deadline is not None:
                patience = max(0.0, self._open[oldest].since + deadline - time.monotonic())
            ready, _ = self._ray.wait(list(self._open), num_returns=1, timeout=patience)
            if ready:
                delivery = self._delivered(ready[0])
                if delivery is not None:
                    return delivery
            elif deadline is not None and time.monotonic() >= self._open[oldest].since + deadline:
                name = self._open.pop(oldest).task.client_id
                self._ray.kill(self._actors[name])
                self._actors[name] = self._start(name)
                return Delivery(name, None, f"no answer within {deadline:g} s")

    def close(self) -> None:
        """Stop all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor)

    def _start(self, name: str) -> Any:
        actor = self._ray.remote(num_cpus=self._settings.num_cpus)(_ClientActor)
        return actor.remote(self._data[name])

    def _put(self, question: _Question) -> None:
        actor = self._actors[question.task.client_id]
        self._open[actor.answer.remote(question.task)] = question

    def _delivered(self, reference: Any) -> Delivery | None:
        """The answer; None if the actor has died and the question was put again."""
        question = self._open.pop(reference)
        name = question.task.client_id
        try:
            message = _message_of(self._ray, reference)
        except ActorDiedError:
            self._actors[name] = self._start(name)
            if question.restarts == self._settings.max_restarts:
                return Delivery(name, None, f"its actor died {question.restarts + 1} times")
            time.sleep(self._settings.pause * 2**question.restarts)
            self._put(replace(question, restarts=question.restarts + 1))
            return None
        error = "what it answered is no message" if message is None else None
        return Delivery(name, message, error)


class _ClientActor:
    """Lives where its data are, reads them if it is a site, and keeps them, and what a worker may
    forget. A client that is continuous goes on in a thread of its own, an iteration at a time,
    while no question is open.
    """

    def __init__(self, client: Client | Site) -> None:
        self._client = Resident(client)
        self._lock, self._unasked = threading.Lock(), threading.Event()
        threading.Thread(target=self._go_on, daemon=True).start()

    def answer(self, task: LocalTask) -> bytes:
        """A message: objects of a client are not unpickled where the server is."""
        self._unasked.clear()
        try:
            with self._lock:
                return encode_answer(self._client.answer(task))
        except BaseException as error:  # a client may run anything
            return encode_answer(Failure(describe(error)))
        finally:
            self._unasked.set()

    def _go_on(self) -> None:
        while self._unasked.wait():
            with self._lock:
                if not self._client.advance(1):
                    self._unasked.clear()


# ---- Ray's insides: a cluster on the loopback interface, and bytes ----


class ActorDiedError(Exception):
    """The process of a client is gone, and its answer with it."""


def _begin(ray: Any, address: str | None) -> None:
    """Join a cluster, or start one that only processes of this machine can reach.

    :param address: The cluster's; None starts one.
    """
    if address is not None:
        ray.init(address=address)
        return
    from ray._private import ray_constants

    # as Ray does by itself on Windows and macOS: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(log_to_driver=False, include_dashboard=False)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _message_of(ray: Any, reference: Any) -> bytes | None:
    """The bytes that an actor's method has returned, which are read without unpickling anything.

    ``ray.get`` would unpickle whatever came, and so run code that a hostile client put there.

    :param reference: Ray's, of a result that is ready.
    :returns: None if something else than bytes was returned or raised.
    :raises ActorDiedError: if the actor's process is gone.
    """
    core = ray._private.worker.global_worker.core_worker
    data, metadata, *_ = core.get_objects([reference], -1)[0]
    kind = (metadata or b"").split(b",")[0]
    if kind == _RAW:
        return b"" if data is None else bytes(data.to_pybytes())
    if kind in _OBJECTS:
        return None
    raise ActorDiedError
