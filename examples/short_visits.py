"""What rounds of short visits do to a posterior that is good already, by the optimiser of a visit.

A network 784-200-10 is fitted to MNIST by global VI for 40 epochs. Ten clients with iid shards
begin there, with a tenth of its factor each, and answer in 20 synchronous rounds, damped by a
tenth. Rounds that climb the free energy that global VI climbs do not lower it. It is measured on
all training images, and the error on the test images, for visits by Adam that begins anew, of one
epoch or of five, by Adam that remembers, and by natural gradients, which have nothing to remember.

--quick takes 6,000 images and two rounds.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Results, mean_and_error_of, parser, run, save_figure, write_results
from federated_runs import NUM_CLIENTS, fewer_images, scores

from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split

BATCH, CHUNK, EVERY, SEEDS = 200, 2000, 5, 3
SCORES = ("free_energy", "test_error", "test_nll")
NATURAL = pvi.VariationalOnlineNewton(3e-3, 3e-3, momentum=0.0)
RULES = {
    "Adam, anew": pvi.VariationalUpdate(1, BATCH, 1e-3),
    "Adam, anew, five epochs": pvi.VariationalUpdate(5, BATCH, 1e-3),
    "Adam, stateful": pvi.VariationalUpdate(1, BATCH, 1e-3, stateful=True),
    "natural gradients": pvi.VariationalUpdate(1, BATCH, optimiser=NATURAL),
}


def free_energy(net: bnn.Network, q: Any, data: Split, seed: int) -> float:
    """Of all training images, in nats per image."""
    X, Y = net.as_data(data.X, data.Y)
    chunks = [slice(first, first + CHUNK) for first in range(0, len(X), CHUNK)]
    expected = [
        net.expected_log_likelihood(q, X[rows], Y[rows], np.array([seed, number]))
        for number, rows in enumerate(chunks)
    ]
    return float(np.sum(expected) - q.kl_divergence(net.prior())) / len(X)


def global_fit(net: bnn.Network, data: Split, seed: int, quick: bool) -> Any:
    """q by Adam, all images in one place."""
    rule = pvi.VariationalUpdate(5, BATCH, 2e-3, stateful=True)
    clients = pvi.make_clients(net, [(data.X, data.Y)], rule, seed)
    server = pvi.Server(net.prior(), clients, seed=seed)
    pvi.fit(server, pvi.Sequential(), rounds=1 if quick else 8)
    return server.posterior


def columns_from(
    net: bnn.MeanFieldBNN, start: Any, rule: Any, data: Split, seed: int, rounds: int
) -> Results:
    """Scores at this q, and after every few rounds that begin there."""

    def scored(q: Any) -> dict[str, float]:
        return {"free_energy": free_energy(net, q, data, seed), **scores(net, q, data)}

    def evaluate(q: Any) -> dict[str, float]:
        number = len(server.history) + 1
        return scored(q) if number % EVERY == 0 or number == rounds else {}

    shards = datasets.partition_iid(data.X, data.Y, NUM_CLIENTS, seed)
    server = pvi.Server(net.prior(), pvi.make_clients(net, shards, rule, seed), seed=seed)
    server.warm_start(start)
    history = pvi.fit(server, pvi.Synchronous(1.0 / NUM_CLIENTS), rounds, evaluate=evaluate)
    rows = [{"round": 0, **scored(start)}]
    rows += [{"round": one.round, **one.metrics} for one in history if one.metrics]
    return {key: [row[key] for row in rows] for key in rows[0]}


def perform(data: Split, seed: int, quick: bool) -> list[Results]:
    """One run for each rule."""
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    start = global_fit(net, data, seed, quick)
    found = []
    for name, rule in RULES.items():
        columns = columns_from(net, start, rule, data, seed, 2 if quick else 20)
        found.append({"optimiser": name, "seed": seed, **columns})
        energies = columns["free_energy"]
        print(f"{name}, seed {seed}: {energies[0]:.3f}, then {energies[-1]:.3f}", flush=True)
    return found


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
    runs = [one for seed in seeds for one in perform(data, seed, arguments.quick)]
    save_figure(figure(runs), arguments.out, "short_visits.png")
    results = {
        "command": "python examples/short_visits.py" + " --quick" * arguments.quick,
        "summary": summary(runs),
        "runs": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
