"""Stochastic EP for Bayesian networks: regression on UCI data (Li et al. 2015, table 2).

A network with one hidden layer of 50 ReLU units (100 for the protein data) under independent
Gaussian weights, trained by probabilistic back-propagation (Hernández-Lobato & Adams 2015) in 40
passes over the training data, as in the papers, or in the --passes asked for, one datum after
another:

- EP keeps a site for each datum, SEP a single site for all data;
- ADF keeps none, and so counts every datum 40 times.

Inputs and targets are standardised on the training data; weights have a prior variance of 1. The
noise variance is learned along with the weights, as in the papers, under a prior that is log-normal
about 1. With --noise fixed it is the mean squared error on a tenth of the training data, of a
network that SEP trains on the rest in 40 passes: with a noise variance of 1 in the first ten, and
with the error up to there after every ten; all three methods have it.

Prints and records test log likelihood (nats a point) and RMSE in the target's units, and the bytes
of the factors that a method has to keep. Every run is kept in OUT/runs and never repeated: stop and
start again at will; --finished makes table and figure of what there is. --quick runs two splits of
the wine data in three passes, with five units.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results

from experiments.means import mean_and_error
from streaming_gp import bnn, pvi
from streaming_gp.datasets import UCI_NAMES, Split, load_uci
from streaming_gp.errors import InvalidDataError

SPLITS = dict.fromkeys(UCI_NAMES, 20) | {"protein-tertiary-structure": 5}
HIDDEN = dict.fromkeys(UCI_NAMES, 50) | {"protein-tertiary-structure": 100}
NOISE_ROUNDS, NOISE_PASSES = 4, 10


def ep(size: int, passes: int) -> pvi.UpdateRule:
    return pvi.PowerEPUpdate(sweeps=passes, damping=1.0, sequential=True)


def sep(size: int, passes: int) -> pvi.UpdateRule:
    return pvi.StochasticEPUpdate(steps=passes * size, damping=1.0 / size, batch_size=1)


def adf(size: int, passes: int) -> pvi.UpdateRule:
    return pvi.AssumedDensityUpdate(passes)


METHODS: dict[str, Callable[[int, int], pvi.UpdateRule]] = {"EP": ep, "SEP": sep, "ADF": adf}


@dataclass(frozen=True)
class Task:
    """One run; for a noise variance that stays fixed the method is "noise".

    :param noise: "learned" or "fixed".
    """

    data: str
    split: int
    method: str
    passes: int
    hidden: int
    seed: int
    noise: str

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join(map(str, asdict(self).values())) + ".json"


@dataclass(frozen=True)
class Scale:
    """Of training data, to mean 0 and variance 1."""

    mean: np.ndarray
    sd: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Scale:
        """Columns that never change are left as they are."""
        sd = values.std(axis=0)
        return cls(values.mean(axis=0), np.where(sd > 0.0, sd, 1.0))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.sd


def standardised(data: Split) -> tuple[Split, float]:
    """And the standard deviation of the targets."""
    of_x, of_y = Scale.of(data.X), Scale.of(data.Y)
    found = Split(of_x(data.X), of_y(data.Y), of_x(data.X_test), of_y(data.Y_test))
    return found, float(of_y.sd[0])


@cache
def network(num_inputs: int, hidden: int, seed: int, noise: str) -> bnn.MomentNetwork:
    """One for all runs, so that it is compiled once."""
    kind = {"learned": bnn.NoisyMomentNetwork, "fixed": bnn.MomentNetwork}[noise]
    return kind(num_inputs, [hidden], seed=seed)


def trained(task: Task, data: Split, noise: float | None) -> tuple[bnn.MomentNetwork, Any, Results]:
    """The network, its posterior, and what it cost.

    :param noise: The variance, where it is not learned.
    """
    model, server = untrained(task, data)
    if noise is not None:
        model.likelihood.variance.assign(noise)
    done = visited(server)
    return model, server.posterior, {"seconds": done.seconds, "skipped": done.skipped}


def untrained(task: Task, data: Split) -> tuple[bnn.MomentNetwork, pvi.Server]:
    """The network, and a server with one client, which has all data."""
    model = network(data.X.shape[1], task.hidden, task.seed, task.noise)
    update = METHODS[task.method](len(data.X), task.passes)
    client = pvi.make_clients(model, [(data.X, data.Y)], update)
    return model, pvi.Server(model.prior(), client, checks=pvi.NO_LIMITS, seed=task.split)


def visited(server: pvi.Server) -> pvi.Round:
    """One visit to the client: all passes of its rule.

    :raises NoAnswerError: if its answer cannot be taken.
    """
    return pvi.fit(server, pvi.Sequential(), 1)[-1]


# ---- one run after another ----


def noise_variance(task: Task, data: Split) -> Results:
    """Of standardised targets; see above."""
    order = np.random.default_rng([task.seed, task.split]).permutation(len(data.X))
    held, kept = np.split(order, [len(order) // 10])
    part = Split(data.X[kept], data.Y[kept], data.X[held], data.Y[held])
    model, server = untrained(replace(task, method="SEP"), part)
    found = [1.0]
    for _ in range(NOISE_ROUNDS):
        model.likelihood.variance.assign(found[-1])
        visited(server)
        error = model.predict(server.posterior, part.X_test)[0] - part.Y_test
        found.append(float(np.mean(error**2)))
    return {"variance": found[-1], "rounds": found}


def scores(task: Task, data: Split, unit: float, noise: float | None) -> Results:
    model, q, cost = trained(task, data, noise)
    residual = model.predict(q, data.X_test)[0] - data.Y_test
    density = model.predict_log_density(q, (data.X_test, data.Y_test)) - np.log(unit)
    sites = {"EP": len(data.X), "SEP": 1, "ADF": 0}[task.method]
    return {
        "log_likelihood": float(density.mean()),
        "rmse": unit * float(np.sqrt(np.mean(residual**2))),
        "factor_bytes": sites * sum(np.asarray(eta).nbytes for eta in q.natural),
        **cost,
    }


def performed(task: Task, folder: Path, work: Callable[[], Results]) -> Results:
    """The run's record, from its file if there is one."""
    path = folder / task.name
    if not path.exists():
        write_json(path, {**asdict(task), **work()})
    record: Results = json.loads(path.read_text())
    return record


