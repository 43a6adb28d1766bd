"""Partitioned generalised VI of networks: PGVI 2024, section 5.2, figures 5.2 to 5.4, and labels
that are wrong.

Ten clients with iid MNIST shards, a network 784-200-10 with a standard normal prior. Rényi
divergences in place of KL, and robust losses in place of the negative log likelihood, beside PVI
and global VI. Five studies: divergence (figure 5.2), rate (5.3), alpha (5.4); labels, of which 10 %
and 40 % of those to learn from are wrong; and stopping: clients that stop early, and random prior
means, as the thesis has both, beside PVI without either.

--rule natural takes natural gradients of minibatches, with momentum at the server; --rule adam
fits at the clients, one after another, as the thesis does. The study of stopping always fits at the
clients. Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for a few
rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator, NullFormatter

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Results, parser, run, save_figure, write_results
from federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    Progress,
    fewer_images,
    kept,
    perform_missing,
    scores,
)

from streaming_gp import bnn, datasets, losses, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Divergence, MeanFieldNormal, Renyi

LOSSES: dict[str, Any] = {
    "NLL": None,
    "GCE 0.4": losses.GeneralisedCrossEntropy(0.4),
    "β 1.5": losses.BetaLoss(1.5),
    "γ 1.5": losses.GammaLoss(1.5),
}
METRICS = ("test_error", "test_nll", "test_calibration")


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

    def prior(self, net: bnn.MeanFieldBNN, seed: int) -> MeanFieldNormal:
        """Of the server."""
        return net.prior()


@dataclass(frozen=True)
class Stopping(Setting):
    """What a run of local fits is about that may stop early.

    :param epochs: of a visit, at most.
    :param prior_means: they are uniform between minus this number and plus this number.
    """

    learning_rate: float = 2e-3
    epochs: int = 20
    stops_early: bool = False
    prior_means: float = 0.0

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


@dataclass(frozen=True)
class Rule:
    """How clients answer, who is asked when, and for how many rounds.

    :param learning_rate: where it is not what a study is about.
    :param scored_every: so many rounds; scores cost more than a round of natural gradients.
    """

    update: Callable[[Any], pvi.UpdateRule]
    schedule: Callable[[Setting], Any]
    rounds: int
    quick_rounds: int
    learning_rate: float
    scored_every: int = 1
    warm: bool = False
    checks: pvi.Checks | None = None


def natural(setting: Setting) -> pvi.UpdateRule:
    """All clients together see 6,000 images a round."""
    size = 6000 // setting.clients
    return pvi.FixedPointUpdate(
        batch_size=size, loss=LOSSES[setting.loss], divergence=setting.divergence
    )


def adam(setting: Setting) -> pvi.VariationalUpdate:
    return pvi.VariationalUpdate(
        epochs=5, batch_size=512, learning_rate=setting.learning_rate,
        loss=LOSSES[setting.loss], divergence=setting.divergence,
    )  # fmt: skip


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
    return Counted(replace(adam(setting), epochs=setting.epochs, stopping=plateau))


RULES = {
    "natural": Rule(
        natural, lambda setting: pvi.Synchronous(pvi.Momentum(setting.learning_rate)), 400, 20,
        0.05, scored_every=20, warm=True, checks=pvi.NO_LIMITS,
    ),
    "adam": Rule(adam, lambda setting: pvi.Sequential(damping=0.5), 12, 2, 2e-3),
    "stopped": Rule(stopped, lambda setting: pvi.Sequential(damping=0.5), 4, 2, 2e-3),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One run."""

    setting: Setting
    rule: str
    dataset: str
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its file."""
        parts = (self.dataset, self.rule, *asdict(self.setting).values(), self.seed)
        return "-".join(map(str, parts)) + "-quick" * self.quick + ".json"


def studies(rule: Rule) -> dict[str, Sequence[Setting]]:
    """The runs of each study; those that studies share are made once.

    Robust losses have small gradients: the study of labels goes at the largest rate.
    """
    pvi_run = Setting(learning_rate=rule.learning_rate)
    vi_run = replace(pvi_run, clients=1)
    rates = [factor * rule.learning_rate for factor in (0.25, 0.5, 1.0, 2.0)]
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
        "stopping": [
            Stopping(epochs=5),
            *(
                Stopping(stops_early=early, prior_means=width)
                for width in (0.0, 0.1)
                for early in (False, True)
            ),
        ],
    }


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round that is scored."""
    rule = RULES[task.rule]
    labels = int(data.Y.max()) + 1
    net = bnn.MeanFieldBNN([data.X.shape[1], 200, labels], gpflow.likelihoods.Softmax(labels))
    update = rule.update(task.setting)
    server = server_of(net, data, task, update)
    rounds = rule.quick_rounds if task.quick else rule.rounds

    def evaluate(q: Any) -> dict[str, float]:
        number = len(server.history) + 1
        due = number % rule.scored_every == 0 or number == rounds
        return scores(net, q, data) if due else {}

    schedule = rule.schedule(task.setting)
    history = pvi.fit(server, schedule, rounds, evaluate=evaluate, callback=progress)
    scored = [record for record in history.to_records() if METRICS[0] in record]
    names = ("round", "seconds", "messages", *METRICS)
    unheard = sum(len(one.refused) + len(one.failed) for one in history)
    columns = {name: [record[name] for record in scored] for name in names}
    visits = {"visits": list(update.visits.values())} if isinstance(update, Counted) else {}
    return {**asdict(task), **columns, **visits, "refused_or_failed": unheard}


