"""An interrupt at any line of a commit: journal and memory agree, and the stream goes on."""

import dis
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import datasets, engines, linear, pvi, serialization
from streaming_gp.gp import journal as journals
from streaming_gp.gp import store
from streaming_gp.gp.journal import Journal
from tests.hostile.streams import digest
from tests.oracles.builders import EVERY_INPUT
from tests.oracles.reference import assert_same
from tests.oracles.saved_streams import (
    batch,
    begun,
    content,
    in_another_process,
    predictions,
    resumed,
)
from tests.oracles.trees import same

WATCHED = {
    store.__file__: ("current", "_commit", "_swap"),
    journals.__file__: None,
    serialization.__file__: (
        "packed", "write_new", "_written_beside", "_sync_folder", "as_path", "digest", "_entry"
    ),
}  # fmt: skip
"""Functions of the commit path by file; None for all of them."""


class Interrupt(KeyboardInterrupt):
    pass


class Interrupting:
    """Raises at the n-th line of the watched functions.

    A ``with`` is traced a second time when its block is left, where Python itself never raises an
    interrupt: after the last call of the block it is still within, and then ``__exit__`` is called.
    """

    def __init__(self, at):
        self.at, self.count, self.where = at, 0, None

    def __call__(self, frame, event, argument):
        names = WATCHED.get(frame.f_code.co_filename, ())
        return self.line if names is None or frame.f_code.co_name in names else None

    def line(self, frame, event, argument):
        if event == "line" and not self.leaves_block(frame):
            self.count += 1
            if self.count == self.at:
                self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise Interrupt(self.where)
        return self.line

    @staticmethod
    def leaves_block(frame):
        """Whether three times None is about to be loaded for ``__exit__``."""
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        operation = frame.f_code.co_code[frame.f_lasti]
        return source.lstrip().startswith("with ") and operation == dis.opmap["LOAD_CONST"]

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)


CHANGES = {
    "update": lambda model: model.update(batch("", 2), learn=False),
    "revisit": lambda model: model.revisit("batch-0", batch("", 0)),
    "fade": lambda model: model.fade(0.9),
}


def journaled(folder, learn):
    """A model that has seen two batches, and its journal; nothing is compiled if none is learned.

    :param learn: Whether hyperparameters were learned.
    """
    points = sgp.PrivatePseudoPoints(3 if learn else "all")
    options = {"pseudo_points": points, "hyperparameters": sgp.PointHyperparameters()}
    model = begun("fixed", journal=folder, **options)
    for index in range(2):
        model.update(batch("", index), learn=learn)
    return model


def check_all_lines(tmp_path, name, every=1, learn=True):
    """Interrupt one change after another, each a few lines later, until one is over before that."""
    folder, seen, at = tmp_path / "journal", [], every
    model = journaled(folder, learn)
    while True:
        before, entries = model.state, len(os.listdir(folder))
        with Interrupting(at) as watch, suppress(Interrupt):
            CHANGES[name](model)
        if watch.where is None:
            break
        after = model.state
        assert same(Journal.resumed(folder)[1], after), watch.where
        is_done = not same(after, before)
        assert len(os.listdir(folder)) == entries + is_done, watch.where
        seen.append(watch.where)
        at += every
    assert content(resumed(folder), tmp_path) == digest(model)
    assert any("store" in where for where in seen)
    return len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_line_leaves_journal_and_memory_alike(tmp_path, name):
    assert check_all_lines(tmp_path, name) > 80


def test_an_interrupt_at_some_lines_leaves_journal_and_memory_alike(tmp_path):
    assert check_all_lines(tmp_path, "fade", every=7, learn=False) > 4


# ---- streams that are killed ----


def fresh(name, **options):
    """Known hyperparameters have a point at every input: nothing has to be compiled."""
    points = {"pseudo_points": EVERY_INPUT} if name == "fixed" else {}
    return begun(name, **points, **options)


def stream_on(name, folder, number):
    """In another process: begin or resume a journaled stream and finish it."""
    journal = Path(folder, "journal")
    if (journal / "00000000.npz").exists():
        model = resumed(journal)
    else:
        model = fresh(name, journal=journal)
    for index in range(model.num_updates, int(number)):
        model.update(batch(name, index))
        print("learned", index, flush=True)
    model.save(Path(folder, "final.npz"))
    np.save(Path(folder, "predictions.npy"), predictions(model))


