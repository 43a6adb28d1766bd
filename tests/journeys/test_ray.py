"""The same runs on a real Ray cluster, with processes killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from streaming_gp import engines, linear, pvi, samplers
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.guards import read
from streaming_gp.pvi.task import DataError
from tests.oracles import traced

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("one cluster")]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One cluster for all tests of this file, as starting one takes seconds. Its workers would be
    nice to all other processes: beside other tests they would starve.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
        yield
        ray.shutdown()


@dataclass(frozen=True)
class Interrupted:
    """A rule that kills its own process the first time round, or sleeps."""

    flag: str
    seconds: float = 0.0

    def __call__(self, task):
        first = not Path(self.flag).exists()
        Path(self.flag).touch()
        if first and self.seconds == 0.0:
            os.kill(os.getpid(), signal.SIGKILL)
        if first:
            time.sleep(self.seconds)
        return pvi.FixedPointUpdate()(task)


def labelled(number=2, family=Normal):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 2))
    Y = (rng.uniform(size=(90, 1)) < 1.0 / (1.0 + np.exp(-X[:, :1]))).astype(float)
    rows = np.array_split(np.arange(90), number)
    return linear.logistic_regression(2, family=family), [(X[r], Y[r]) for r in rows]


def run(engine, schedule, rounds=4, special=None, stopping=None):
    model, shards = labelled()
    clients = pvi.make_clients(model, shards, pvi.FixedPointUpdate())
    if special is not None:
        clients["c1"] = pvi.Client("c1", model, clients["c1"].data, special)
    server = pvi.Server(model.prior(), clients)
    if stopping is not None:
        stopping.server = server
    history = pvi.fit(server, schedule, rounds, engine, stopping=stopping)
    return server, history


def assert_same(a, b):
    for x, y in zip(a.posterior.natural, b.posterior.natural, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9)


@pytest.mark.slow
def test_resident_actors_trace_nothing_after_their_first_rounds():
    traced.assert_resident(engines.Ray(), traced.sites(0) + traced.sites(1))


@pytest.mark.slow
def test_hyperparameters_learned_on_ray_are_those_of_the_serial_engine():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    Y = X @ np.array([[1.0], [-2.0]]) + 0.1 * rng.standard_normal((60, 1))

    def learned(engine):
        model = linear.BayesianLinearRegression(2, noise_variance=1.0)
        shards = [(X[i::2], Y[i::2]) for i in range(2)]
        clients = pvi.make_clients(model, shards, pvi.AnalyticUpdate())
        server = pvi.Server(model.prior(), clients)
        rule = pvi.LikelihoodParameters()
        history = pvi.fit(server, pvi.Synchronous(), 4, engine, hyperparameters=rule)
        assert not any(one.refused or one.failed for one in history)
        return model.noise_variance

    assert learned(engines.Ray()) == pytest.approx(learned(engines.Serial()), rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "special"),
    [
        (pvi.Synchronous(), pvi.VariationalUpdate(1, 10, stateful=True)),
        pytest.param(pvi.Sequential(), None, marks=pytest.mark.slow),
    ],
)
def test_ray_agrees_with_the_serial_engine(schedule, special):
    serial, _ = run(engines.Serial(), schedule, special=special)
    parallel, history = run(engines.Ray(), schedule, special=special)
    assert_same(serial, parallel)
    assert not history[-1].failed


@dataclass
class EveryoneHasAnswered:
    """Stops a run when so many times over every client has answered a question that is newer than
    all answers of the time before. Counting each client's answers would not do: some start late,
    or rest for a while, and then the others have yet to hear of them.
    """

    times: int
    server: pvi.Server | None = None
    asked: Mapping[str, int] = field(default_factory=dict)

    def is_over(self, history):
        now = self.server.state.sequences
        if all(now.get(name, 0) > self.asked.get(name, 0) + 1 for name in self.server.clients):
            self.times, self.asked = self.times - 1, now
        return self.times == 0


@pytest.mark.slow
def test_asynchronous_runs_reach_the_same_optimum():
    serial, _ = run(engines.Serial(), pvi.Synchronous(damping=0.6), 60)
    enough = EveryoneHasAnswered(60)
    parallel, history = run(engines.Ray(), pvi.Asynchronous(), 10**5, stopping=enough)
    for x, y in zip(serial.posterior.natural, parallel.posterior.natural, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert history[-1].messages >= 2 * 60 * 2


def test_a_client_killed_in_the_middle_of_a_round_is_started_again(tmp_path):
    serial, _ = run(engines.Serial(), pvi.Synchronous())
    special = Interrupted(str(tmp_path / "flag"))
    parallel, history = run(engines.Ray(pause=0.1), pvi.Synchronous(), special=special)
    assert_same(serial, parallel)
    assert (tmp_path / "flag").exists()
    assert not any(one.failed for one in history)
    product = parallel.prior.times(parallel.factors.values())
    np.testing.assert_array_equal(product.precision, parallel.posterior.precision)


@pytest.mark.slow
def test_a_client_that_misses_the_deadline_is_reported_and_asked_again(tmp_path):
    special = Interrupted(str(tmp_path / "flag"), seconds=600.0)
    # long enough for a process to start and import, far shorter than the nap
    engine = engines.Ray(deadline=90.0)
    server, history = run(engine, pvi.Synchronous(damping=1.0), 2, special=special)
    assert history[0].failed == {"c1": "no answer within 90 s"}
    assert not history[1].failed
    assert set(server.factors) == {"c0", "c1"}


DRIVER = """
import sys
import numpy as np
from streaming_gp import engines, linear, pvi
sys.path.insert(0, {root!r})
from tests.journeys.test_ray import labelled
model, shards = labelled()
clients = pvi.make_clients(model, shards, pvi.FixedPointUpdate())
server = pvi.Server(model.prior(), clients)
def progress(one):
    print("round", one.round, flush=True)
