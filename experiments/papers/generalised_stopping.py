"""Clients that stop early, and random prior means: PGVI 2024, section 5.2.

Ten clients with iid MNIST shards, visited one after another, fit a network 784-200-10 by Adam under
KL. A visit ends after some epochs, or where the expected log-likelihood rests; prior means are zero
or random. The thesis has both, so that not too many weights are pruned; here are both, one of them,
and neither.

Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for two rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from matplotlib.ticker import MaxNLocator

from experiments.federated_runs import (
    LOADERS,
    Progress,
    fewer_images,
    kept,
    perform_missing,
    scores,
)
from experiments.papers import generalised_mnist
from experiments.papers.generalised_mnist import LOSSES, METRICS, Setting, network, summary
from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split
from streaming_gp.expfam import MeanFieldNormal

ROUNDS, QUICK_ROUNDS = 4, 2


@dataclass(frozen=True)
class Stopping(Setting):
    """What a run of local fits is about that may stop early.

    :param epochs: of a visit, at most.
    :param prior_means: they are uniform between minus this number and plus this number.
    :param shares_start: whether every client has an equal part of where q starts.
    """

    learning_rate: float = 2e-3
    epochs: int = 20
    stops_early: bool = False
    prior_means: float = 0.0
    shares_start: bool = False

    @property
    def title(self) -> str:
        length = "stopped early" if self.stops_early else f"{self.epochs} epochs"
        return f"{super().title}, {length}" + ", random prior means" * (self.prior_means > 0.0)

    def prior(self, net: bnn.MeanFieldBNN, seed: int) -> MeanFieldNormal:
        """The network's own, moved to random means."""
        mean, variance = net.prior().moments()
        shift = np.random.default_rng([seed, 11]).uniform(-1.0, 1.0, len(mean))
        moved = mean + self.prior_means * shift.astype(np.float32)
        return MeanFieldNormal.from_mean_variance(moved, variance).as_arrays()


@dataclass(frozen=True, eq=False)
class Counted:
    """A rule, and how many epochs each visit took.

    :param visits: of each round, in the order in which clients answered.
    """

    rule: pvi.VariationalUpdate
    visits: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        result = self.rule(task)
        an_epoch = -(-task.num_data // task.size_of(self.rule.batch_size))
        self.visits.setdefault(task.sequence, []).append(result.steps // an_epoch)
        return result


def stopped(setting: Stopping) -> Counted:
    """Local fits of the setting; the tolerance is above what minibatches alone change."""
    plateau = pvi.Plateau(patience=3, tolerance=0.01) if setting.stops_early else None
    return Counted(
        pvi.VariationalUpdate(
            epochs=setting.epochs, batch_size=512, learning_rate=setting.learning_rate,
            loss=LOSSES[setting.loss], divergence=setting.divergence, stopping=plateau,
        )
    )  # fmt: skip


SETTINGS = [
    Stopping(epochs=5),
    *(
        Stopping(stops_early=early, prior_means=width)
        for width in (0.0, 0.1)
        for early in (False, True)
    ),
]


@dataclass(frozen=True)
class Task(generalised_mnist.Task):
    """One run."""

    setting: Stopping


def server_of(net: bnn.MeanFieldBNN, data: Split, task: Task, update: Counted) -> pvi.Server:
    """With all clients, before the first round."""
    shards = datasets.partition_iid(data.X, data.Y, task.setting.clients, task.seed)
    clients = pvi.make_clients(net, shards, update, task.seed)
    server = pvi.Server(task.setting.prior(net, task.seed), clients, seed=task.seed)
    if task.setting.shares_start:
        server.warm_start(net.initial(task.seed))
    return server


def columns(history: pvi.History, names: Sequence[str], update: Counted) -> Results:
    """What a run keeps: a list for each quantity, with an entry for each round."""
    records = history.to_records()
    unheard = sum(len(one.refused) + len(one.failed) for one in history)
    return {
        **{name: [one[name] for one in records] for name in names},
        "visits": list(update.visits.values()),
        "refused_or_failed": unheard,
    }


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run."""
    net, update = network(data), stopped(task.setting)
    server = server_of(net, data, task, update)
    rounds = QUICK_ROUNDS if task.quick else ROUNDS
    history = pvi.fit(
        server, pvi.Sequential(damping=0.5), rounds,
        evaluate=lambda q: scores(net, q, data), callback=progress,
    )  # fmt: skip
    names = ("round", "seconds", "messages", *METRICS)
    return {**asdict(task), **columns(history, names, update)}


# ---- tables and figures ----


def with_epochs(runs: list[Results]) -> list[Results]:
    """The summary of runs that may stop early, and what epochs their visits took."""
    return [
        {
            **row,
            "first_epochs": float(np.mean(one["visits"][0])),
            "last_epochs": float(np.mean(one["visits"][-1])),
            "most_epochs": max(map(max, one["visits"])),
            "client_epochs": client_epochs(one)[-1],
        }
        for row, one in zip(summary(runs, Stopping), runs, strict=True)
    ]


def client_epochs(one: Results) -> list[float]:
    """Of a client in all rounds so far, the mean over clients."""
    return list(np.cumsum([float(np.mean(visit)) for visit in one["visits"]]))


def stopping_figure(runs: list[Results]) -> plt.Figure:
    """Test error against rounds, and against what a client has done so far; random means dashed."""
    canvas, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for one in runs:
        setting = Stopping(**one["setting"])
        line = "--" if setting.prior_means > 0.0 else "-"
        for axes, x in zip(panels, (one["round"], client_epochs(one)), strict=True):
            axes.semilogy(x, one["test_error"], line, marker=".", label=setting.title)
    for axes, name in zip(panels, ("rounds", "epochs of a client"), strict=True):
        axes.set(xlabel=name)
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("test error")
    panels[0].legend(fontsize=8)
    return canvas


# ---- one run after another ----


def main(arguments: argparse.Namespace) -> None:
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    common = {name: getattr(arguments, name) for name in ("dataset", "seed", "quick")}
    tasks = [Task(setting, **common) for setting in SETTINGS]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    by_setting = {Stopping(**one["setting"]): one for one in kept(arguments.out / "runs", **common)}
    runs = [by_setting[setting] for setting in SETTINGS]
    save_figure(stopping_figure(runs), arguments.out, f"{arguments.dataset}_stopping.png")
    results = {"summary": with_epochs(runs), "runs": runs}
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    run(main, options)
