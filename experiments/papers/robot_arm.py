"""Inverse dynamics of a robot arm: PVI 2018, section 7.2.2 and figure 7.

For each of seven joints, streams of 24 batches sorted by the position of each joint in turn; every
streaming GP system of the paper, with batch SGPR and the exact GP on all data as limits. Prints and
records test SMSE, mean negative log density and seconds after every batch.

Every run is kept in OUT/runs and never repeated: stop and start again at will; --finished makes
tables and figures of what there is. --quick runs six batches of one stream of the third joint.
--source simulated needs no data and is labelled so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import tensorflow as tf
from barrett_stream import standardised
from common import Results, parser, run, save_figure, write_json, write_results
from tqdm import tqdm

from experiments.papers.robot_arm_methods import LIMITS, METHODS, NOT_DRAWN, STREAMS
from experiments.papers.robot_arm_tables import (
    curve,
    figure_7,
    private_and_shared,
    side_by_side,
    summary,
)
from streaming_gp.datasets import load_robot_arm
from streaming_gp.errors import InvalidDataError

NUM_JOINTS, NUM_BATCHES = 7, 24
ALL_AT_ONCE = 0
"""Number of the 'stream' of a method that sees all data at once."""


@dataclass(frozen=True)
class Task:
    """One run: joints and streams are numbered from 1, as in the paper."""

    method: str
    joint: int
    stream: int
    seed: int
    batches: int
    source: str
    folder: str | None

    @property
    def name(self) -> str:
        """Of its file."""
        parts = f"joint{self.joint}-stream{self.stream}-{self.method}-{self.batches}-{self.seed}"
        return f"{Path(self.source).stem}-{parts}.json"


def perform(task: Task, threads: int | None = None) -> list[Results]:
    """Records after every batch of one run."""
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    data = standardised(load_robot_arm(task.source, task.folder), task.joint - 1)
    order = np.arange(len(data.X))
    if task.stream != ALL_AT_ONCE:
        order = np.argsort(data.X[:, task.stream - 1], kind="stable")
    batches = np.array_split(order, NUM_BATCHES)[: task.batches]
    found = METHODS[task.method](data, batches, task.seed + task.stream)
    return [{"batch": number, **record} for number, record in enumerate(found, start=1)]


def performed(tasks: list[Task], folder: Path, jobs: int) -> list[Results]:
    """Every run's records, from its file where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [task for task in tasks if not (folder / task.name).exists()]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are there already")
    with tqdm(total=len(missing), desc="runs", disable=not sys.stderr.isatty()) as bar:
        for task, records in _in_parallel(missing, jobs):
            write_json(folder / task.name, {**asdict(task), "jobs": jobs, "records": records})
            last, seconds = records[-1], sum(r["seconds"] for r in records)
            print(
                f"{task.method}, joint {task.joint}, stream {task.stream}: SMSE "
                f"{last['test_smse']:.4f}, NLPD {last['test_nlpd']:.3f}, {seconds:.0f} s",
                flush=True,
            )
            bar.update()
    return [json.loads((folder / task.name).read_text()) for task in tasks]


def _in_parallel(tasks: list[Task], jobs: int) -> Iterator[tuple[Task, list[Results]]]:
    if jobs == 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:  # a fresh TensorFlow each
        yield from pool.imap_unordered(partial(_named, threads=threads), tasks)


def _named(task: Task, threads: int) -> tuple[Task, list[Results]]:
    return task, perform(task, threads)


# ---- which runs ----


def chosen_tasks(arguments: argparse.Namespace) -> list[Task]:
    """The third joint first, and streams of every joint in turn: useful wherever it is stopped."""
    folder = None if arguments.data is None else str(arguments.data)

    def task(method: str, joint: int, stream: int) -> Task:
        batches = 6 if arguments.quick else NUM_BATCHES
        return Task(method, joint, stream, arguments.seed, batches, arguments.source, folder)

    joints = sorted(arguments.joints, key=lambda joint: (joint != 3, joint))
    streams = [
        task(method, joint, stream)
        for stream in arguments.streams
        for joint in joints
        for method in arguments.methods
        if method in STREAMS
    ]
    limits = [
        task(method, joint, ALL_AT_ONCE)
        for joint in joints
        for method in arguments.methods
        if method in LIMITS
    ]
    return limits + streams


def checked(arguments: argparse.Namespace) -> argparse.Namespace:
    unknown = set(arguments.methods) - set(METHODS)
    if unknown:
        raise InvalidDataError(f"no method {sorted(unknown)[0]!r}; there are {list(METHODS)}")
    if not {*arguments.joints, *arguments.streams} <= set(range(1, NUM_JOINTS + 1)):
        raise InvalidDataError("joints and streams are numbered 1 to 7")
    return arguments


def main(arguments: argparse.Namespace) -> None:
    tasks = chosen_tasks(checked(arguments))
    if arguments.source == "simulated":
        print("data of a simulated arm, not of a real one")
    folder = arguments.out / "runs"
    if arguments.finished:
        tasks = [task for task in tasks if (folder / task.name).exists()]
    if not tasks:
        raise InvalidDataError(f"no run is finished in {folder}")
    runs = performed(tasks, folder, arguments.jobs)
    rows = summary(runs)
    drawn = [[name for name in methods if name not in NOT_DRAWN] for methods in (STREAMS, LIMITS)]
    for key, label in (("test_smse", "test SMSE"), ("test_nlpd", "mean negative log density")):
        figure = figure_7(runs, key, label, *drawn)
        save_figure(figure, arguments.out, f"robot_arm_{key.removeprefix('test_')}.png")
    results = {
        "source": arguments.source,
        "seed": arguments.seed,
        "joints": side_by_side(rows, list(METHODS)),
        "private_and_shared": private_and_shared(runs),
        "summary": rows,
        "curves": [curve(run) for run in runs],
    }
    write_results(arguments.out, results)


def with_defaults(arguments: argparse.Namespace) -> None:
    """--quick narrows what is not asked for by name."""
    quick = arguments.quick
    everything = list(range(1, NUM_JOINTS + 1))
    arguments.joints = arguments.joints or ([3] if quick else everything)
    arguments.streams = arguments.streams or ([1] if quick else everything)
    arguments.methods = arguments.methods or (
        ["private VI", "private ML"] if quick else list(METHODS)
    )
    main(arguments)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument(
        "--source", default="barrett", help="barrett, sarcos, simulated or a .mat file"
    )
    options.add_argument("--joints", type=int, nargs="+", help="torques to predict, 1 to 7")
    options.add_argument("--streams", type=int, nargs="+", help="joints to sort by, 1 to 7")
    options.add_argument("--methods", nargs="+", help=f"of {', '.join(METHODS)}")
    options.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options.add_argument("--finished", action="store_true", help="only runs that are done")
    run(with_defaults, options)