def within_an_update(journal, rng):
    time.sleep(rng.uniform(0.0, 0.1))


def within_a_write(journal, rng):
    patience = time.monotonic() + 30.0
    while not any(journal.glob("*.part")) and time.monotonic() < patience:
        pass


def kill_once(arguments, moment, rng):
    """Kill a child at a moment after its first update, so that all its functions are compiled."""
    child = in_another_process(stream_on, *arguments, stdout=subprocess.PIPE)
    assert child.stdout.readline().startswith("learned")
    moment(arguments[1] / "journal", rng)
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def check_that_kills_do_not_show(name, folder, number, moments):
    rng, arguments = np.random.default_rng(9), (name, folder, number)
    for moment in moments:
        kill_once(arguments, moment, rng)
    last = in_another_process(stream_on, *arguments, stdout=subprocess.DEVNULL)
    assert last.wait() == 0
    uninterrupted = fresh(name)
    for index in range(number):
        uninterrupted.update(batch(name, index))
    there = np.load(folder / "predictions.npy")
    np.testing.assert_array_equal(there, predictions(uninterrupted))
    assert content(uninterrupted, folder) == (folder / "final.npz").read_bytes()


def test_a_killed_stream_resumes_bit_for_bit(tmp_path):
    check_that_kills_do_not_show("fixed", tmp_path, 12, [within_a_write])


@pytest.mark.slow
def test_twenty_kills_do_not_show(tmp_path):
    moments = 10 * [within_an_update, within_a_write]
    check_that_kills_do_not_show("variational", tmp_path, 120, moments)


# ---- federations that are killed ----


ROOT = Path(__file__).resolve().parents[2]
ROUNDS, KILLS = 40, 20


def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    Y = (rng.uniform(size=(120, 1)) < 1.0 / (1.0 + np.exp(-X[:, :1]))).astype(float)
    return linear.logistic_regression(2), datasets.partition_iid(X, Y, 4)


KILLED = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")
from streaming_gp import pvi
from streaming_gp.pvi import privacy
from tests.hostile.test_interrupts import KILLS, ROUNDS, problem

folder, dice, deaths = sys.argv[1], random.Random(0), 0
while True:
    child = os.fork()  # before TensorFlow has computed anything
    if child == 0:
        model, shards = problem()
        pvi.run(model, shards, ROUNDS, checkpoint=f"{folder}/run.npz")
        os._exit(0)
    if deaths < KILLS:
        time.sleep(dice.uniform(0.0, 2.0))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    deaths += 1
print(deaths)
"""


@pytest.mark.slow
def test_a_coordinator_with_its_clients_killed_twenty_times_ends_the_same(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    model, shards = problem()
    killed = pvi.run(model, shards, ROUNDS, checkpoint=tmp_path / "run.npz")
    whole = pvi.run(model, shards, ROUNDS)
    assert len(killed.history) == ROUNDS
    assert_same(killed.posterior, whole.posterior, 0.0)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.xdist_group("one cluster")
@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_processes_of_ray_killed_at_any_moment_change_no_bit(kills):
    psutil, ray = pytest.importorskip("psutil"), pytest.importorskip("ray")
    model, shards = problem()
    over, deaths = threading.Event(), []

    def kill():
        dice = np.random.default_rng(0)
        while not over.is_set():
            time.sleep(dice.uniform(0.0, 1.0))
            workers = [
                one
                for one in psutil.Process().children(recursive=True)
                if "ray::_Pool" in " ".join(one.cmdline())
            ]
            if workers and len(deaths) < kills:
                victim = dice.choice(workers)
                os.kill(victim.pid, signal.SIGKILL)
                deaths.append(victim.pid)

    def wait(one):
        if one.round > 2 and len(deaths) < kills:
            time.sleep(0.5)  # rounds are short beside the start of a process

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    threading.Thread(target=kill, daemon=True).start()
    try:
        server = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.FixedPointUpdate()))
        engine = engines.Ray(max_restarts=10 * kills, pause=0.01)
        while len(deaths) < kills or len(server.history) < ROUNDS:
            pvi.fit(server, pvi.Synchronous(), 10, engine, callback=wait)
    finally:
        over.set()
        ray.shutdown()
    assert not any(one.unheard for one in server.history)
    whole = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.FixedPointUpdate()))
    pvi.fit(whole, pvi.Synchronous(), len(server.history))
    assert_same(server.posterior, whole.posterior, 0.0)