pvi.fit(server, pvi.Synchronous(), 500, engines.Ray(), callback=progress, checkpoint={path!r})
"""


@pytest.mark.slow
def test_a_run_resumed_after_its_driver_was_killed_is_the_uninterrupted_one(tmp_path):
    path = tmp_path / "run.npz"
    code = DRIVER.format(root=str(ROOT), path=str(path))
    # a cluster of its own, which dies with it
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    for line in process.stdout:
        if line.startswith("round 3"):
            process.kill()
            break
    process.wait()
    model, shards = labelled()
    clients = pvi.make_clients(model, shards, pvi.FixedPointUpdate())
    resumed = pvi.Server.load(path, model.prior(), clients)
    done = len(resumed.history)
    assert done >= 3
    pvi.fit(resumed, pvi.Synchronous(), 4, engines.Ray())
    whole, _ = run(engines.Serial(), pvi.Synchronous(), done + 4)
    assert_same(resumed, whole)
    assert resumed.version == whole.version


# ---- the posterior server ----


SNEP = pvi.SNEPUpdate(samplers.AdaptiveSGLD(0.02, 10), learning_rate=0.05)


@dataclass(frozen=True)
class Troubled:
    """SNEP whose workers get into trouble: one process is killed in the middle of its third
    answer, or every answer takes some seconds longer, or holds no numbers.
    """

    kind: str
    flag: str = ""

    def __call__(self, task):
        return self.worker()(task)

    def worker(self):
        return TroubledWorker(self)


class TroubledWorker:
    def __init__(self, rule):
        self.rule, self.inside, self.answers = rule, SNEP.worker(), 0

    def __call__(self, task):
        self.answers += 1
        result = self.inside(task)
        if self.rule.kind == "killed" and self.answers == 3 and not Path(self.rule.flag).exists():
            Path(self.rule.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rule.kind == "slow":
            time.sleep(0.5)
        if self.rule.kind == "no numbers":
            bad = tuple(np.full_like(eta, np.nan) for eta in result.factor.natural)
            return pvi.LocalResult(Factor(result.factor.family, bad))
        return result

    def advance(self, iterations):
        return self.inside.advance(iterations)


@pytest.fixture(scope="module")
def troubled_run(tmp_path_factory):
    flag = tmp_path_factory.mktemp("ray") / "killed"
    model, shards = labelled(4)
    clients = pvi.make_clients(model, shards, SNEP)
    for name, kind in {"c1": "killed", "c2": "slow", "c3": "no numbers"}.items():
        update = Troubled(kind, str(flag))
        clients[name] = pvi.Client(name, model, clients[name].data, update)
    server, seen = pvi.Server(model.prior(), clients), []

    def note(one):
        seen.append((server.version, server.posterior.is_proper))

    enough = EveryoneHasAnswered(6)
    enough.server = server
    history = pvi.fit(
        server, pvi.Asynchronous(damping=1.0), 10**5, engines.Ray(pause=0.1), callback=note,
        stopping=enough,
    )  # fmt: skip
    return server, history, seen, flag


@pytest.mark.slow
def test_a_posterior_server_bears_a_killed_a_slow_and_a_senseless_worker(troubled_run):
    server, history, seen, flag = troubled_run
    assert flag.exists()
    assert all(proper for _, proper in seen)
    assert seen[-1][0] == server.version > 18
    assert not any(one.failed for one in history)
    assert {name for one in history for name in one.refused} == {"c3"}
    assert set(server.factors) == {"c0", "c1", "c2"}


def steps_of_answers(server, rule):
    """The steps of one answer after another, with a pause before each but the first."""
    with engines.Ray().session(server.clients) as session:
        for _ in range(1000):
            session.submit(server.ask("c0"), None)
            answer = read(session.next())
            server.accept([answer], rule)
            yield answer.steps
            time.sleep(0.1)


@pytest.mark.slow
def test_a_worker_goes_on_while_its_message_travels():
    """Some message of many takes longer than an iteration."""
    model, shards = labelled(1)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, SNEP))
    steps = steps_of_answers(server, pvi.Damping(1.0, 1))
    assert next(steps) == 10
    assert next(number for number in steps if number > 10)


@pytest.mark.slow
@pytest.mark.parametrize("update", [pvi.DownpourUpdate(sync=1), pvi.ElasticUpdate(sync=1)])
def test_a_worker_of_a_distributed_optimiser_goes_on_for_more_than_one_step(update):
    model, shards = labelled(1, family=MeanFieldNormal)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, update))
    server.warm_start(MeanFieldNormal.from_mean_variance(np.zeros(2), np.full(2, 0.1)))
    steps = steps_of_answers(server, pvi.Damping(1.0, 1))
    assert next(steps) == 1
    assert next(number for number in steps if number > 2)


# ---- sites ----


@dataclass(frozen=True)
class InActor:
    """Reads rows that lie where no process but an actor's gets to."""

    folder: str
    driver: int
    name: str

    def __call__(self):
        if os.getpid() == self.driver:
            raise PermissionError("the driver has no access to this folder")
        with np.load(Path(self.folder) / f"{self.name}.npz") as rows:
            return rows["X"], rows["Y"]


