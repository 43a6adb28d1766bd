"""Clients on the processes of a Ray cluster: their data stay where they are first asked."""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from streaming_gp.engines.remote import DEADLINE, RemoteSession
from streaming_gp.inputs import NotNegativeFinite, Positive, PositiveInteger, missing_extra, typed
from streaming_gp.pvi.client import Client, Clients, Resident, Site
from streaming_gp.pvi.task import LOG, Delivery, Failure, LocalTask, encode_answer

_RAW, _EXCEPTION = b"RAW", b"3"
"""Ray's marks of bytes that were returned as they are, and of a pickled exception."""
_OBJECTS = (b"XLANG", b"PYTHON", b"ACTOR_HANDLE", _EXCEPTION)
_AHEAD = 4
"""So many questions are on their way to one process, which answers them in turn."""
_SHARED_FROM = 2**16
"""The bytes of a posterior from which on questions share one copy of it."""


@typed
@dataclass(frozen=True)
class Ray:
    """A pool of processes, each of which answers for many clients. Only questions and answers
    travel, and there is at most one open question to a client, so that nothing can pile up. Answers
    travel as messages of this package: no object of a client is unpickled by the server.

    A client is loaded, or a site reads its data, by the process that it is first asked in, and
    stays there. Clients of one model share it, and what was compiled for it. A question carries all
    that a process needs besides. A process that dies is started again, with a growing pause, and
    the questions to its clients are put again; a fit that was half done is lost and nothing is
    counted twice. Where a client misses the deadline the process is started again as well, and its
    answer is reported as missing.

    :param address: The address of a running cluster, "auto" for the one this machine belongs to;
        None starts one on this machine for the time of a session, which listens on the loopback
        interface alone. A cluster that runs already listens where it was told to, and whoever is
        let into it can run code on all its machines; tokens, TLS and the like are Ray's own
        settings and are left as they are.
    :param deadline: The seconds for an answer from when it is the client's turn, restarts included;
        None waits for ever.
    :param max_restarts: The largest number of restarts of a process for one question.
    :param pause: The seconds before the first restart; they double with each.
    :param num_cpus: The number of processors that each process keeps for itself as long as the
        session lasts. All must find room: with none to spare for the last, its first question waits
        for ever.
    :param workers: The number of processes; as many as the cluster has processors if None.
    :raises InvalidDataError: if a number is out of its range.
    """

    address: str | None = None
    deadline: Positive | None = DEADLINE
    max_restarts: int = 3
    pause: NotNegativeFinite = 0.5
    num_cpus: NotNegativeFinite = 0.0
    workers: PositiveInteger | None = None

    @contextmanager
    def session(self, clients: Clients) -> Iterator[RaySession]:
        """Processes for the time of a ``with`` block.

        :raises InvalidDataError: if Ray is not installed.
        """
        try:
            import ray
        except ImportError as error:
            raise missing_extra("the Ray engine", "Ray", "ray") from error
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


@dataclass(eq=False)
class _Question:
    """An open question."""

    task: LocalTask
    client: Client | Site
    since: float | None = None  # when its turn came, on the session's clock
    restarts: int = 0  # of its process since then
    reference: Any = None  # Ray's, of its answer


@dataclass(eq=False)
class _Process:
    """One process of the pool, as the driver knows it."""

    actor: Any = None
    homes: int = 0  # the number of clients that are answered for there
    here: dict[str, Any] = field(default_factory=dict)  # clients that it holds by now, by name
    models: set[int] = field(default_factory=set)  # that it holds by now
    waiting: deque[_Question] = field(default_factory=deque)
    sent: deque[_Question] = field(default_factory=deque)  # in turn: it is at work on the first


