"""Partitioned generalised VI of networks: PGVI 2024, section 5.2, figures 5.2 to 5.4, and labels
that are wrong.

Ten clients with iid MNIST shards, a network 784-200-10 with a standard normal prior. Rényi
divergences in place of KL, and robust losses in place of the negative log likelihood, beside PVI
and global VI. Four studies: divergence (figure 5.2), rate (5.3), alpha (5.4); and labels, of which
10 % and 40 % of those to learn from are wrong. Clients answer with natural gradients of
minibatches, and the server has momentum; local fits by Adam, as in the thesis, are in
generalised_sequential.py.

Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for a few rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from matplotlib.ticker import NullFormatter

from experiments.federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    Progress,
    fewer_images,
    kept,
    now_and_then,
    perform_missing,
    scores,
)
from streaming_gp import bnn, datasets, losses, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Divergence, Renyi

LOSSES: dict[str, Any] = {
    "NLL": None,
    "GCE 0.4": losses.GeneralisedCrossEntropy(0.4),
    "β 1.5": losses.BetaLoss(1.5),
    "γ 1.5": losses.GammaLoss(1.5),
}
METRICS = ("test_error", "test_nll", "test_calibration")
ROUNDS, QUICK_ROUNDS = 400, 20
SCORED_EVERY = 20
"""Rounds: scores cost more than one of natural gradients."""


@dataclass(frozen=True)
class Setting:
    """What a run is about.

    :param clients: 1 is global VI.
    :param alpha: of the Rényi divergence; 1 is KL.
    :param contamination: share of the labels to learn from that are wrong.
    """

    clients: int = NUM_CLIENTS
    alpha: float = 1.0
    learning_rate: float = 0.05
    loss: str = "NLL"
    contamination: float = 0.0

    @property
    def divergence(self) -> Divergence:
        return KL() if self.alpha == 1.0 else Renyi(self.alpha)

    @property
    def title(self) -> str:
        """As legends name it."""
        if self.clients == 1:
            return "VI"
        return "PVI" if self.alpha == 1.0 else f"PGVI, α = {self.alpha:g}"


@dataclass(frozen=True)
class Task:
    """One run."""

    setting: Setting
    dataset: str
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        parts = (self.dataset, *asdict(self.setting).values(), self.seed)
        return "-".join(map(str, parts)) + "-quick" * self.quick + ".json"


def studies() -> dict[str, Sequence[Setting]]:
    """The runs of each study; those that studies share are made once.

    Robust losses have small gradients: the study of labels goes at the largest rate.
    """
    pvi_run = Setting()
    vi_run = replace(pvi_run, clients=1)
    rates = [factor * pvi_run.learning_rate for factor in (0.25, 0.5, 1.0, 2.0)]
    half = replace(pvi_run, alpha=0.5)
    alphas = (0.5, 0.75, 1.5, 2.5, 5.0, 15.0)
    return {
        "divergence": [vi_run, pvi_run, replace(pvi_run, alpha=0.75)],
        "rate": [pvi_run, *(replace(half, learning_rate=rate) for rate in rates)],
        "alpha": [vi_run, pvi_run, *(replace(pvi_run, alpha=alpha) for alpha in alphas)],
        "labels": [
            replace(pvi_run, learning_rate=rates[-1], loss=loss, contamination=share)
            for share in (0.0, 0.1, 0.4)
            for loss in LOSSES
        ],
    }


def network(data: Split) -> bnn.MeanFieldBNN:
    """With 200 hidden units."""
    labels = int(data.Y.max()) + 1
    return bnn.MeanFieldBNN([data.X.shape[1], 200, labels], gpflow.likelihoods.Softmax(labels))


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round that is scored."""
    net = network(data)
    server = server_of(net, data, task)
    rounds = QUICK_ROUNDS if task.quick else ROUNDS
    evaluate = now_and_then(lambda q: scores(net, q, data), server, SCORED_EVERY, rounds)
    schedule = pvi.Synchronous(pvi.Annealed(pvi.Momentum(task.setting.learning_rate)))
    history = pvi.fit(server, schedule, rounds, evaluate=evaluate, callback=progress)
    scored = [record for record in history.to_records() if METRICS[0] in record]
    names = ("round", "seconds", "messages", *METRICS)
    unheard = sum(len(one.refused) + len(one.failed) for one in history)
    columns = {name: [record[name] for record in scored] for name in names}
    return {**asdict(task), **columns, "refused_or_failed": unheard}


