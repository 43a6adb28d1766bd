"""Processes that are killed lose nothing that was completed."""

import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.builders import EVERY_INPUT
from tests.oracles.saved_streams import (
    batch,
    begun,
    content,
    in_another_process,
    predictions,
    resumed,
)


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
