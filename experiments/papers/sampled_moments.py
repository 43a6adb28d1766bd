"""Stochastic EP with sampled moments: logistic regression, 20 pieces (Li et al. 2015, section C.2).

Labels of a logistic regression with four inputs and a standard normal prior, 1,000 data in 20
random pieces. Tilted distributions are of whole pieces, and their moments are those of draws with
importance weights. Prints and records how far means are off in posterior standard deviations (root
mean square) and the relative error of the covariance (Frobenius norm) after each pass, against many
more draws from the posterior of all data, and the bytes of q and of what is kept beside it.

- DEP keeps a factor for each piece; ADF is its first pass, which needs none of them again;
- SEP and AEP keep one factor for all pieces.

Every run is kept in OUT/runs and never repeated. --quick makes one set of 200 data and two passes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Results, parser, run, write_json, write_results
from tqdm import tqdm

from experiments.means import mean_and_error
from streaming_gp import datasets, linear, pvi

INPUTS, PIECES = 4, 20
METHODS = ("DEP", "SEP", "AEP")
REFERENCE = pvi.DistributedEPUpdate(num_samples=400_000)


@dataclass(frozen=True)
class Task:
    """One run: a method, and the number of the set."""

    method: str
    repetition: int
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        quick = "-quick" if self.quick else ""
        return f"{self.method}-{self.repetition}-{self.seed}{quick}.json"

    @property
    def size(self) -> int:
        return 200 if self.quick else 1000

    @property
    def passes(self) -> int:
        return 2 if self.quick else 10

    @property
    def update(self) -> pvi.DistributedEPUpdate:
        """How the moments of a piece are sampled."""
        return pvi.DistributedEPUpdate(num_samples=1000 if self.quick else 4000)


def data_of(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """X [N, 4] and labels Y [N, 1] of weights from the prior, in a random order."""
    rng = np.random.default_rng([task.seed, task.repetition])
    X, weights = rng.standard_normal((task.size, INPUTS)), rng.standard_normal((INPUTS, 1))
    probability = 1.0 / (1.0 + np.exp(-X @ weights))
    return X, (rng.uniform(size=probability.shape) < probability).astype(float)


def server_of(model: Any, shards: Any, update: Any, task: Task) -> pvi.Server:
    return pvi.Server(model.prior(), pvi.make_clients(model, shards, update), seed=task.seed)


def reference(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Mean [4] and covariance [4, 4] of draws from the posterior of all data."""
    server = server_of(linear.logistic_regression(INPUTS), [data_of(task)], REFERENCE, task)
    pvi.fit(server, pvi.Sequential())
    return np.asarray(server.posterior.mean), np.asarray(server.posterior.covariance)


def perform(task: Task) -> Results:
    """Errors after each pass, and the bytes that are kept."""
    model, data = linear.logistic_regression(INPUTS), data_of(task)
    mean, covariance = reference(task)
    shards = datasets.partition_iid(*data, PIECES, task.repetition)
    rule: pvi.UpdateRule = task.update
    if task.method != "DEP":
        X, Y = (np.concatenate(part) for part in zip(*shards, strict=True))
        shards, rule = [(X, Y)], pvi.TiedUpdate(rule, PIECES, averaged=task.method == "AEP")
    server = server_of(model, shards, rule, task)

    def errors(q: Any) -> dict[str, float]:
        away = (np.asarray(q.mean) - mean) / np.sqrt(np.diag(covariance))
        off = np.linalg.norm(np.asarray(q.covariance) - covariance) / np.linalg.norm(covariance)
        return {"mean_error": float(np.sqrt(np.mean(away**2))), "covariance_error": float(off)}

    history = pvi.fit(server, pvi.Sequential(), task.passes, evaluate=errors)
    kept = [server.posterior, *server.factors.values()]
    return {
        "mean_error": history.column("mean_error"),
        "covariance_error": history.column("covariance_error"),
        "refused": sum(len(one.refused) + len(one.failed) for one in history),
        "bytes": [sum(np.asarray(eta).nbytes for eta in one.natural) for one in kept],
    }


def performed(tasks: list[Task], folder: Path) -> list[Results]:
    """Every run's record, from its file where there is one."""
    for task in tqdm(tasks, desc="runs", disable=not sys.stderr.isatty()):
        if not (folder / task.name).exists():
            write_json(folder / task.name, {**asdict(task), **perform(task)})
    return [json.loads((folder / task.name).read_text()) for task in tasks]


def summary(runs: list[Results]) -> list[Results]:
    """One row for each method; errors are means over the second half of the passes."""
    rows = []
    for method in ("DEP", "ADF", "SEP", "AEP"):
        mine = [one for one in runs if one["method"] == ("DEP" if method == "ADF" else method)]
        passes = len(mine[0]["mean_error"])
        used = slice(0, 1) if method == "ADF" else slice(passes // 2, None)
        kept = mine[0]["bytes"][:1] if method == "ADF" else mine[0]["bytes"]
        row: Results = {"method": method, "passes": 1 if method == "ADF" else passes}
        for key in ("mean_error", "covariance_error"):
            values = [{key: float(np.mean(one[key][used]))} for one in mine]
            row[key] = "{:.4f} ± {:.4f}".format(*mean_and_error(values, key))
        rows.append({**row, "sets": len(mine), "bytes": sum(kept)})
    return rows


def main(arguments: argparse.Namespace) -> None:
    sets = 1 if arguments.quick else 5
    tasks = [
        Task(method, repetition, arguments.seed, arguments.quick)
        for repetition in range(sets)
        for method in METHODS
    ]
    runs = performed(tasks, arguments.out / "runs")
    rows = summary(runs)
    for row in rows:
        print(
            f"{row['method']}: mean off by {row['mean_error']} sd, covariance by "
            f"{row['covariance_error']}, {row['bytes']} bytes"
        )
    write_results(arguments.out, {"summary": rows, "runs": runs})


if __name__ == "__main__":
    run(main, parser(__doc__))
