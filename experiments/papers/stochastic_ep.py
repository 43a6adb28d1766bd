"""Stochastic EP against EP: kernel probit regression on XOR data (Li et al. 2015, supplement).

Four unit Gaussians at (±3, ±3) are labelled by the sign of the product of their coordinates; every
training point is the centre of a feature exp(−|x − x'|²/2) whose weight has the prior N(0, 1).
Prints and records test error, mean test log likelihood and the bytes that a method has to keep, for
10, 20 and 50 training points a Gaussian and 50 test points, as mean ± standard error over sets.

- EP keeps a site for each datum; assumed density filtering (ADF) is its first pass, which needs
  none of them again;
- SEP keeps a single site for all data, and so does averaged EP (AEP), which sees all data at once;
- DSEP and DAEP keep one for each Gaussian.

The same again with a tenth of the training labels flipped, for 20 points a Gaussian.

Every run is kept in OUT/runs and never repeated: stop and start again at will; --finished makes
table and figure of what there is. --quick runs two sets of 10 points a Gaussian.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results
from tqdm import tqdm

from experiments.means import mean_and_error
from streaming_gp import linear, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.metrics import error_rate

CENTRES = np.array([[3.0, 3.0], [-3.0, -3.0], [3.0, -3.0], [-3.0, 3.0]])
TEST_POINTS, GRID = 50, np.linspace(-6.0, 6.0, 49)
FLIPPED, FLIPPED_SIZE = 0.1, 20

Shards = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Method:
    """How it divides features and labels among clients, and what it does with them."""

    shards: Callable[[np.ndarray, np.ndarray], Shards]
    update: Callable[[int], pvi.UpdateRule]
    rounds: int
    keeps_factors: bool = True


def one_by_one(X: np.ndarray, Y: np.ndarray) -> Shards:
    return [(X[n : n + 1], Y[n : n + 1]) for n in range(len(X))]


def together(X: np.ndarray, Y: np.ndarray) -> Shards:
    return [(X, Y)]


def by_gaussian(X: np.ndarray, Y: np.ndarray) -> Shards:
    """The data come Gaussian by Gaussian."""
    return list(zip(np.split(X, len(CENTRES)), np.split(Y, len(CENTRES)), strict=True))


def ep(size: int) -> pvi.UpdateRule:
    return pvi.PowerEPUpdate.one_step()


def a_pass_of_sep(size: int) -> pvi.UpdateRule:
    return pvi.StochasticEPUpdate(steps=size, damping=1.0 / size, batch_size=1)


def a_step_of_aep(size: int) -> pvi.UpdateRule:
    return pvi.StochasticEPUpdate()


METHODS = {
    "EP": Method(one_by_one, ep, 6),
    "ADF": Method(one_by_one, ep, 1, keeps_factors=False),
    "SEP": Method(together, a_pass_of_sep, 20),
    "DSEP": Method(by_gaussian, a_pass_of_sep, 20),
    "AEP": Method(together, a_step_of_aep, 20),
    "DAEP": Method(by_gaussian, a_step_of_aep, 20),
}


@dataclass(frozen=True)
class Task:
    """One run: so many points a Gaussian, the number of the set, and whether labels are flipped."""

    method: str
    size: int
    repetition: int
    seed: int
    flipped: bool = False

    @property
    def name(self) -> str:
        """Of its file."""
        flipped = "-flipped" if self.flipped else ""
        return f"{self.method}-{self.size}-{self.repetition}-{self.seed}{flipped}.json"


def xor(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """X [4 size, 2] and Y [4 size, 1], one Gaussian after the other."""
    X = np.repeat(CENTRES, size, axis=0) + rng.standard_normal((len(CENTRES) * size, 2))
    labels = (np.prod(CENTRES, axis=1) < 0.0).astype(float)
    return X, np.repeat(labels, size)[:, None]


def data_of(task: Task) -> Split:
    rng = np.random.default_rng([task.seed, task.size, task.repetition])
    data = Split(*xor(task.size, rng), *xor(TEST_POINTS, rng))
    if not task.flipped:
        return data
    Y = data.Y.copy()
    rows = rng.choice(len(Y), round(FLIPPED * len(Y)), replace=False)
    Y[rows] = 1.0 - Y[rows]
    return replace(data, Y=Y)


def features(X: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """``exp(−|x − x'|²/2)`` for each centre x': [N, M]."""
    return np.exp(-0.5 * np.sum((X[:, None] - centres[None]) ** 2, axis=-1))


# ---- one run after another ----


def perform(task: Task) -> Results:
    """Scores and memory, and in the first set P(y = 1) over the plane."""
    method, data = METHODS[task.method], data_of(task)
    model = linear.probit_regression(len(data.X))
    shards = method.shards(features(data.X, data.X), data.Y)
    clients = pvi.make_clients(model, shards, method.update(len(shards[0][0])))
    server = pvi.Server(model.prior(), clients, seed=task.seed)
    schedule = pvi.Sequential(order="random", seed=task.repetition)
    history = pvi.fit(server, schedule, method.rounds)
    q, test = server.posterior, features(data.X_test, data.X)
    kept = [q, *(server.factors.values() if method.keeps_factors else ())]
    probability = model.predict(q, test)[0]
    density = np.log(np.where(data.Y_test == 1.0, probability, 1.0 - probability))
    return {
        "test_error": error_rate(probability, data.Y_test),
        "test_log_likelihood": float(np.mean(density)),
        "bytes": sum(np.asarray(eta).nbytes for one in kept for eta in one.natural),
        "seconds": history[-1].seconds,
        "plane": plane(model, q, data.X) if task.repetition == 0 else [],
    }


def plane(model: linear.GeneralisedLinearModel, q: Any, centres: np.ndarray) -> list[list[float]]:
    points = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)
    probability = model.predict(q, features(points, centres))[0]
    rounded: list[list[float]] = np.round(probability, 4).reshape(len(GRID), -1).tolist()
    return rounded


def performed(tasks: list[Task], folder: Path) -> list[Results]:
    """Every run's record, from its file where there is one."""
    missing = [task for task in tasks if not (folder / task.name).exists()]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are there already")
    for task in tqdm(missing, desc="runs", disable=not sys.stderr.isatty()):
        record = perform(task)
        write_json(folder / task.name, {**asdict(task), **record})
        print(
            f"{task.name}: error "
            f"{record['test_error']:.3f}, log likelihood {record['test_log_likelihood']:.3f}, "
            f"{record['seconds']:.0f} s",
            flush=True,
        )
    return [json.loads((folder / task.name).read_text()) for task in tasks]


# ---- table and figure ----


def summary(runs: list[Results]) -> list[Results]:
    """One row for each number of points and each method."""
    rows = []
    for size in sorted({one["size"] for one in runs}):
        for method in METHODS:
            mine = [one for one in runs if (one["size"], one["method"]) == (size, method)]
            error, likelihood = (
                mean_and_error(mine, key) for key in ("test_error", "test_log_likelihood")
            )
            rows.append(
                {
                    "points": f"{size}·4",
                    "method": method,
                    "sets": len(mine),
                    "test_error": f"{error[0]:.3f} ± {error[1]:.4f}",
                    "test_log_likelihood": f"{likelihood[0]:.3f} ± {likelihood[1]:.3f}",
                    "bytes": mine[0]["bytes"],
                    "seconds": mean_and_error(mine, "seconds")[0],
                }
            )
    return rows


def contours(runs: list[Results]) -> plt.Figure:
    """P(y = 1) over the plane in the first set, with its training data."""
    drawn = [one for one in runs if one["plane"]]
    sizes = sorted({one["size"] for one in drawn})
    figure, panels = plt.subplots(
        len(sizes), len(METHODS), figsize=(14, 2.6 * len(sizes)), squeeze=False, sharex=True,
        sharey=True, layout="constrained",
    )  # fmt: skip
    for one in drawn:
        axes = panels[sizes.index(one["size"]), list(METHODS).index(one["method"])]
        fields = ("method", "size", "repetition", "seed", "flipped")
        data = data_of(Task(**{name: one[name] for name in fields}))
        filled = axes.contourf(GRID, GRID, one["plane"], levels=np.linspace(0, 1, 11), cmap="RdBu")
        axes.scatter(*data.X.T, c=data.Y[:, 0], s=6, cmap="RdBu", edgecolors="k", linewidths=0.3)
        axes.set_title(f"{one['method']}, N = {one['size']}·4", fontsize=9)
    figure.colorbar(filled, ax=panels, label="P(y = 1)")
    return figure


def is_finished(task: Task, folder: Path) -> bool:
    return all((folder / replace(task, method=method).name).exists() for method in METHODS)


def main(arguments: argparse.Namespace) -> None:
    if arguments.sets is not None and arguments.sets < 1:
        raise InvalidDataError(f"sets must be positive, got {arguments.sets}")
    sizes = [10] if arguments.quick else [10, 20, 50]
    sets = arguments.sets or (2 if arguments.quick else 10)
    tasks = [
        Task(method, size, repetition, arguments.seed)
        for size in sizes
        for repetition in range(sets)
        for method in METHODS
    ]
    flipped_size = 10 if arguments.quick else FLIPPED_SIZE
    tasks += [replace(task, flipped=True) for task in tasks if task.size == flipped_size]
    if arguments.finished:
        tasks = [task for task in tasks if is_finished(task, arguments.out / "runs")]
    if not tasks:
        raise InvalidDataError(f"no set is finished in {arguments.out / 'runs'}")
    runs = performed(tasks, arguments.out / "runs")
    sections = {"summary": "stochastic_ep.png", "flipped": "stochastic_ep_flipped.png"}
    found = {}
    for flipped, (section, figure) in enumerate(sections.items()):
        mine = [one for one in runs if one["flipped"] == bool(flipped)]
        found[section] = summary(mine)
        for row in found[section]:
            print(
                f"{section} {row['points']:>5} {row['method']:>4}: error {row['test_error']}, "
                f"log likelihood {row['test_log_likelihood']}, {row['bytes'] / 1e6:.2f} MB"
            )
        save_figure(contours(mine), arguments.out, figure)
    results = {
        "seed": arguments.seed,
        **found,
        "runs": [{key: one[key] for key in one if key != "plane"} for one in runs],
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--sets", type=int, help="training sets of each size; 10, or 2 if quick")
    options.add_argument("--finished", action="store_true", help="only sets that are done")
    run(main, options)
