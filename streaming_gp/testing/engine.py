"""The contract of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from streaming_gp.errors import NumericalError
from streaming_gp.pvi import Synchronous, fit
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.engine import Engine, Serial, Session
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.fixed_point import AnalyticUpdate
from streaming_gp.testing.assertions import ensure, ensure_refused, ensure_same
from streaming_gp.testing.problem import clients_of_regression, regression

ROUNDS = 2
TOLERANCE = 1e-9
REASON = "this client has no numbers"


@dataclass(frozen=True)
class Failing:
    """A rule that raises, after a fit."""

    def __call__(self, task: LocalTask) -> LocalResult:
        AnalyticUpdate()(task)
        raise NumericalError(REASON)


def check_engine(
    engine: Engine, clients: Clients | None = None, failing: Clients | None = None
) -> None:
    """Check that an engine runs clients as the serial one does.

    A run on a conjugate model gives the same posterior; each answer comes once, and questions are
    open until then; a client that fails is reported by the kind of its error, and the others go on;
    a client may join while a session lasts.

    :param engine: The engine.
    :param clients: For engines whose clients start on their own: sites "c0" to "c2" on the three
        shards of ``streaming_gp.testing.problem``, which answer by the exact update.
    :param failing: The same, but that "c1" answers by ``Failing``.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(engine, Engine), "an engine has the method session")
    model = regression()
    local = clients_of_regression(model)
    _check_run(engine, clients or local)
    _check_session(engine, clients or local)
    failing = failing or {**local, "c1": clients_of_regression(model, Failing())["c1"]}
    server = Server(model.prior(), failing)
    last = fit(server, Synchronous(damping=1.0), ROUNDS, engine)[-1]
    ensure(set(last.failed) == {"c1"}, "a client that raises is reported as failed, no other")
    kind = last.failed["c1"].partition(":")[0]
    ensure(kind == NumericalError.__name__, "the report says which kind of error was raised")
    ensure(set(server.factors) == {"c0", "c2"}, "the other clients' answers count")


def _check_run(engine: Engine, clients: Clients) -> None:
    model = regression()
    server = Server(model.prior(), clients)
    oracle = Server(model.prior(), clients_of_regression(model))
    history = fit(server, Synchronous(damping=1.0), ROUNDS, engine)
    serial = fit(oracle, Synchronous(damping=1.0), ROUNDS, Serial())
    sentence = "a run has the posterior that it has on the serial engine"
    ensure_same(server.posterior, oracle.posterior, sentence, TOLERANCE)
    sentence = "as many messages travel as on the serial engine"
    ensure(history[-1].messages == serial[-1].messages, sentence)


def _check_session(engine: Engine, clients: Clients) -> None:
    server = Server(regression().prior(), clients)
    with engine.session(server.clients) as session:
        ensure(isinstance(session, Session), "a session has now, open, submit and next")
        start = session.now
        ensure(not session.open, "no question is open at first")
        for name in server.clients:
            session.submit(server.ask(name), None)
        first = next(iter(server.clients))
        ensure(session.open == frozenset(server.clients), "questions are open until answered")
        ensure_refused(
            lambda: session.submit(server.ask(first), None), "a second open question to a client"
        )
        names = {session.next().client_id for _ in server.clients}
        ensure(names == set(server.clients), "every question is answered once")
        ensure(not session.open, "no question is open after its answer")
        ensure(session.now >= start, "the clock does not run backwards")
