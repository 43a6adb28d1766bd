"""An interrupt or a kill at any line of a commit: journal and memory agree, and streams go on."""

import dis
import json
import linecache
import os
import shutil
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


class Watching:
    """Does something at the lines of the watched functions.

    A ``with`` is traced a second time when its block is left, where Python itself never raises an
    interrupt: after the last call of the block it is still within, and then ``__exit__`` is called.

    :param act: Called with the number of a line, from 1, and where it is.
    """

    def __init__(self, act):
        self.act, self.count = act, 0

    def __call__(self, frame, event, argument):
        names = WATCHED.get(frame.f_code.co_filename, ())
        return self.line if names is None or frame.f_code.co_name in names else None

    def line(self, frame, event, argument):
        if event == "line" and not self.leaves_block(frame):
            self.count += 1
            self.act(self.count, f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
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
    folder, seen = tmp_path / "journal", []
    model = journaled(folder, learn)

    def interrupt(number, where):
        if number == every * (1 + len(seen)):
            seen.append(where)
            raise Interrupt

    is_over = False
    while not is_over:
        before, entries = model.state, len(os.listdir(folder))
        with Watching(interrupt), suppress(Interrupt):
            CHANGES[name](model)
            is_over = True
        after = model.state
        assert same(Journal.resumed(folder)[1], after), seen[-1]
        is_done = not same(after, before)
        assert len(os.listdir(folder)) == entries + is_done, seen[-1]
    assert content(resumed(folder), tmp_path) == digest(model)
    files = {where.split(":")[0] for where in seen}
    assert files == {os.path.basename(one) for one in WATCHED}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_line_leaves_journal_and_memory_alike(tmp_path, name):
    check_all_lines(tmp_path, name)


def test_an_interrupt_at_some_lines_leaves_journal_and_memory_alike(tmp_path):
    check_all_lines(tmp_path, "fade", every=7, learn=False)


# ---- streams that are killed ----


def test_a_killed_stream_resumes_bit_for_bit(tmp_path):
    """From all that a kill at any line of a commit can leave: the folder as it is there."""
    folder, left = tmp_path / "journal", {}
    model = journaled(folder, learn=False)

    def keep(number, where):
        there = frozenset((file.name, file.stat().st_size) for file in folder.iterdir())
        if there not in left:
            left[there] = shutil.copytree(folder, tmp_path / f"killed at line {number}")

    with Watching(keep):
        CHANGES["update"](model)
    assert any(list(one.glob("*.part")) for one in left.values())
    seen = set()
    for one in left.values():
        again = resumed(one)
        seen.add(again.num_updates)
        if again.num_updates == 2:
            CHANGES["update"](again)
        assert digest(again) == digest(model), one.name
        assert len(os.listdir(one)) == len(os.listdir(folder)), one.name
    assert seen == {2, 3}


def stream_on(folder, number):
    """Begin or resume a journaled stream and finish it."""
    journal = Path(folder, "journal")
    if (journal / "00000000.npz").exists():
        model = resumed(journal)
    else:
        model = begun("variational", journal=journal)
    for index in range(model.num_updates, int(number)):
        model.update(batch("variational", index))
        print("learned", index, flush=True)
    model.save(Path(folder, "final.npz"))
    np.save(Path(folder, "predictions.npy"), predictions(model))


def within_an_update(journal, rng):
    time.sleep(rng.uniform(0.0, 0.1))


def within_a_write(journal, rng):
    patience = time.monotonic() + 30.0
    while not any(journal.glob("*.part")) and time.monotonic() < patience:
        pass


@pytest.mark.slow
def test_twenty_kills_do_not_show(tmp_path):
    """Each at a moment after the first update of a process, so that all functions are compiled."""
    rng, number = np.random.default_rng(9), 120
    for moment in 10 * [within_an_update, within_a_write]:
        child = in_another_process(stream_on, tmp_path, number, stdout=subprocess.PIPE)
        assert child.stdout.readline().startswith("learned")
        moment(tmp_path / "journal", rng)
        child.kill()
        child.communicate()
        assert child.returncode == -signal.SIGKILL
    stream_on(tmp_path, number)
    uninterrupted = begun("variational")
    for index in range(number):
        uninterrupted.update(batch("variational", index))
    there = np.load(tmp_path / "predictions.npy")
    np.testing.assert_array_equal(there, predictions(uninterrupted))
    assert content(uninterrupted, tmp_path) == (tmp_path / "final.npz").read_bytes()


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
