"""Rényi divergences in local fits, one client after another: PGVI 2024, figures 5.4, 5.6 and 5.7.

Ten clients hold iid images, and a network 784-200-10 learns them: every visit is a fit by Adam that
ends where the expected log-likelihood rests, and prior means are random, both as in the thesis. VI
and PVI beside PGVI with several α, at the thesis' two rates.

Where q starts decides whether α > 1 learns at all. The network starts narrow. Here all clients
share this start; --studies start compares it with one that ends in the first client's factor.
Others then widen q, their factors take from its precision, and the cavity of the first client is
improper: KL has a value there, a Rényi divergence has none, and this client is not heard any more.

The last sixth of the training images is no client's: the table chooses rounds by it. Every run is
kept in OUT/runs and never repeated. --quick learns from 6,000 images for two rounds.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

from experiments.federated_runs import (
    LOADERS,
    Progress,
    fewer_images,
    held_back,
    kept,
    perform_missing,
    scores,
)
from experiments.means import mean_and_error
from experiments.papers.generalised_mnist import network
from experiments.papers.generalised_stopping import Stopping, Task, columns, server_of, stopped
from streaming_gp import datasets, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError

ROUNDS, QUICK_ROUNDS = 10, 2
SETS = LOADERS | {"kuzushiji-49": datasets.load_kuzushiji49, "cifar-10": datasets.load_cifar10}


@dataclass(frozen=True)
class Setting(Stopping):
    """As the thesis has it, at its smaller rate, with a start that all clients share."""

    learning_rate: float = 5e-4
    epochs: int = 50
    stops_early: bool = True
    prior_means: float = 0.1
    shares_start: bool = True

    @property
    def title(self) -> str:
        """As tables and legends name it."""
        kind = super(Stopping, self).title
        start = "" if self.shares_start else ", start not shared"
        return f"{kind}, rate {self.learning_rate:g}{start}"


FAST = 2e-3
STUDIES = {
    "alpha": [
        Setting(),
        Setting(alpha=5.0),
        Setting(learning_rate=FAST),
        Setting(alpha=5.0, learning_rate=FAST),
        Setting(alpha=2.5),
        Setting(alpha=15.0),
        Setting(alpha=0.5),
        Setting(clients=1, learning_rate=FAST),
    ],
    "images": [Setting(), Setting(alpha=1.5), Setting(alpha=2.5)],
    "start": [
        Setting(),
        Setting(alpha=5.0),
        Setting(shares_start=False),
        Setting(alpha=5.0, shares_start=False),
    ],
}


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round."""
    learned = held_back(data)
    net, update = network(data), stopped(task.setting)
    server = server_of(net, learned, task, update)

    def evaluate(q: Any) -> dict[str, float]:
        chosen_by = scores(net, q, learned)
        return {"validation_error": chosen_by["test_error"], **scores(net, q, data)}

    rounds = QUICK_ROUNDS if task.quick else ROUNDS
    history = pvi.fit(server, pvi.Sequential(), rounds, evaluate=evaluate, callback=progress)
    names = ("seconds", "messages", "validation_error", "test_error", "test_nll")
    return {**asdict(task), **columns(history, names, update)}


# ---- tables and figures ----


def of_setting(runs: list[Results], setting: Setting) -> list[Results]:
    """All its runs, one for each seed."""
    return [one for one in runs if one["setting"] == asdict(setting)]


def summary(runs: list[Results]) -> list[Results]:
    """One row for each setting: means over seeds, and their standard errors."""
    settings = dict.fromkeys(setting for study in STUDIES.values() for setting in study)
    found = {setting: [*map(at_its_best, of_setting(runs, setting))] for setting in settings}
    return [row(setting, of_seeds) for setting, of_seeds in found.items() if of_seeds]


def at_its_best(one: Results) -> Results:
    """A run in its last round, and in the one with the least validation error."""
    best = int(np.argmin(one["validation_error"]))
    return {
        "round": best + 1,
        "error": one["test_error"][best],
        "nll": one["test_nll"][best],
        "last_error": one["test_error"][-1],
        "lost": one["refused_or_failed"],
        "epochs": sum(float(np.mean(visit)) for visit in one["visits"]),
        "seconds": one["seconds"][-1],
    }


def row(setting: Setting, found: list[Results]) -> Results:
    """Of the table."""
    numbers = {}
    for name in found[0]:
        numbers[name], numbers[f"{name}_spread"] = mean_and_error(found, name)
    return {"title": setting.title, **asdict(setting), "seeds": len(found), **numbers}


def curves(runs: list[Results], settings: list[Setting]) -> plt.Figure:
    """Test error against rounds: a line for each setting, its mean over seeds."""
    canvas, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for setting in settings:
        found = [one["test_error"] for one in of_setting(runs, setting)]
        if found:
            mean = np.mean(found, axis=0)
            (line,) = axes.semilogy(range(1, len(mean) + 1), mean, ".-", label=setting.title)
            axes.fill_between(
                range(1, len(mean) + 1), np.min(found, axis=0), np.max(found, axis=0),
                color=line.get_color(), alpha=0.2, linewidth=0,
            )  # fmt: skip
    axes.set(xlabel="rounds", ylabel="test error")
    axes.legend(fontsize=8)
    return canvas


# ---- one run after another ----


def main(arguments: argparse.Namespace) -> None:
    chosen = arguments.studies.split(",")
    unknown = set(chosen) - set(STUDIES)
    if unknown:
        raise InvalidDataError(f"no study {sorted(unknown)[0]!r}; there are {list(STUDIES)}")
    data = fewer_images(SETS[arguments.dataset](arguments.data), arguments.quick)
    common = {"dataset": arguments.dataset, "quick": arguments.quick}
    settings = dict.fromkeys(setting for study in chosen for setting in STUDIES[study])
    tasks = [
        Task(setting, seed=seed, **common)
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for setting in settings
    ]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = kept(arguments.out / "runs", **common)
    for study in chosen:
        figure = curves(runs, STUDIES[study])
        save_figure(figure, arguments.out, f"{arguments.dataset}_{study}.png")
    write_results(
        arguments.out,
        {"dataset": arguments.dataset, "summary": summary(runs), "runs": runs},
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(SETS), default="mnist")
    options.add_argument("--studies", default="alpha,start", help=f"of {', '.join(STUDIES)}")
    options.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    run(main, options)
