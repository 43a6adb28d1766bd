"""What rounds of short visits do to a posterior that is good already, by the optimiser of a visit.

A network 784-200-10 is fitted to MNIST by global VI for 40 epochs. Ten clients with iid shards
begin there, with a tenth of its factor each, and answer in 20 synchronous rounds, damped by a
tenth. Rounds that climb the free energy that global VI climbs do not lower it. It is measured on
all training images, and the error on the test images, for visits by Adam that begins anew, of one
epoch or of five, by Adam that remembers, and by natural gradients, which have nothing to remember.

Every run is kept in OUT/runs and never repeated. --quick takes 6,000 images and two rounds.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

from experiments.federated_runs import (
    NUM_CLIENTS,
    Progress,
    begun,
    fewer_images,
    kept,
    now_and_then,
    perform_missing,
    scored_rounds,
    scores_and_free_energy,
)
from experiments.means import mean_and_error_of
from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split

BATCH, EVERY, SEEDS = 200, 5, 3
SCORES = ("free_energy", "test_error", "test_nll")
NATURAL = pvi.VariationalOnlineNewton(3e-3, 3e-3, momentum=0.0)
RULES = {
    "Adam, anew": pvi.VariationalUpdate(1, BATCH, 1e-3),
    "Adam, anew, five epochs": pvi.VariationalUpdate(5, BATCH, 1e-3),
    "Adam, stateful": pvi.VariationalUpdate(1, BATCH, 1e-3, stateful=True),
    "natural gradients": pvi.VariationalUpdate(1, BATCH, optimiser=NATURAL),
}


@dataclass(frozen=True)
class Task:
    """One run."""

    optimiser: str
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        of = self.optimiser.replace(",", "").replace(" ", "-")
        return f"{of}-{self.seed}{'-quick' * self.quick}.json"


def global_fit(net: bnn.MeanFieldBNN, data: Split, folder: Path, task: Task) -> Any:
    """q by Adam, all images in one place: the same one for all runs of a seed."""
    rule = pvi.VariationalUpdate(5, BATCH, 2e-3, stateful=True)
    clients = pvi.make_clients(net, [(data.X, data.Y)], rule, task.seed)
    checkpoint = folder / f"global-{task.seed}{'-quick' * task.quick}.npz"
    server = begun(net, clients, task.seed, checkpoint)
    if not server.history:
        pvi.fit(server, pvi.Sequential(), rounds=1 if task.quick else 8)
        server.save(checkpoint)
    return server.posterior


def perform(data: Split, folder: Path, task: Task, progress: Progress) -> Results:
    """Scores at the posterior of global VI, and after every few rounds that begin there."""
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    start = global_fit(net, data, folder, task)
    shards = datasets.partition_iid(data.X, data.Y, NUM_CLIENTS, task.seed)
    clients = pvi.make_clients(net, shards, RULES[task.optimiser], task.seed)
    server = pvi.Server(net.prior(), clients, seed=task.seed)
    server.warm_start(start)
    rounds = 2 if task.quick else 20

    def score(q: Any) -> dict[str, float]:
        return scores_and_free_energy(net, q, data, task.seed)

    history = pvi.fit(
        server, pvi.Synchronous(1.0 / NUM_CLIENTS), rounds, callback=progress,
        evaluate=now_and_then(score, server, EVERY, rounds),
    )  # fmt: skip
    columns, _ = scored_rounds(history)
    first = {"round": 0, "seconds": 0.0, "messages": 0, **score(start)}
    return {**asdict(task), **{key: [first[key], *columns[key]] for key in columns}}


def summary(runs: list[Results]) -> list[Results]:
    """Before and after, means over seeds."""
    rows = []
    for name in RULES:
        mine = [one for one in runs if one["optimiser"] == name]
        row = {"optimiser": name, "rounds": mine[0]["round"][-1], "seeds": len(mine)}
        for key, (when, place) in product(SCORES, (("before", 0), ("after", -1))):
            mean, spread = mean_and_error_of(np.array([one[key][place] for one in mine]))
            row |= {f"{key}_{when}": float(mean), f"{key}_{when}_spread": float(spread)}
        rows.append(row)
    return rows


def figure(runs: list[Results]) -> plt.Figure:
    """Free energy and test error over rounds, a line for each run."""
    canvas, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for one in runs:
        colour = f"C{list(RULES).index(one['optimiser'])}"
        label = one["optimiser"] if one["seed"] == runs[0]["seed"] else None
        for axes, key in zip(panels, ("free_energy", "test_error"), strict=True):
            axes.plot(one["round"], one[key], color=colour, label=label)
    for axes, label in zip(panels, ("free energy in nats per image", "test error"), strict=True):
        axes.set(xlabel="rounds", ylabel=label)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    return canvas


def main(arguments: argparse.Namespace) -> None:
    data = fewer_images(datasets.load_mnist(arguments.data), arguments.quick)
    seeds = range(arguments.seed, arguments.seed + (1 if arguments.quick else SEEDS))
    tasks = [Task(name, seed, arguments.quick) for seed, name in product(seeds, RULES)]
    folder = arguments.out / "runs"
    perform_missing(tasks, partial(perform, data, folder), folder)
    runs = kept(folder, quick=arguments.quick)
    save_figure(figure(runs), arguments.out, "short_visits.png")
    results = {
        "summary": summary(runs),
        "runs": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
