"""One method on one stream, in a process of its own."""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import COMMIT_DATE, write_json

from experiments.benchmarks.machine import reference_seconds
from experiments.benchmarks.methods import METHODS, Hyperparameters, Learner, Setup
from experiments.benchmarks.scores import scores
from experiments.benchmarks.streams import Stream, load
from experiments.benchmarks.tuning import ITERATIONS, Seconds, tuned
from streaming_gp import __version__

QUICK_BATCHES, QUICK_EFFORT = 3, 0.1
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What a row of the results is of.

    :param limit: CPU seconds after which no further batch is begun.
    """

    stream: str
    method: str
    seed: int
    quick: bool
    limit: float
    version: str = __version__

    @property
    def key(self) -> tuple[str, str, int, bool, str]:
        return self.stream, self.method, self.seed, self.quick, self.version


def perform(task: Task, data: Path | None, kept: Path) -> Row:
    """The row of one run; raises what the method raises.

    :param data: The folder in which data are looked for first.
    :param kept: The folder of hyperparameters that several methods want.
    """
    method, stream = METHODS[task.method], load(task.stream, data)
    if task.quick:
        stream = stream.shortened(QUICK_BATCHES)
    hyperparameters, learning = _hyperparameters(task, stream, kept)
    joined = [stream.joined()] if method.at_once else list(stream.batches)
    setup = Setup(
        hyperparameters, stream.num_data, len(joined), stream.points, stream.classes, task.seed,
        QUICK_EFFORT if task.quick else 1.0,
    )  # fmt: skip
    learner = method.learner(setup)
    seen, first, trace = learn(learner, joined, learning, task.limit, stream)
    return {
        "batches_seen": seen,
        "batches": len(joined),
        "data_seen": sum(len(X) for X, _ in joined[:seen]),
        "reached_limit": seen < len(joined),
        "learning_cpu_seconds": learning.cpu,
        "learning_wall_seconds": learning.wall,
        "to_first_prediction_cpu_seconds": first,
        "trace": trace,
        **examined(learner, stream),
        "peak_megabytes": 1e-3 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _hyperparameters(task: Task, stream: Stream, kept: Path) -> tuple[Hyperparameters, Seconds]:
    """Those of a limit cost nothing: they could not be had in a stream."""
    method = METHODS[task.method]
    if method.at_once or method.tuned == "every batch":
        return Hyperparameters.start(stream.X_test.shape[1]), Seconds()
    iterations = round(ITERATIONS * (QUICK_EFFORT if task.quick else 1.0))
    name = f"{task.stream}-{method.tuned.replace(' ', '-')}{'-quick' if task.quick else ''}.json"
    found, seconds = tuned(stream, method.tuned, iterations, kept / name)
    return found, seconds if method.tuned == "first batches" else Seconds()


def learn(
    learner: Learner,
    batches: list[tuple[np.ndarray, np.ndarray]],
    seconds: Seconds,
    limit: float,
    stream: Stream,
) -> tuple[int, float, list[Row]]:
    """Learn batch after batch until the limit.

    :return: How many were learned; CPU seconds until one test point was predicted after the first;
        and the scores on the test data after each tenth of the batches, whose seconds do not count.
    """
    trace: list[Row] = []
    first = Seconds()
    tenths = {round(share * len(batches) / 10) for share in range(1, 11)}
    for seen, (X, Y) in enumerate(batches, 1):
        if seconds.cpu > limit:
            return seen - 1, first.cpu, trace
        with seconds.counted():
            learner.update(X, Y)
        if seen == 1:
            first.cpu = seconds.cpu
            with first.counted():
                learner.predict(stream.X_test[:1])
        if seen in tenths:
            found = scores(learner.predict(stream.X_test), stream.Y_test, stream.classes)
            data_seen = sum(len(X) for X, _ in batches[:seen])
            trace.append({"data_seen": data_seen, "learning_cpu_seconds": seconds.cpu, **found})
    return len(batches), first.cpu, trace


def examined(learner: Learner, stream: Stream) -> Row:
    """Scores on the test data, what predicting them takes, and what is held."""
    seconds = Seconds()
    with seconds.counted():
        predicted = learner.predict(stream.X_test)
    return {
        "predicting_cpu_seconds": seconds.cpu,
        "predicting_wall_seconds": seconds.wall,
        "test_points": len(stream.X_test),
        **scores(predicted, stream.Y_test, stream.classes),
        **asdict(learner.held()),
    }


def attempted(task: Task, data: Path | None, kept: Path) -> Row:
    """The same; a method that fails says how, in one line."""
    method = METHODS[task.method]
    about = {
        "group": method.group, "family": method.family, "setting": list(method.setting),
        "tuned": method.tuned, "source": method.source,
    }  # fmt: skip
    try:
        found = {**perform(task, data, kept), "failed": None}
        if not np.isfinite([found["error"], found["nlpd"]]).all():
            found |= {"error": None, "nlpd": None, "failed": "predicts numbers that are not finite"}
    except Exception as error:  # whatever a rival's library raises is its result
        line = str(error).strip().splitlines()[-1:]
        found = {"failed": f"{type(error).__name__}: {''.join(line)[:200]}"}
    where = {"reference_cpu_seconds": reference_seconds(), "commit_date": COMMIT_DATE}
    return {**asdict(task), **about, **where, **found}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("task", help="the fields of a task as JSON")
    for name in ("--row", "--kept"):
        options.add_argument(name, type=Path, required=True)
    options.add_argument("--data", type=Path, default=None)
    arguments = options.parse_args()
    task = Task(**json.loads(arguments.task))
    write_json(arguments.row, attempted(task, arguments.data, arguments.kept))


if __name__ == "__main__":
    main()
