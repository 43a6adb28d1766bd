"""Federated Bayesian neural networks, beside federated averaging: as PVI 2018, section 7.1.

Ten clients with MNIST shards, iid or one class each; a network 784-200-10 with a standard normal
prior. PVI by several schedules and rules beside stochastic natural gradients and federated
averaging. Prints and records error, negative log likelihood and calibration after every round.

Every run is kept in OUT/runs and never repeated, and results and figures show all that are there,
also runs that are not over: these go on after their last round. Stop and start again at will.
--quick trains on 6,000 images for a few rounds. The methods of the paper at many rates and dampings
are the subject of federated_sweeps.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results
from matplotlib.ticker import NullFormatter

from experiments.federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    PARTITIONS,
    Progress,
    begun,
    fewer_images,
    kept,
    perform_missing,
    scores,
)
from streaming_gp import bnn, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError

SLOW = 10.0


@dataclass(frozen=True)
class Task:
    """One run."""

    method: str
    partition: str
    seed: int
    dataset: str
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        quick = "-quick" if self.quick else ""
        return f"{self.dataset}-{self.partition}-{self.method}-{self.seed}{quick}.json"


@dataclass(frozen=True)
class Method:
    """How the clients answer, who is asked when, and for how many rounds.

    :param update: the rule of a client with this share of all data.
    """

    update: Callable[[float], pvi.UpdateRule]
    schedule: Any
    rounds: int
    warm: bool = False


def local(epochs: int, learning_rate: float = 2e-3, batch_size: int = 200) -> pvi.VariationalUpdate:
    return pvi.VariationalUpdate(epochs, batch_size, learning_rate)


def always(rule: pvi.UpdateRule) -> Callable[[float], pvi.UpdateRule]:
    return lambda share: rule


def averaged(share: float) -> pvi.UpdateRule:
    return pvi.AveragingUpdate(share, local(5, 1e-3))


NEWTON = pvi.VariationalUpdate(
    epochs=5, batch_size=200, optimiser=pvi.VariationalOnlineNewton(learning_rate=0.005)
)
ONE_SLOW = {f"c{k}": SLOW if k == 0 else 1.0 for k in range(NUM_CLIENTS)}

METHODS: dict[str, Method] = {
    "pvi-sync": Method(always(NEWTON), pvi.Synchronous(durations=ONE_SLOW), 60),
    "pvi-async": Method(always(NEWTON), pvi.Asynchronous(durations=ONE_SLOW), 60),
    "pvi-seq": Method(always(NEWTON), pvi.Sequential(damping=0.5), 12),
    "pvi-sync-adam": Method(always(local(5)), pvi.Synchronous(durations=ONE_SLOW), 30),
    "pvi-sync-slow": Method(
        always(local(1, 5e-4)), pvi.Synchronous(damping=0.1, durations=ONE_SLOW), 300
    ),
    "pvi-async-slow": Method(
        always(local(1, 5e-4)), pvi.Asynchronous(damping=0.1, durations=ONE_SLOW), 300
    ),
    "pvi-natural": Method(
        always(pvi.FixedPointUpdate(batch_size=600)),
        pvi.Synchronous(damping=pvi.Annealed(pvi.Momentum())), 400,
        warm=True,
    ),
    "sngd": Method(
        always(pvi.StochasticNaturalGradientUpdate(600)),
        pvi.Synchronous(damping=0.02),
        400,
        warm=True,
    ),
    "fedavg": Method(averaged, pvi.Synchronous(damping=1.0), 40),
    "fedadagrad": Method(
        averaged, pvi.Synchronous(damping=pvi.FedAdagrad()), 40, warm=True
    ),
    "fedyogi": Method(averaged, pvi.Synchronous(damping=pvi.FedYogi()), 40, warm=True),
    "fedadam": Method(averaged, pvi.Synchronous(damping=pvi.FedAdam()), 40, warm=True),
    "masked": Method(
        averaged, pvi.Synchronous(damping=pvi.MaskedAveraging()), 40, warm=True
    ),
}  # fmt: skip
"""``pvi-sync-slow`` and ``pvi-async-slow`` are the paper's own rule: one epoch of Adam a visit, at
a small rate."""


def perform(data: Split, folder: Path, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round.

    :param folder: where a run that is not over is written after each round.
    """
    method = METHODS[task.method]
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    shards = PARTITIONS[task.partition](data.X, data.Y, NUM_CLIENTS, task.seed)
    clients: dict[str, Any] = {}
    for number, (X, Y) in enumerate(shards):
        rule = method.update(len(X) / len(data.X))
        clients |= pvi.make_clients(net, {f"c{number}": (X, Y)}, rule, task.seed)
    rounds = min(method.rounds, 3) if task.quick else method.rounds
    so_far, checkpoint = (folder / f"{task.name}.part.{kind}" for kind in ("json", "npz"))
    server = begun(net, clients, task.seed, checkpoint, method.warm)

    def results() -> Results:
        return {**asdict(task), **columns(server.history)}

    def note(one: pvi.Round) -> None:
        write_json(so_far, results())
        progress(one)

    if len(server.history) < rounds:
        pvi.fit(
            server, method.schedule, rounds - len(server.history), callback=note,
            evaluate=lambda q: scores(net, q, data), checkpoint=checkpoint,
        )  # fmt: skip
    for file in (so_far, checkpoint):
        file.unlink(missing_ok=True)
    return results()


