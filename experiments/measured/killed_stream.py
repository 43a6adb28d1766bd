"""A stream whose process is killed at random moments and resumed from its journal: 1,000 kills.

Each stream learns 300 batches of five points under a budget, and writes a journal. Its process is
sent SIGKILL at a moment drawn anew each time (from its start on, or from when it has resumed),
started again, and so on until the stream is through.
What is checked: after each kill the journal resumes at the last update that the process had
reported, or at the one that it was reporting; and in the end the model is, bit for bit, that of a
process which nobody killed. Every tenth stream learns hyperparameters as well.

Processes are forks of one that has imported TensorFlow and not used it. Every finished stream is
kept in OUT/runs and never repeated: stop and start again at will. --quick makes five kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import tempfile
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import psutil
from common import Results, parser, run, write_json, write_results

import streaming_gp as sgp

BATCHES, LONGEST, LONGEST_LEARNING = 300, 3.0, 20.0
"""Batches of a stream, and the seconds within which a process is killed: those of its own processor
time, as long on a busy machine. One that learns has to trace its functions in each of its lives."""
GLANCE = 0.02
"""Seconds until it is looked again how much a process has used."""
PATIENCE = 6 * 3600.0
"""The most seconds that a process may use for what it is not killed in."""


def modules() -> Results:
    kernel = gpflow.kernels.SquaredExponential()
    return {"kernel": kernel, "likelihood": gpflow.likelihoods.Gaussian(0.1)}


def learns(stream: int) -> bool:
    """Whether the stream learns hyperparameters, every twentieth batch."""
    return stream % 10 == 9


def begun(stream: int, journal: Path) -> sgp.StreamingGP:
    hyperparameters: Any = sgp.FixedHyperparameters()
    if learns(stream):
        hyperparameters = sgp.VariationalHyperparameters(num_samples=2)
    return sgp.StreamingGP(
        **modules(),
        pseudo_points=sgp.PrivatePseudoPoints(3 if learns(stream) else "all", budget=24),
        hyperparameters=hyperparameters,
        optimiser=sgp.LocalOptimiser(max_iterations=3, projection_iterations=2),
        seed=stream,
        journal=journal,
    )


def batch(stream: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([stream, number])
    X = rng.uniform(-3.0, 3.0, (5, 1))
    return X, np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)


def live(stream: int, folder: Path, batches: int, report: int) -> None:
    """One life of the process: begins or resumes, and reports each update once it is made."""
    journal = folder / "journal"
    if journal.exists() and any(journal.glob("*.npz")):
        model = sgp.StreamingGP.resume(journal, **modules())
    else:
        model = begun(stream, journal)
    os.write(report, f"{model.num_updates}\n".encode())
    for number in range(model.num_updates, batches):
        model.update(batch(stream, number), learn=learns(stream) and number % 20 == 0)
        os.write(report, f"{model.num_updates}\n".encode())
    model.save(folder / "end.npz")


def started(stream: int, folder: Path, batches: int) -> tuple[int, int]:
    """A process at work: its number, and where it reports."""
    reports, report = os.pipe()
    process = os.fork()
    if process:
        os.close(report)
        return process, reports
    try:
        os.close(reports)
        live(stream, folder, batches, report)
    except BaseException as error:  # the parent has to know, whatever it is
        os.write(report, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def used(process: int) -> float:
    """The seconds of processor time of a process that runs, or has ended and is waited for."""
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


def reported(
    process: int, reports: int, seconds: float, one: bool = False
) -> tuple[list[str], bool]:
    """The lines that come while a process uses so many seconds, and whether it has closed its end.

    :param one: Whether to wait no longer than for the first line.
    """
    text, end = b"", used(process) + seconds
    while used(process) < end and not (one and text.endswith(b"\n")):
        if select.select([reports], [], [], GLANCE)[0]:
            part = os.read(reports, 65536)
            if not part:
                return text.decode().splitlines(), True
            text += part
    return text.decode().splitlines(), False


def one_life(
    stream: int, folder: Path, batches: int, seconds: float, once_ready: bool = False
) -> Results:
    """Start, kill after so many seconds, and see what it had reported.

    :param once_ready: Whether the seconds count from its first report on.
    """
    process, reports = started(stream, folder, batches)
    lines: list[str] = []
    ended = False
    if once_ready:
        lines, ended = reported(process, reports, PATIENCE, one=True)
    if not ended:
        more, ended = reported(process, reports, seconds)
        lines += more
    if not ended:
        os.kill(process, signal.SIGKILL)
        lines += reported(process, reports, PATIENCE)[0]
    _, status = os.waitpid(process, 0)
    os.close(reports)
    wrong = [line for line in lines if not line.isdigit()]
    if wrong or (ended and status != 0):
        raise SystemExit(f"stream {stream}, process {process}: {wrong or status}")
    unfinished = len(list((folder / "journal").glob("*.part")))
    numbers = [int(line) for line in lines]
    return {"killed": not ended, "reported": numbers, "unfinished_files": unfinished}


def one_stream(stream: int, batches: int) -> Results:
    """Kill until it is through; then compare with a process that nobody kills."""
    draw = random.Random(stream)
    longest = LONGEST_LEARNING if learns(stream) else LONGEST
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        folder, lives, known, lost = Path(first), [], 0, 0
        while not (folder / "end.npz").exists():
            seconds, once_ready = draw.uniform(0.0, longest), draw.random() < 0.7
            life = one_life(stream, folder, batches, seconds, once_ready)
            if life["reported"]:
                lost += not known <= life["reported"][0] <= known + 1
                known = life["reported"][-1]
            lives.append(life)
        if one_life(stream, Path(second), batches, PATIENCE)["killed"]:
            raise SystemExit(f"stream {stream}: not through within {PATIENCE:.0f} seconds")
        same = (folder / "end.npz").read_bytes() == (Path(second) / "end.npz").read_bytes()
    killed = [life for life in lives if life["killed"]]
    return {
        "stream": stream,
        "learns": learns(stream),
        "kills": len(killed),
        "before_it_was_ready": sum(not life["reported"] for life in killed),
        "within_a_write": sum(life["unfinished_files"] > 0 for life in killed),
        "updates_lost": lost,
        "same_bit_for_bit": same,
    }


def summary(streams: list[Results]) -> list[Results]:
    counts = ("kills", "before_it_was_ready", "within_a_write", "updates_lost")
    kinds = {"absorbs batches": False, "learns hyperparameters as well": True}
    return [
        {
            "stream": kind,
            "streams": len(chosen),
            **{name: sum(one[name] for one in chosen) for name in counts},
            "same_bit_for_bit": sum(one["same_bit_for_bit"] for one in chosen),
        }
        for kind, learning in kinds.items()
        if (chosen := [one for one in streams if one["learns"] == learning])
    ]


def main(arguments: argparse.Namespace) -> None:
    wanted, batches = (5, 30) if arguments.quick else (1000, BATCHES)
    runs = arguments.out / "runs"
    streams: list[Results] = []
    while sum(one["kills"] for one in streams) < wanted:
        number = arguments.seed * 1000 + len(streams)
        path = runs / f"stream-{number}{'-quick' * arguments.quick}.json"
        if not path.exists():
            write_json(path, one_stream(number, batches))
        streams.append(json.loads(path.read_text()))
        print(f"{path.name}: {sum(one['kills'] for one in streams)} kills so far", flush=True)
        write_results(arguments.out, {"summary": summary(streams)})
    for row in summary(streams):
        print(row)


if __name__ == "__main__":
    run(main, parser(__doc__))