def performed_split(task: Task, arguments: argparse.Namespace) -> list[Results]:
    """Of all methods, after a fixed noise variance, which is the same for any number of passes."""
    data, unit = standardised(load_uci(task.data, task.split, arguments.data))
    folder = arguments.out / "runs"
    noise = None
    if task.noise == "fixed":
        short = replace(task, method="noise", passes=min(NOISE_PASSES, task.passes))
        noise = performed(short, folder, partial(noise_variance, short, data))["variance"]
    tasks = [replace(task, method=method) for method in METHODS]
    runs = [performed(one, folder, partial(scores, one, data, unit, noise)) for one in tasks]
    print(f"{task.data}, split {task.split}, {task.passes} passes, noise {noise or 'learned'}")
    for one in runs:
        print(
            f"{one['method']:>5}: log likelihood {one['log_likelihood']:.3f}, RMSE "
            f"{one['rmse']:.4g}, {one['seconds']:.0f} s",
            flush=True,
        )
    return runs


# ---- table and figure ----


def setting(one: Results) -> tuple[str, int]:
    """Data set and number of passes."""
    return one["data"], one["passes"]


def summary(runs: list[Results]) -> list[Results]:
    """One row for each data set, number of passes and method."""
    rows = []
    for (data, passes), method in sorted({(setting(one), one["method"]) for one in runs}):
        mine = [one for one in runs if (setting(one), one["method"]) == ((data, passes), method)]
        likelihood, rmse = (mean_and_error(mine, key) for key in ("log_likelihood", "rmse"))
        rows.append(
            {
                "data": data,
                "passes": passes,
                "method": method,
                "splits": len(mine),
                "log_likelihood": f"{likelihood[0]:.3f} ± {likelihood[1]:.3f}",
                "rmse": f"{rmse[0]:.4f} ± {rmse[1]:.4f}",
                "factor_bytes": mine[0]["factor_bytes"],
                "skipped": sum(one["skipped"] for one in mine),
                "seconds": mean_and_error(mine, "seconds")[0],
            }
        )
    return rows


