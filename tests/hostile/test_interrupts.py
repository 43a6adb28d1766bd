"""An interrupt at any line of a commit: journal and memory agree, and the stream goes on."""

import dis
import json
import linecache
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import serialization
from streaming_gp.gp import journal as journals
from streaming_gp.gp import store
from streaming_gp.gp.journal import Journal
from tests.hostile.streams import digest
from tests.oracles.builders import EVERY_INPUT
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
    """Begin or resume a journaled stream and finish it."""
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
    stream_on(*arguments)
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


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("coordinator and clients", marks=pytest.mark.slow),
        pytest.param("process of Ray", marks=[pytest.mark.ray, pytest.mark.slow]),
        pytest.param("coordinator", marks=pytest.mark.nvflare),
        pytest.param("site", marks=pytest.mark.nvflare),
    ],
)
@pytest.mark.xdist_group("one cluster")
def test_a_federation_whose_processes_are_killed_ends_the_same(tmp_path, kind):
    command = [sys.executable, "-m", "experiments.measured.killed_federation", "--quick"]
    options = ["--only", kind, "--out", str(tmp_path)]
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["kills"] >= 2
    assert row["same"] == row["federations"]
