"""The contracts of update rules, schedules and engines, on a small problem with a known answer."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.expfam import Gaussian, MeanFieldNormal, Normal
from streaming_gp.linear import BayesianLinearRegression
from streaming_gp.pvi import FixedPointUpdate, Synchronous, fit, make_clients
from streaming_gp.pvi.client import Client, Clients
from streaming_gp.pvi.engine import Engine, Serial, Session
from streaming_gp.pvi.model import ConjugateModel, Data, Model
from streaming_gp.pvi.schedule import Schedule, Sequential
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import Delivery, LocalResult, LocalTask, UpdateRule, Worker
from streaming_gp.pvi.updates.fixed_point import AnalyticUpdate
from streaming_gp.testing.assertions import copies, ensure, ensure_refused, ensure_same

NOISE_VARIANCE = 0.1


def regression(family: type[Gaussian] = Normal) -> BayesianLinearRegression:
    """Linear regression with two weights, whose posterior is of this family."""
    return BayesianLinearRegression(2, NOISE_VARIANCE, family=family)


def shards_of_regression(number: int = 3, num_data: int = 8) -> list[Data]:
    """Data of each client: X [N, 2] and Y [N, 1].

    Inputs are ±1 and orthogonal within every shard, so that the mean field is exact.

    :param number: The number of clients.
    :param num_data: The number of data points of each, even.
    """
    rng = np.random.default_rng(0)
    X = np.tile([[1.0, 1.0], [1.0, -1.0]], (num_data // 2, 1))
    noise = np.sqrt(NOISE_VARIANCE) * rng.standard_normal((number, num_data, 1))
    return [(X, X @ np.array([[1.0], [-0.5]]) + one) for one in noise]


def clients_of_regression(
    model: BayesianLinearRegression, update: UpdateRule | None = None
) -> Mapping[str, Client]:
    """Clients c0, c1 and c2, which answer by the exact update if no other is given."""
    return make_clients(model, shards_of_regression(), update or AnalyticUpdate())


def server_of_regression(
    update: UpdateRule | None = None, family: type[Gaussian] = Normal
) -> Server:
    """A server of such clients."""
    model = regression(family)
    return Server(model.prior(), clients_of_regression(model, update))


# ---- update rules ----

SHARE = 0.3  # of what one shard says, as the factor that a client already has


def check_update_rule(
    rule: UpdateRule,
    model: Model | None = None,
    shards: Sequence[tuple[Any, Any]] | None = None,
    tolerance: float | None = None,
    rounds: int = 20,
) -> None:
    """Check that a rule answers as the loop expects.

    Its factor is one of the prior's family; the same task gives the same answer, before and after
    pickling; the task stays as it is; workers answer as the rule does. If the rule is exact for
    conjugate models, sequential passes lead to the exact posterior.

    :param rule: The rule.
    :param model: The model to check with; a small linear regression with a full covariance if
        None.
    :param shards: (X, Y) of each client; those of the regression if None.
    :param tolerance: How near the posterior must come to that of a conjugate model, relative to the
        largest natural parameter; None for a rule that is not exact there.
    :param rounds: The number of passes after which it must be there.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(rule, UpdateRule), "a rule is called with a task")
    model = regression() if model is None else model
    shards = shards_of_regression() if shards is None else shards
    tasks = zip(_tasks(model, shards), _tasks(model, shards), strict=True)
    answered = [task for task, same in tasks if _answers(rule, same)]
    ensure(answered, "a rule answers the first question, or one to a client with a factor")
    for task in answered:
        _check_answer(rule, task)
        factor = rule(task).factor
        ensure_same(rule(task).factor, factor, "the same task has the same answer")
        _, pickled = copies(rule, "a rule")
        ensure_same(pickled(task).factor, factor, "a rule that was pickled gives the same answer")
        if hasattr(rule, "worker"):
            _check_worker(rule, task)
    if tolerance is not None and isinstance(model, ConjugateModel):
        server = Server(model.prior(), make_clients(model, shards, rule))
        for one in fit(server, Sequential(), rounds):
            ensure(not one.failed, f"clients of a conjugate model do not fail: {dict(one.failed)}")
            ensure(not one.refused, f"honest answers are not refused: {dict(one.refused)}")
        likelihoods = [model.likelihood_factor(*model.as_data(*shard)) for shard in shards]
        exact = model.prior().times(likelihoods)
        ensure_same(server.posterior, exact, "the rule finds the exact posterior", tolerance)


def _tasks(model: Any, shards: Sequence[tuple[Any, Any]]) -> list[LocalTask]:
    """The first question to a client, and one to a client that has a factor already."""
    data = copy.deepcopy(model.as_data(*shards[0]))
    prior, start = model.prior().as_arrays(), model.initial(0)
    own = ((start / prior) ** SHARE).as_arrays()
    if not any(np.any(eta) for eta in own.natural):
        own = (prior.as_factor() ** SHARE).as_arrays()
    posterior = prior.times([own])
    return [
        LocalTask(model, data, prior, None, start, seed=7),
        LocalTask(model, data, posterior, own, posterior, seed=7),
    ]


def _answers(rule: UpdateRule, task: LocalTask) -> bool:
    """Whether the rule answers such a question; rules may refuse by ``InvalidDataError``."""
    try:
        rule(task)
    except InvalidDataError:
        return False
    return True


def _check_answer(rule: UpdateRule, task: LocalTask) -> None:
    before = copy.deepcopy((task.data, task.posterior.natural, task.start.natural))
    result = rule(task)
    ensure(isinstance(result, LocalResult), "a rule gives a LocalResult")
    objection = task.posterior.objection_to(result.factor)
    ensure(objection is None, f"the answer is a factor of the prior's family: {objection}")
    ensure(result.steps >= 0 and result.skipped >= 0, "steps and skipped sites are counts")
    numbers = all(np.isscalar(value) for value in result.diagnostics.values())
    ensure(numbers, "diagnostics are numbers")
    after = task.data, task.posterior.natural, task.start.natural
    for old, new in zip(before, after, strict=True):
        same = all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
        ensure(same, "a rule leaves the task as it was")


def _check_worker(rule: Any, task: LocalTask) -> None:
    worker = rule.worker()
    if isinstance(worker, Worker):
        ensure(worker.advance(1) is False, "a worker has nothing to do before its first question")
    factor = worker(task).factor
    ensure_same(factor, rule(task).factor, "a worker that has just begun answers as the rule does")
    if isinstance(worker, Worker):
        ensure(isinstance(worker.advance(1), bool), "advance says whether there is more to do")
    second = worker(task).factor
    ensure(task.posterior.objection_to(second) is None, "a worker answers a second question")


# ---- schedules ----

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


# ---- engines ----

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
        shards of ``streaming_gp.testing.rounds``, which answer by the exact update.
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