def test_the_driver_never_reads_the_rows_of_a_site(tmp_path):
    model, shards = labelled()
    sites = []
    for number, (X, Y) in enumerate(shards):
        np.savez(tmp_path / f"c{number}.npz", X=X, Y=Y)
        load = InActor(str(tmp_path), os.getpid(), f"c{number}")
        sites.append(pvi.Site(f"c{number}", model, pvi.FixedPointUpdate(), len(X), load))
    with pytest.raises(DataError, match="no access"):
        sites[0].at_work()
    server = pvi.Server(model.prior(), sites)
    history = pvi.fit(server, pvi.Synchronous(), 4, engines.Ray())
    assert not any(one.failed for one in history)
    serial, _ = run(engines.Serial(), pvi.Synchronous())
    assert_same(server, serial)


@pytest.mark.slow
def test_a_site_without_its_data_costs_its_own_answer(tmp_path):
    model, shards = labelled()
    clients = list(pvi.make_clients(model, shards, pvi.FixedPointUpdate()).values())
    nowhere = InActor(str(tmp_path), os.getpid(), "c1")
    clients[1] = pvi.Site("c1", model, pvi.FixedPointUpdate(), len(shards[1][0]), nowhere)
    server = pvi.Server(model.prior(), clients)
    (one,) = pvi.fit(server, pvi.Synchronous(), 1, engines.Ray())
    assert set(one.failed) == {"c1"}
    assert one.failed["c1"].startswith("DataError")
    assert "FileNotFoundError" not in str(one)
