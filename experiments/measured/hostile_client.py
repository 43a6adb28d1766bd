"""What a server refuses: ten clients with MNIST shards, of which one spoils about every second
answer.

It sends what is not finite, huge, far away, negated, of a wrong shape or family, or no factor at
all. Prints and records the test error with and without it, for clients that take natural gradients
and for shards that are iid or hold one class each, and how many answers were refused and why.

Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for 20 rounds.
--lies runs what lies.py says instead, and adds its table to the results.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, command, parser, run, save_figure, write_results

from experiments.federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    PARTITIONS,
    Progress,
    fewer_images,
    kept,
    now_and_then,
    perform_missing,
    scores,
)
from experiments.measured.lies import lies
from streaming_gp import bnn, pvi
from streaming_gp.datasets import Split
from streaming_gp.expfam import Factor, Normal

SPOILER, ROUNDS, QUICK_ROUNDS, SCORED_EVERY = "c3", 400, 20, 20


def changed(how: Callable[[Any], Any]) -> Callable[[Factor], Factor]:
    """The same in all natural parameters."""
    return lambda factor: Factor(factor.family, tuple(how(eta) for eta in factor.natural))


WAYS: dict[str, Callable[[Factor], Any]] = {
    "not finite": changed(lambda eta: eta * np.nan),
    "huge": changed(lambda eta: eta * 1e9),
    "far": lambda factor: Factor(factor.family, (factor.natural[0] + 1e6, factor.natural[1])),
    "negated": lambda factor: factor**-1.0,
    "wrong shape": changed(lambda eta: eta[:2]),
    "other family": lambda factor: Factor(Normal, factor.natural),
    "integers": changed(lambda eta: eta.astype(int)),
}


@dataclass(frozen=True)
class SometimesSpoiled:
    """A rule of which about every second answer is spoiled, in one of all ways."""

    rule: pvi.FixedPointUpdate

    @property
    def checks(self) -> pvi.Checks | None:
        """The server knows which rule it asked for."""
        return self.rule.checks

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        result = self.rule(task)
        choice = task.seed % (2 * len(WAYS))
        if choice >= len(WAYS):
            return result
        return replace(result, factor=list(WAYS.values())[choice](result.factor))


@dataclass(frozen=True)
class Task:
    """One run."""

    partition: str
    hostile: bool
    dataset: str
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        client = "hostile" if self.hostile else "honest"
        parts = f"{self.dataset}-{self.partition}-{client}-{self.seed}"
        return f"{parts}{'-quick' * self.quick}.json"


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run, with the server's default checks."""
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    shards = PARTITIONS[task.partition](data.X, data.Y, NUM_CLIENTS, task.seed)
    rule = pvi.FixedPointUpdate(batch_size=600)
    clients = pvi.make_clients(net, shards, rule, task.seed)
    if task.hostile:
        clients[SPOILER] = replace(clients[SPOILER], update=SometimesSpoiled(rule))
    server = pvi.Server(net.prior(), clients, seed=task.seed)
    server.warm_start(net.initial(task.seed))
    rounds = QUICK_ROUNDS if task.quick else ROUNDS
    evaluate = now_and_then(lambda q: scores(net, q, data), server, SCORED_EVERY, rounds)
    schedule = pvi.Synchronous(damping=pvi.Annealed(pvi.Momentum()))
    history = pvi.fit(server, schedule, rounds, evaluate=evaluate, callback=progress)
    return {**asdict(task), **columns(history)}


def columns(history: pvi.History) -> Results:
    """Scores of the rounds that have them, and why answers were refused."""
    scored = [record for record in history.to_records() if "test_error" in record]
    names = ("round", "seconds", "messages", "test_error", "test_nll", "test_calibration")
    refusals = [(name, why) for one in history for name, why in one.refused.items()]
    return {
        **{name: [record[name] for record in scored] for name in names},
        "refused": Counter(name for name, _ in refusals),
        "reasons": Counter(_without_numbers(why) for _, why in refusals),
    }


def _without_numbers(why: str) -> str:
    return " ".join(word for word in why.split() if not any(sign.isdigit() for sign in word))


def summary(runs: list[Results]) -> list[Results]:
    return [
        {
            "partition": one["partition"],
            "client": "hostile" if one["hostile"] else "honest",
            "last_error": one["test_error"][-1],
            "last_nll": one["test_nll"][-1],
            "refused": one["refused"].get(SPOILER, 0),
            "refused_of_others": sum(one["refused"].values()) - one["refused"].get(SPOILER, 0),
            "rounds": one["round"][-1],
        }
        for one in runs
    ]


def figure(runs: list[Results]) -> plt.Figure:
    """Test error over rounds; dashed where one client is hostile."""
    canvas, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for one in runs:
        client = "one hostile client" if one["hostile"] else "all honest"
        color = f"C{list(PARTITIONS).index(one['partition'])}"
        style = "--" if one["hostile"] else "-"
        label = f"{one['partition']}, {client}"
        axes.semilogy(one["round"], one["test_error"], style, color=color, label=label)
    axes.set(xlabel="rounds", ylabel="test error")
    axes.legend(fontsize=8)
    return canvas


def add_lies(arguments: argparse.Namespace) -> None:
    """A table beside what is there already."""
    path = arguments.out / "results.json"
    there = json.loads(path.read_text()) if path.exists() else {}
    rows = lies(arguments.seed, 1 if arguments.quick else 2)
    write_results(arguments.out, {**there, "lies_command": command(), "lies": rows})


def main(arguments: argparse.Namespace) -> None:
    if arguments.lies:
        add_lies(arguments)
        return
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    common = {name: getattr(arguments, name) for name in ("dataset", "seed", "quick")}
    tasks = [Task(part, hostile, **common) for part in PARTITIONS for hostile in (False, True)]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = [one for one in kept(arguments.out / "runs", **common) if "hostile" in one]
    save_figure(figure(runs), arguments.out, "hostile_client.png")
    write_results(arguments.out, {"summary": summary(runs), "runs": runs})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--lies", action="store_true", help="lies within the limits, no data")
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    run(main, options)