def server_of(net: bnn.MeanFieldBNN, data: Split, task: Task) -> pvi.Server:
    """With all clients, who together see 6,000 images a round, before the first."""
    setting = task.setting
    update = pvi.FixedPointUpdate(
        batch_size=6000 // setting.clients,
        loss=LOSSES[setting.loss],
        divergence=setting.divergence,
    )
    labels = contaminated(data.Y, setting.contamination, task.seed)
    shards = datasets.partition_iid(data.X, labels, setting.clients, task.seed)
    clients = pvi.make_clients(net, shards, update, task.seed)
    server = pvi.Server(net.prior(), clients, checks=pvi.NO_LIMITS, seed=task.seed)
    server.warm_start(net.initial(task.seed))
    return server


def contaminated(Y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels [N, 1], of which a share is replaced by one of the others."""
    rng, number = np.random.default_rng([seed, 10]), int(Y.max()) + 1
    wrong = rng.uniform(size=Y.shape) < share
    return np.where(wrong, (Y + rng.integers(1, number, Y.shape)) % number, Y).astype(Y.dtype)


# ---- tables and figures ----


def summary(runs: list[Results], kind: type[Setting] = Setting) -> list[Results]:
    """The last round of each run, and the answers that did not count.

    :param kind: of the runs' settings.
    """
    return [
        {
            **one["setting"],
            "title": kind(**one["setting"]).title,
            "rounds": one["round"][-1],
            **{f"last_{name.removeprefix('test_')}": one[name][-1] for name in METRICS},
            "refused_or_failed": one["refused_or_failed"],
            "seconds": one["seconds"][-1],
        }
        for one in runs
    ]


def curves(
    axes: Any, runs: list[Results], label: Callable[[Setting], str], x: str = "round"
) -> None:
    """Test error of each run."""
    for one in runs:
        axes.loglog(one[x], one["test_error"], ".-", label=label(Setting(**one["setting"])))
    axes.set(xlabel=x if x == "seconds" else "rounds")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=8)


def error_figure(runs: list[Results], x: str, with_rate: bool) -> plt.Figure:
    canvas, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    rate = ", rate {:g}" if with_rate else ""
    curves(axes, runs, lambda s: s.title + rate.format(s.learning_rate), x)
    axes.set_ylabel("test error")
    return canvas


def labels_figure(runs: list[Results]) -> plt.Figure:
    """A panel for each share of wrong labels, a line for each loss."""
    shares = sorted({one["setting"]["contamination"] for one in runs})
    canvas, panels = plt.subplots(
        1, len(shares), figsize=(4 * len(shares), 3.5), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes, share in zip(panels[0], shares, strict=True):
        mine = [one for one in runs if one["setting"]["contamination"] == share]
        curves(axes, mine, lambda setting: setting.loss)
        axes.set_title(f"{100 * share:g} % of the labels are wrong")
    panels[0, 0].set_ylabel("test error")
    return canvas


FIGURES: dict[str, Callable[[list[Results]], plt.Figure]] = {
    "divergence": partial(error_figure, x="seconds", with_rate=False),
    "rate": partial(error_figure, x="round", with_rate=True),
    "alpha": partial(error_figure, x="round", with_rate=False),
    "labels": labels_figure,
}


# ---- one run after another ----


def main(arguments: argparse.Namespace) -> None:
    every = studies()
    chosen = arguments.studies.split(",")
    unknown = set(chosen) - set(every)
    if unknown:
        raise InvalidDataError(f"no study {sorted(unknown)[0]!r}; there are {list(every)}")
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    settings = dict.fromkeys(setting for study in chosen for setting in every[study])
    common = {name: getattr(arguments, name) for name in ("dataset", "seed", "quick")}
    tasks = [Task(setting, **common) for setting in settings]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = kept(arguments.out / "runs", **common)
    by_setting = {Setting(**one["setting"]): one for one in runs}
    for study, figure in FIGURES.items():
        mine = [by_setting[setting] for setting in every[study] if setting in by_setting]
        if len(mine) == len(every[study]):
            save_figure(figure(mine), arguments.out, f"{arguments.dataset}_{study}.png")
    write_results(arguments.out, {"summary": summary(runs), "runs": runs})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--studies", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}")
    run(main, options)