def columns(history: pvi.History) -> Results:
    """What ``results.json`` holds of a run."""
    names = ["round", "seconds", "simulated_seconds", "messages", "bytes"]
    found = {name: history.column(name) for name in names}
    found["refused"] = [len(one.refused) for one in history]
    for name in ("test_error", "test_nll", "test_calibration"):
        found[name] = history.column(name)
    return found


# ---- tables and figures ----


def summary(runs: list[Results]) -> list[Results]:
    """Last and best round of each run, and what it took to three per cent error."""
    rows = []
    for one in runs:
        errors = np.array(one["test_error"])
        there = np.flatnonzero(errors <= 0.03)
        at = int(there[0]) if len(there) else None
        row = {
            "partition": one["partition"],
            "method": one["method"],
            "rounds": len(errors),
            "last_error": float(errors[-1]),
            "last_nll": one["test_nll"][-1],
            "last_calibration": one["test_calibration"][-1],
            "seconds": one["seconds"][-1],
            "messages": one["messages"][-1],
        }
        for name in ("messages", "simulated_seconds"):
            row[f"{name}_to_3_percent"] = None if at is None else one[name][at]
        rows.append(row)
    return rows


def figure(runs: list[Results], partition: str) -> plt.Figure:
    """Test error against rounds' seconds, messages and bytes, as figures 4 and 5."""
    canvas, panels = plt.subplots(1, 3, figsize=(12, 4), sharey=True, layout="constrained")
    for axes, key in zip(panels, ("seconds", "messages", "bytes"), strict=True):
        axes.set_prop_cycle(color=plt.get_cmap("tab20").colors)  # there are more than ten methods
        for one in runs:
            if one["partition"] == partition:
                style = "o" if len(one["round"]) == 1 else "-"
                axes.loglog(one[key], one["test_error"], style, label=one["method"])
        axes.set(xlabel=key)
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set(ylabel="test error", title="iid" if partition == "iid" else "one class a client")
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return canvas


# ---- one run after another ----


def runs_of(arguments: argparse.Namespace) -> list[Results]:
    """All runs on these data that are there, also those of earlier calls."""
    common = {name: getattr(arguments, name) for name in ("dataset", "seed", "quick")}
    runs = [one for one in kept(arguments.out / "runs", **common) if one.get("method") in METHODS]
    return sorted(runs, key=lambda one: (one["partition"], list(METHODS).index(one["method"])))


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    seed, name, quick = arguments.seed, arguments.dataset, arguments.quick
    return [
        Task(method, partition, seed, name, quick)
        for partition in partitions(arguments)
        for method in arguments.methods.split(",")
    ]


def partitions(arguments: argparse.Namespace) -> list[str]:
    return list(PARTITIONS) if arguments.partition == "both" else [arguments.partition]


def command(arguments: argparse.Namespace, runs: list[Results]) -> str:
    """What to type for the same runs."""
    flags = " --quick" * arguments.quick
    script = f"python -m experiments.papers.federated_mnist --dataset {arguments.dataset}{flags}"
    names: dict[str, list[str]] = {}
    for one in runs:
        mine = names.setdefault(one["partition"], [])
        mine += [one["method"]] if one["method"] not in mine else []
    return "; ".join(
        f"{script} --seed {arguments.seed} --partition {partition} --methods {','.join(methods)}"
        for partition, methods in names.items()
    )


def main(arguments: argparse.Namespace) -> None:
    unknown = set(arguments.methods.split(",")) - set(METHODS)
    if unknown:
        raise InvalidDataError(f"no method {sorted(unknown)[0]!r}; there are {list(METHODS)}")
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    folder = arguments.out / "runs"
    perform_missing(tasks_of(arguments), partial(perform, data, folder), folder)
    runs = runs_of(arguments)
    for partition in sorted({one["partition"] for one in runs}):
        mine = [one for one in runs if one["partition"] == partition]
        name = f"{arguments.dataset}_{partition}.png"
        save_figure(figure(mine, partition), arguments.out, name)
    results = {
        "command": command(arguments, runs),
        "seed": arguments.seed,
        "summary": summary(runs),
        "runs": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--partition", choices=[*PARTITIONS, "both"], default="both")
    options.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    run(main, options)