def server_of(net: bnn.MeanFieldBNN, data: Split, task: Task, update: pvi.UpdateRule) -> pvi.Server:
    """With all clients, before the first round."""
    setting, rule = task.setting, RULES[task.rule]
    labels = contaminated(data.Y, setting.contamination, task.seed)
    shards = datasets.partition_iid(data.X, labels, setting.clients, task.seed)
    clients = pvi.make_clients(net, shards, update, task.seed)
    prior = setting.prior(net, task.seed)
    server = pvi.Server(prior, clients, checks=rule.checks, seed=task.seed)
    if rule.warm:
        server.warm_start(net.initial(task.seed))
    return server


def contaminated(Y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels [N, 1], of which a share is replaced by one of the others."""
    rng, number = np.random.default_rng([seed, 10]), int(Y.max()) + 1
    wrong = rng.uniform(size=Y.shape) < share
    return np.where(wrong, (Y + rng.integers(1, number, Y.shape)) % number, Y).astype(Y.dtype)


# ---- tables and figures ----


def setting_of(one: Results) -> Setting:
    """Of a run."""
    kind = Stopping if one["rule"] == "stopped" else Setting
    return kind(**one["setting"])


def summary(runs: list[Results]) -> list[Results]:
    """Last and best round of each run, and the answers that did not count."""
    return [
        {
            "rule": one["rule"],
            **one["setting"],
            "title": setting_of(one).title,
            "rounds": one["round"][-1],
            **{f"last_{name.removeprefix('test_')}": one[name][-1] for name in METRICS},
            **{f"best_{name.removeprefix('test_')}": min(one[name]) for name in METRICS[:2]},
            "refused_or_failed": one["refused_or_failed"],
            "seconds": one["seconds"][-1],
        }
        for one in runs
    ]


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
        for row, one in zip(summary(runs), runs, strict=True)
    ]


def client_epochs(one: Results) -> list[float]:
    """Of a client in all rounds so far, the mean over clients."""
    return list(np.cumsum([float(np.mean(visit)) for visit in one["visits"]]))


def curves(
    axes: Any, runs: list[Results], label: Callable[[Setting], str], x: str = "round"
) -> None:
    """Test error of each run."""
    for one in runs:
        axes.loglog(one[x], one["test_error"], ".-", label=label(setting_of(one)))
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


FIGURES: dict[str, Callable[[list[Results]], plt.Figure]] = {
    "divergence": partial(error_figure, x="seconds", with_rate=False),
    "rate": partial(error_figure, x="round", with_rate=True),
    "alpha": partial(error_figure, x="round", with_rate=False),
    "labels": labels_figure,
    "stopping": stopping_figure,
}


# ---- one run after another ----


def main(arguments: argparse.Namespace) -> None:
    every = studies(RULES[arguments.rule])
    chosen = arguments.studies.split(",")
    unknown = set(chosen) - set(every)
    if unknown:
        raise InvalidDataError(f"no study {sorted(unknown)[0]!r}; there are {list(every)}")
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    settings = dict.fromkeys(setting for study in chosen for setting in every[study])
    common = {name: getattr(arguments, name) for name in ("dataset", "seed", "quick")}
    tasks = [Task(setting, rule_for(setting, arguments.rule), **common) for setting in settings]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = kept(arguments.out / "runs", rule=arguments.rule, **common)
    stopping = kept(arguments.out / "runs", rule="stopped", **common)
    by_setting = {setting_of(one): one for one in [*runs, *stopping]}
    stopping = [by_setting[one] for one in every["stopping"] if one in by_setting]
    for study, figure in FIGURES.items():
        mine = [by_setting[setting] for setting in every[study] if setting in by_setting]
        if len(mine) == len(every[study]) or study in chosen:
            rule = rule_for(every[study][0], arguments.rule)
            name = f"{arguments.dataset}_{rule}_{study}.png"
            save_figure(figure(mine), arguments.out, name)
    results = {"command": command(arguments), "summary": summary(runs), "runs": runs}
    if stopping:
        results |= {"stopping": with_epochs(stopping), "stopping_runs": stopping}
    write_results(arguments.out, results)


def rule_for(setting: Setting, chosen: str) -> str:
    """By name; one of natural gradients has nothing to stop."""
    return "stopped" if isinstance(setting, Stopping) else chosen


def command(arguments: argparse.Namespace) -> str:
    """What to type for the same runs."""
    flags = " --quick" * arguments.quick
    return (
        f"python examples/generalised_mnist.py --dataset {arguments.dataset} "
        f"--rule {arguments.rule} --studies {arguments.studies} --seed {arguments.seed}{flags}"
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--rule", choices=["natural", "adam"], default="natural")
    options.add_argument("--studies", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}")
    run(main, options)