def differences(runs: list[Results]) -> list[Results]:
    """Of SEP and ADF from EP on the same splits: what forgetting costs."""
    rows = []
    for data, passes in sorted({setting(one) for one in runs}):
        mine = [one for one in runs if setting(one) == (data, passes)]
        of = {method: [one for one in mine if one["method"] == method] for method in METHODS}
        mean = {
            (method, key): mean_and_error(of[method], key)[0]
            for method in METHODS
            for key in ("log_likelihood", "rmse", "factor_bytes")
        }
        rows += [
            {
                "data": data,
                "passes": passes,
                "method": method,
                "log_likelihood": mean[method, "log_likelihood"] - mean["EP", "log_likelihood"],
                "rmse_percent": 100.0 * (mean[method, "rmse"] / mean["EP", "rmse"] - 1.0),
                "bytes_of_ep": mean[method, "factor_bytes"] / mean["EP", "factor_bytes"],
            }
            for method in ("SEP", "ADF")
        ]
    return rows


def figure_of(runs: list[Results]) -> plt.Figure:
    """Log likelihood and RMSE of every split, less EP's on it."""
    names = sorted({setting(one) for one in runs})
    of = {(setting(one), one["split"], one["method"]): one for one in runs}
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for row, name in enumerate(names):
        splits = sorted({one["split"] for one in runs if setting(one) == name})
        for offset, (method, colour) in enumerate((("SEP", "C0"), ("ADF", "C1"))):
            pairs = [(of[name, split, method], of[name, split, "EP"]) for split in splits]
            change = [a["log_likelihood"] - b["log_likelihood"] for a, b in pairs]
            ratio = [100.0 * (a["rmse"] / b["rmse"] - 1.0) for a, b in pairs]
            height = np.full(len(splits), row + 0.2 * (0.5 - offset))
            label = method if row == 0 else None
            for axes, values in zip(panels, (change, ratio), strict=True):
                axes.plot(values, height, "o", ms=3, alpha=0.5, color=colour, label=label)
                axes.plot(np.mean(values), height[0], "|", ms=16, mew=2, color=colour)
    panels[0].set(xlabel="test log likelihood − EP's (nats)", yticks=range(len(names)))
    panels[0].set_yticklabels([f"{data}\n{passes} passes" for data, passes in names], fontsize=8)
    panels[1].set(xlabel="test RMSE against EP's (%)")
    for axes in panels:
        axes.axvline(0.0, color="k", lw=0.8)
    panels[1].legend(fontsize=8)
    return figure


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    names = arguments.datasets or (["wine-quality-red"] if arguments.quick else list(UCI_NAMES))
    several = arguments.passes or [3 if arguments.quick else 40]
    if min(several) < 1:
        raise InvalidDataError(f"passes must be positive, got {several}")
    return [
        Task(
            name, split, "noise", passes, 5 if arguments.quick else HIDDEN[name], arguments.seed,
            arguments.noise,
        )
        for name in names
        for split in arguments.splits or range(2 if arguments.quick else SPLITS[name])
        for passes in several
    ]  # fmt: skip


def is_finished(task: Task, folder: Path) -> bool:
    return all((folder / replace(task, method=method).name).exists() for method in METHODS)


def main(arguments: argparse.Namespace) -> None:
    tasks = tasks_of(arguments)
    if arguments.finished:
        tasks = [task for task in tasks if is_finished(task, arguments.out / "runs")]
    if not tasks:
        raise InvalidDataError(f"no split is finished in {arguments.out / 'runs'}")
    runs = [record for task in tasks for record in performed_split(task, arguments)]
    rows, changes = summary(runs), differences(runs)
    for row in rows:
        print(
            f"{row['data']:>26}, {row['passes']} passes, {row['method']:>3}: log likelihood "
            f"{row['log_likelihood']}, RMSE {row['rmse']}, {row['factor_bytes'] / 1e6:.3f} MB of "
            "factors"
        )
    save_figure(figure_of(runs), arguments.out, "stochastic_ep_networks.png")
    results = {
        "seed": arguments.seed,
        "summary": rows,
        "differences": changes,
        "runs": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--datasets", nargs="+", choices=UCI_NAMES, help="all if not given")
    options.add_argument("--splits", nargs="+", type=int, help="from 0; all if not given")
    options.add_argument(
        "--passes", nargs="+", type=int, help="over the training data; 40, or 3 if quick"
    )
    options.add_argument("--noise", choices=["learned", "fixed"], default="learned")
    options.add_argument("--finished", action="store_true", help="only splits that are done")
    run(main, options)