class RaySession(RemoteSession):
    """Processes, and the questions to their clients."""

    def __init__(self, ray: Any, settings: Ray, clients: Clients) -> None:
        super().__init__(clients, settings.deadline)
        self._ray, self._settings = ray, settings
        number = settings.workers or int(ray.cluster_resources().get("CPU", 1.0))
        self._processes = [_Process() for _ in range(max(1, number))]
        self._homes: dict[str, _Process] = {}
        self._models: dict[int, Any] = {}
        self._posterior: tuple[Any, Any] = (None, None)  # the newest that is shared, and Ray's

    def close(self) -> None:
        """Stop all processes."""
        for process in self._processes:
            if process.actor is not None:
                self._ray.kill(process.actor)

    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        home = self._homes.get(task.client_id)
        if home is None:
            home = min(self._processes, key=lambda process: process.homes)
            home.homes += 1
            self._homes[task.client_id] = home
        home.waiting.append(_Question(task, client))
        self._send(home)

    def _send(self, process: _Process) -> None:
        """Keep a process busy."""
        while process.waiting and len(process.sent) < _AHEAD:
            question = process.waiting.popleft()
            if process.actor is None:
                options = {"num_cpus": self._settings.num_cpus, "scheduling_strategy": "SPREAD"}
                process.actor = self._ray.remote(**options)(_Pool).remote()
            question.reference = process.actor.answer.remote(*self._arguments(process, question))
            process.sent.append(question)
        if process.sent and process.sent[0].since is None:
            process.sent[0].since = self.now

    def _arguments(self, process: _Process, question: _Question) -> tuple[Any, ...]:
        """The question, and what of its client the process does not hold yet."""
        task, client = question.task, question.client
        key, shell, model = id(client.model), None, None
        if process.here.get(task.client_id) is not client:
            process.here[task.client_id] = client
            shell = copy.copy(client)
            object.__setattr__(shell, "model", None)
            if key not in process.models:
                process.models.add(key)
                if key not in self._models:
                    self._models[key] = client.model, self._ray.put(client.model)
                model = self._models[key][1]
        posterior = None
        if task.posterior.num_bytes >= _SHARED_FROM:
            if self._posterior[0] is not task.posterior:
                self._posterior = task.posterior, self._ray.put(task.posterior)
            posterior, task = self._posterior[1], replace(task, posterior=None)
        return task, posterior, shell, key, model

    def _wait(self) -> Delivery:
        while True:
            heads = {one.sent[0].reference: one for one in self._processes if one.sent}
            first = min(heads.values(), key=lambda one: one.sent[0].since or 0.0)
            due = (first.sent[0].since or 0.0) + self._deadline
            patience = None if due == float("inf") else max(0.0, due - self.now)
            ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=patience)
            if ready:
                delivery = self._delivered(heads[ready[0]])
                if delivery is not None:
                    return delivery
            elif self.now >= due:
                self._ray.kill(first.actor)
                return self._overdue(self._restart(first).task.client_id)

    def _delivered(self, process: _Process) -> Delivery | None:
        """The answer; None if the process has died and the question was put again."""
        question = process.sent[0]
        name, content, error = question.task.client_id, None, None
        try:
            content = _message_of(self._ray, question.reference, question.task.largest_answer)
        except NoMessageError as what:
            error = str(what)
            process.here.pop(name, None)
        except ActorDiedError:
            self._restart(process, send=False)
            if question.restarts == self._settings.max_restarts:
                self._send(process)
                return Delivery(name, None, f"its process died {question.restarts + 1} times")
            time.sleep(self._settings.pause * 2**question.restarts)
            question.restarts += 1
            process.waiting.appendleft(question)
            self._send(process)
            return None
        process.sent.popleft()
        self._send(process)
        return Delivery(name, content, error)

    def _restart(self, process: _Process, send: bool = True) -> _Question:
        """A new process in the place of one that is gone, for all questions but the first.

        :returns: the question that it was at work on.
        """
        first, *others = process.sent
        process.actor, process.here, process.models = None, {}, set()
        process.sent.clear()
        process.waiting.extendleft(reversed(others))
        if send:
            self._send(process)
        return first


class _Pool:
    """Lives where data are, reads them for sites, and keeps them, and what workers may forget.
    Clients that are continuous go on in a thread of their own, an iteration of each in turn, while
    no question is open.
    """

    def __init__(self) -> None:
        self._models: dict[int, Any] = {}
        self._residents: dict[str, Resident] = {}
        self._moving: set[Resident] = set()  # that may have something to go on with
        self._lock, self._unasked = threading.Lock(), threading.Event()
        _keep_log()
        threading.Thread(target=self._go_on, daemon=True).start()

    def answer(
        self, task: LocalTask, posterior: Any, shell: Client | Site | None, key: int, model: Any
    ) -> bytes:
        """A message: objects of a client are not unpickled where the server is.

        :param posterior: That of the question, where questions share it.
        :param shell: The client without its model, where it comes for the first time.
        :param key: The name of its model.
        :param model: The model, where it comes for the first time.
        """
        self._unasked.clear()
        try:
            with self._lock:
                if model is not None:
                    self._models[key] = model
                if shell is not None:
                    object.__setattr__(shell, "model", self._models[key])
                    self._moving.discard(self._residents.get(shell.client_id))
                    self._residents[shell.client_id] = Resident(shell)
                if posterior is not None:
                    task = replace(task, posterior=posterior)
                resident = self._residents[task.client_id]
                self._moving.add(resident)
                return resident.message(task)
        except BaseException:  # a client may run anything, an interrupt included
            return encode_answer(Failure("OtherError"))
        finally:
            self._unasked.set()

    def _go_on(self) -> None:
        while self._unasked.wait():
            with self._lock:
                self._moving = {one for one in self._moving if one.advance(1)}
                if not self._moving:
                    self._unasked.clear()


# ---- Ray's insides: a cluster on the loopback interface, logs, and bytes ----


class ActorDiedError(Exception):
    """The process of a client is gone, and its answer with it."""


class NoMessageError(Exception):
    """Something came that is no message of a client."""


def _begin(ray: Any, address: str | None) -> None:
    """Join a cluster, or start one that only processes of this machine can reach.

    :param address: The cluster's; None starts one.
    """
    if address is not None:
        ray.init(address=address, log_to_driver=False)
        return
    from ray._private import ray_constants

    # as Ray does by itself on Windows and macOS: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(log_to_driver=False, include_dashboard=False)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _keep_log() -> None:
    """The log of sites, which may tell of rows, stays on this machine, in a file beside Ray's own:
    what a process writes to its standard error Ray may show at the driver.
    """
    from ray._private.worker import _global_node

    path = os.path.join(_global_node.get_logs_dir_path(), f"{LOG.name}-{os.getpid()}.log")
    LOG.addHandler(logging.FileHandler(path, delay=True))
    LOG.propagate = False


def _message_of(ray: Any, reference: Any, largest: int) -> bytes:
    """The bytes that an actor's method has returned, which are read without unpickling anything.

    ``ray.get`` would unpickle whatever came, and so run code that a hostile client put there.

    :param reference: Ray's, of a result that is ready.
    :param largest: The number of bytes beyond which they are not read.
    """
    core = ray._private.worker.global_worker.core_worker
    data, metadata, *_ = core.get_objects([reference], -1)[0]
    kind = (metadata or b"").split(b",")[0]
    if kind == _RAW and data is not None and data.size > largest:
        raise NoMessageError(f"its answer is too large: {data.size} bytes, at most {largest}")
    if kind == _RAW:
        return b"" if data is None else bytes(data.to_pybytes())
    if kind in _OBJECTS:
        raise NoMessageError("what it answered is no message")
    raise ActorDiedError
