"""The defaults of long streams, and others in their place, one at a time.

Three streams of data and a made one, of 20,000 rows under much noise. A row of the table is one
setting that differs from the default; each run has a process of its own, with one thread, and a run
that is in the results is not repeated. Limits that no user sets are set in their modules here.

--quick runs the default and one other setting on 2,000 rows of the made stream.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
from common import COMMIT_DATE, Results, parser, run, write_results
from tqdm import tqdm

import streaming_gp as sgp
from experiments.benchmarks.streams import Stream, load
from streaming_gp.gp.fit import evidence
from streaming_gp.gp.process import nearest

STREAMS = "power-500", "kin8nm-500", "barrett3-by1-500", "noisy-20000"
QUICK_STREAM = "noisy-2000"
NEVER = 10**9
MARGIN = 1.645
"""Of a 90 % interval, in standard deviations."""


@dataclass(frozen=True)
class Setting:
    """What differs from the default.

    :param of: The choice, as the table names it.
    :param title: What it is here.
    :param conditioning: Of the model.
    :param learning: Of the model.
    :param limit: A module and the name of a limit in it, and its value.
    """

    of: str
    title: str
    conditioning: Any = None
    learning: Any = None
    limit: tuple[Any, str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.of}: {self.title}"


SETTINGS = (
    Setting("default", "as it is"),
    Setting("neighbours to learn by", "15", sgp.NearestNeighbors(15)),
    Setting("neighbours to learn by", "60", sgp.NearestNeighbors(60)),
    Setting("neighbours of a prediction", "30", sgp.NearestNeighbors(30, 30, dense_up_to=0)),
    Setting("neighbours of a prediction", "100", sgp.NearestNeighbors(30, 100, dense_up_to=0)),
    Setting("neighbours of a prediction", "400", sgp.NearestNeighbors(30, 400, dense_up_to=0)),
    Setting("neighbours of a prediction", "all", sgp.Dense()),
    Setting("learns when grown by", "1.5", learning=sgp.WhenGrown(by=1.5)),
    Setting("learns when grown by", "4", learning=sgp.WhenGrown(by=4.0)),
    Setting("rows to learn from", "at most 300", limit=(evidence, "MOST", 300)),
    Setting("rows to learn from", "at most 3,000", limit=(evidence, "MOST", 3000)),
    Setting("rows are joined", "never", limit=(nearest, "LEAST_JOINED", NEVER)),
)


def noisy(size: int) -> Stream:
    """A smooth function of three inputs under noise of a standard deviation of 0.3."""
    rng = np.random.default_rng(0)

    def rows(number: int, sd: float) -> tuple[np.ndarray, np.ndarray]:
        X = rng.uniform(-2.0, 2.0, (number, 3))
        f = np.sin(2.0 * X[:, :1]) + np.cos(1.5 * X[:, 1:2]) * X[:, 2:]
        return X, f + sd * rng.standard_normal(f.shape)

    batches = tuple(rows(500, 0.3) for _ in range(size // 500))
    return Stream(batches, *rows(2000, 0.3), classes=False, points=0)


def measured(data: Path | None, seed: int, task: tuple[str, str]) -> Results:
    """One run: error, density, coverage of 90 % intervals, and CPU seconds."""
    name, title = task
    setting = next(one for one in SETTINGS if one.name == title)
    if setting.limit is not None:
        setattr(*setting.limit)
    made, _, size = name.partition("noisy-")
    stream = load(name, data) if made else noisy(int(size))
    D = stream.X_test.shape[1]
    choices = {"conditioning": setting.conditioning, "learning": setting.learning}
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(D, D**0.5)),
        gpflow.likelihoods.Gaussian(0.1),
        seed=seed,
        **{key: value for key, value in choices.items() if value is not None},
    )
    begun = time.process_time()
    for batch in stream.batches:
        model.update(batch)
    learned = time.process_time()
    mean, variance = model.predict_y(stream.X_test)
    predicted = time.process_time()
    error = np.asarray(stream.Y_test - mean)
    densities = model.predict_log_density((stream.X_test, stream.Y_test))
    return {
        "stream": name,
        "of": setting.of,
        "setting": setting.title,
        "smse": float(np.mean(error**2) / np.var(stream.Y_test)),
        "nlpd": -float(np.mean(densities)),
        "coverage": float(np.mean(np.abs(error) < MARGIN * np.sqrt(variance))),
        "learning_cpu_seconds": learned - begun,
        "row_milliseconds": 1e3 * (predicted - learned) / len(stream.X_test),
    }


def is_wanted(stream: str, setting: Setting) -> bool:
    """Whether a run of it ends within minutes."""
    return not isinstance(setting.conditioning, sgp.Dense) or stream == "kin8nm-500"


def main(arguments: argparse.Namespace) -> None:
    streams = [QUICK_STREAM] if arguments.quick else list(STREAMS)
    settings = [SETTINGS[0], SETTINGS[3]] if arguments.quick else list(SETTINGS)
    path = arguments.out / "results.json"
    kept = json.loads(path.read_text()) if path.exists() else {"summary": []}
    rows, date = kept["summary"], kept.get("commit_date", COMMIT_DATE)  # that of the oldest row
    done = {(row["stream"], row["of"], row["setting"]) for row in rows}
    tasks = [
        (stream, one.name)
        for stream in streams
        for one in settings
        if is_wanted(stream, one) and (stream, one.of, one.title) not in done
    ]
    work = partial(measured, arguments.data, arguments.seed)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in tqdm(pool.imap(work, tasks, chunksize=1), total=len(tasks)):
            rows.append(row)
            write_results(arguments.out, {"summary": rows}, date)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(main, parser(__doc__))
