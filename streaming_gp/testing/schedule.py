"""The contract of a schedule."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi import FixedPointUpdate, fit
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.engine import Serial, Session
from streaming_gp.pvi.schedule import Schedule
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import Delivery, LocalTask
from streaming_gp.testing.assertions import ensure, ensure_same
from streaming_gp.testing.problem import server_of_regression

ROUNDS = 2
MAX_QUESTIONS = 1000  # of one round
UPDATE = FixedPointUpdate(batch_size=4)  # random rows, so that seeds matter


def check_schedule(schedule: Schedule) -> None:
    """Check that a schedule keeps to the rules of a round.

    A round ends; it asks clients that the server has, one question at a time; it waits for open
    questions only; it reports what it sent; the same seeds give the same run, also where a server
    was saved and loaded between two rounds.

    :param schedule: The schedule, for three clients c0, c1 and c2.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(schedule, Schedule), "a schedule has the method round")
    server, twin = _run(schedule), _run(schedule)
    ensure_same(server.posterior, twin.posterior, "the same seeds give the same run")
    ensure(server.factors, "somebody is asked and heard")
    _check_history(server)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.npz"
        server.save(path)
        loaded = Server.load(path, server.prior, server.clients)
    for one in (server, loaded):
        fit(one, schedule, ROUNDS, _Observer())
    ensure(len(loaded.history) == 2 * ROUNDS, "a server that was loaded goes on with its rounds")
    sentence = "a server that was loaded goes on as one that was not"
    ensure_same(loaded.posterior, server.posterior, sentence)


def _run(schedule: Schedule) -> Server:
    server = server_of_regression(UPDATE, MeanFieldNormal)
    fit(server, schedule, ROUNDS, _Observer())
    return server


def _check_history(server: Server) -> None:
    history = server.history
    ensure(history.column("round") == list(range(1, ROUNDS + 1)), "every round is recorded")
    for earlier, later in zip(history.rounds[:-1], history.rounds[1:], strict=True):
        ensure(earlier.version <= later.version, "versions do not fall")
        ensure(earlier.messages <= later.messages, "messages are counted from the beginning")
    last = history[-1]
    ensure(last.version == server.version, "the last round has the server's version")
    ensure(last.messages >= last.version, "an answer is counted before it enters the ledger")
    ensure(last.bytes_down > 0 and last.bytes_up > 0, "questions and answers are counted")


class _Observer:
    """The serial engine, which looks at what a schedule does."""

    @contextmanager
    def session(self, clients: Clients) -> Iterator[Session]:
        with Serial().session(clients) as inside:
            yield _ObservedSession(inside, frozenset(clients))


class _ObservedSession:
    def __init__(self, inside: Session, names: frozenset[str]) -> None:
        self._inside, self._names, self._num_questions = inside, names, 0

    @property
    def now(self) -> float:
        return self._inside.now

    @property
    def open(self) -> frozenset[str]:
        return self._inside.open

    def submit(self, task: LocalTask, duration: float | None) -> None:
        self._num_questions += 1
        ensure(self._num_questions <= MAX_QUESTIONS, "a round ends")
        ensure(task.client_id in self._names, "only clients that exist are asked")
        ensure(task.client_id not in self.open, "a client has one open question at a time")
        self._inside.submit(task, duration)

    def next(self) -> Delivery:
        ensure(self.open, "a schedule waits for open questions only")
        return self._inside.next()
