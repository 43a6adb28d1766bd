"""Federated learning where clients differ: PVI beside what people use, at equal messages.

Images of MNIST or Fashion-MNIST, divided among 100 clients of whom a tenth is asked in each round,
or among ten who are all asked: at random, by shares of each label from a Dirichlet distribution, or
with one label a client. A network of 784-100-10. Every method sends as many messages; pvi-in-turn
and pvi-annealed send them to all clients one after another, a tenth as many passes as rounds. What
a method costs the clients is the number of gradients of single images, and the table has the error
at equal messages and at the number of gradients that the method with the fewest makes.

With --wrong a share of the training labels is wrong, another label at random for each; --clients 3
--divided iid --rounds 25 is the setting of FedGVI (2025): pvi-robust has a robust loss.

A run has the first rate of its method; --choose tries each, and scores by training images that are
held back. Every run is kept in OUT/runs and never repeated. --quick makes a few rounds on 6,000
images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

from experiments.federated_runs import (
    LOADERS,
    Progress,
    fewer_images,
    held_back,
    kept,
    now_and_then,
    perform_missing,
    scored_rounds,
    scores,
)
from experiments.measured.posterior_averaging import LocalSGD, PosteriorAveraging
from streaming_gp import bnn, datasets, losses, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL

DIVIDED: dict[str, Callable[..., Any]] = {
    "label": datasets.partition_by_label,
    "dirichlet-0.1": partial(datasets.partition_by_dirichlet, concentration=0.1),
    "dirichlet-0.5": partial(datasets.partition_by_dirichlet, concentration=0.5),
    "iid": datasets.partition_iid,
}
ROUNDS, QUICK_ROUNDS, SCORED, ASKED = 200, 10, 6, 10
BATCH = 50
RATES = 0.2, 0.05, 0.0125
"""Of SGD at the clients."""


@dataclass(frozen=True)
class Task:
    """One run."""

    method: str
    divided: str
    num_clients: int
    wrong: float
    learning_rate: float
    rounds: int
    seed: int
    dataset: str
    quick: bool
    choose: bool

    @property
    def name(self) -> str:
        """Of its file."""
        kind = "-quick" * self.quick + "-choose" * self.choose
        of = f"{self.dataset}-{self.divided}-{self.num_clients}-{self.wrong:g}-{self.rounds}"
        return f"{of}-{self.method}-{self.learning_rate:g}-{self.seed}{kind}.json"


COLOURS = plt.colormaps["tab20"]
"""One for each method."""
SETTING = [one.name for one in fields(Task)]


Rule = Callable[[float, float], Any]
"""Of a learning rate and a client's share of all data."""


@dataclass(frozen=True)
class Method:
    """How clients answer and what the server does with it, at a learning rate.

    :param rule: The rule of a client with this share of all data.
    :param epochs: How often a client sees each of its images in a visit.
    :param learning_rates: The rate, and after it others that may be better.
    """

    rule: Rule
    schedule: Callable[[float, float], Any]
    epochs: int
    learning_rates: tuple[float, ...]
    warm: bool = True


def in_turn(rate: float, fraction: float) -> pvi.Sequential:
    return pvi.Sequential("random", damping=0.5)


def in_turn_annealed(rate: float, fraction: float) -> pvi.Sequential:
    return pvi.Sequential("random", damping=pvi.Annealed(0.5))


def synchronous(damping: Callable[[float], Any]) -> Callable[[float, float], Any]:
    return lambda rate, fraction: pvi.Synchronous(damping=damping(rate), fraction=fraction)


def averaging(epochs: int, fixed_rate: float | None = None, proximal: float = 0.0) -> Rule:
    """Federated averaging by epochs of SGD; where its rate is fixed, the rate is the server's."""
    return lambda rate, share: pvi.AveragingUpdate(
        share, LocalSGD(epochs, BATCH, rate=fixed_rate or rate, proximal=proximal)
    )


def posterior_averaging(rate: float, share: float) -> pvi.AveragingUpdate:
    return pvi.AveragingUpdate(share, PosteriorAveraging(5, BATCH, rate=rate))


def fitted(rate: float, share: float) -> pvi.VariationalUpdate:
    return pvi.VariationalUpdate(1, BATCH, rate)


def colder(rate: float, share: float) -> pvi.VariationalUpdate:
    """A fit in which the divergence counts for little, so that no weights are pruned."""
    return pvi.VariationalUpdate(4, 200, rate, divergence=KL(weight=0.05))


def shorter(rate: float, share: float) -> pvi.VariationalUpdate:
    """For clients that are asked under the newest posterior, of which the last must not prevail."""
    return pvi.VariationalUpdate(2, BATCH, rate, divergence=KL(weight=0.2))


def robust(rate: float, share: float) -> pvi.VariationalUpdate:
    return replace(colder(rate, share), loss=losses.GeneralisedCrossEntropy(0.4))


NATURAL = pvi.FixedPointUpdate(batch_size=600)
METHODS = {
    "pvi-natural": Method(
        lambda *_: NATURAL, synchronous(lambda rate: pvi.Annealed(pvi.Momentum(rate))), 1,
        (0.1, 0.2, 0.05),
    ),
    "pvi-sync": Method(fitted, synchronous(lambda rate: 0.1), 1, (5e-4, 2e-3), warm=False),
    "pvi-colder": Method(colder, synchronous(lambda rate: None), 4, (2e-3, 1e-3, 5e-4)),
    "pvi-robust": Method(robust, synchronous(lambda rate: None), 4, (2e-3, 1e-3, 5e-4)),
    "pvi-in-turn": Method(shorter, in_turn, 2, (2e-3, 1e-3, 5e-4)),
    "pvi-annealed": Method(shorter, in_turn_annealed, 2, (2e-3, 1e-3, 5e-4)),
    "fedavg": Method(averaging(5), synchronous(lambda rate: pvi.FedAvg()), 5, RATES),
    "fedprox": Method(
        averaging(5, proximal=0.01), synchronous(lambda rate: pvi.FedAvg()), 5, RATES
    ),
    "fedadam": Method(
        averaging(5, 0.05), synchronous(lambda rate: pvi.FedAdam(rate)), 5, (1e-2, 3e-3, 3e-2)
    ),
    "fedadagrad": Method(
        averaging(5, 0.05), synchronous(lambda rate: pvi.FedAdagrad(rate)), 5, (3e-2, 1e-2, 1e-1)
    ),
    "fedyogi": Method(
        averaging(5, 0.05), synchronous(lambda rate: pvi.FedYogi(rate)), 5, (1e-2, 3e-3, 3e-2)
    ),
    "masked": Method(averaging(5), synchronous(lambda rate: pvi.MaskedAveraging()), 5, RATES),
    "fedpa": Method(posterior_averaging, synchronous(lambda rate: pvi.FedAvg()), 5, RATES),
}  # fmt: skip

WANTS_ALL = "masked"
"""Its mask counts all clients, so that nothing moves where a tenth of them is asked."""


def divided(data: Split, task: Task) -> Any:
    """The clients' images, with wrong labels among them."""
    rng, Y = np.random.default_rng(task.seed), data.Y.copy()
    rows = np.flatnonzero(rng.random(len(Y)) < task.wrong)
    Y[rows, 0] = (Y[rows, 0] + rng.integers(1, 10, len(rows))) % 10
    return DIVIDED[task.divided](data.X, Y, task.num_clients, seed=task.seed)


def passes(task: Task, fraction: float) -> int:
    """How often to ask all clients, for as many messages as rounds have that ask a fraction."""
    number = round(task.rounds * fraction)
    if number < 1 or not np.isclose(number, task.rounds * fraction):
        raise InvalidDataError(
            f"{task.method} asks all clients in turn: {task.rounds} rounds of a fraction of "
            f"{fraction:g} of them are no whole number of passes"
        )
    return number


def perform(data: Split, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round that is scored."""
    method = METHODS[task.method]
    net = bnn.MeanFieldBNN([784, 100, 10], gpflow.likelihoods.Softmax(10))
    clients: dict[str, Any] = {}
    for number, (X, Y) in enumerate(divided(data, task)):
        rule = method.rule(task.learning_rate, len(X) / len(data.X))
        clients |= pvi.make_clients(net, {f"c{number}": (X, Y)}, rule, task.seed + number)
    server = pvi.Server(net.prior(), clients, seed=task.seed)
    if method.warm:
        server.warm_start(net.initial(task.seed))
    fraction = min(1.0, ASKED / task.num_clients)
    schedule = method.schedule(task.learning_rate, fraction)
    everybody = isinstance(schedule, pvi.Sequential)
    rounds, asked = (passes(task, fraction), 1.0) if everybody else (task.rounds, fraction)
    every = max(1, rounds // SCORED)
    evaluate = now_and_then(lambda q: scores(net, q, data), server, every, rounds)
    pvi.fit(server, schedule, rounds, callback=progress, evaluate=evaluate)
    columns, _ = scored_rounds(server.history)
    per_round = method.epochs * len(data.X) * asked
    gradients = [per_round * number for number in columns["round"]]
    return {**asdict(task), **columns, "gradients": gradients}


# ---- tables and figures ----


def summary(runs: list[Results]) -> list[Results]:
    """The last round of each run, and where it was at the fewest gradients that any run has."""
    least = min((one["gradients"][-1] for one in runs), default=0)
    rows = []
    for one in runs:
        at = int(np.searchsorted(one["gradients"], 0.999 * least))
        rows.append(
            {name: one[name] for name in SETTING}
            | {f"last_{kind}": one[f"test_{kind}"][-1] for kind in ("error", "nll", "calibration")}
            | {"at_equal_gradients": one["test_error"][at], "gradients": one["gradients"][-1]}
            | {"best_error": min(one["test_error"])}
            | {"messages": one["messages"][-1], "seconds": one["seconds"][-1]}
        )
    return rows


def over_seeds(rows: list[Results]) -> list[Results]:
    """Means over seeds of each setting and method, and the spread of the error."""
    groups: dict[tuple, list[Results]] = {}
    for row in rows:
        of = ("dataset", "divided", "num_clients", "wrong", "rounds", "method", "learning_rate")
        groups.setdefault(tuple(row[name] for name in of), []).append(row)
    found = []
    for group in groups.values():
        numbers = (
            "last_error", "last_nll", "last_calibration", "best_error", "at_equal_gradients",
            "seconds",
        )  # fmt: skip
        means = {name: float(np.mean([row[name] for row in group])) for name in numbers}
        spread = float(np.std([row["last_error"] for row in group]))
        found.append({**group[0], **means, "spread": spread, "seeds": len(group)})
    return found


def figure(runs: list[Results]) -> plt.Figure:
    """Test error against messages, one panel for each setting."""
    settings = sorted({(r["dataset"], r["divided"], r["num_clients"], r["wrong"]) for r in runs})
    columns = len(settings) if len(settings) <= 4 else 3
    rows = -(-len(settings) // columns)
    size = (3.6 * columns + 1.8, 3.5 * rows)
    canvas, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    panels = grid.ravel()
    for axes in panels[len(settings) :]:
        axes.remove()
    panels = panels[: len(settings)]
    for axes, (dataset, way, number, wrong) in zip(panels, settings, strict=True):
        for place, method in enumerate(METHODS):
            of = {"dataset": dataset, "divided": way, "num_clients": number, "wrong": wrong}
            mine = [one for one in runs if {**of, "method": method}.items() <= one.items()]
            for first, one in enumerate(mine):
                label = None if first else method
                axes.semilogy(one["messages"], one["test_error"], color=COLOURS(place), label=label)
        noise = f", {wrong:.0%} wrong" if wrong else ""
        axes.set(xlabel="messages", title=f"{dataset}, {way}, {number}{noise}")
        axes.title.set_fontsize(9)
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
    for axes in grid[:, 0]:
        axes.set_ylabel("test error")
    shown = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels]
    lines = {label: line for panel in shown for line, label in panel}
    canvas.legend(lines.values(), lines.keys(), loc="outside right center")
    return canvas


# ---- one run after another ----


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    """All runs that are asked for; to choose by, one for each rate."""
    return [
        Task(
            name, way, arguments.clients, arguments.wrong, rate,
            QUICK_ROUNDS if arguments.quick else arguments.rounds,
            seed, arguments.dataset, arguments.quick, arguments.choose,
        )
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for way in arguments.divided.split(",")
        for name in arguments.methods.split(",")
        for rate in rates_of(arguments, METHODS[name])
    ]  # fmt: skip


def rates_of(arguments: argparse.Namespace, method: Method) -> tuple[float, ...]:
    """That which is asked for, or all to choose among, or the first."""
    if arguments.learning_rate:
        return (arguments.learning_rate,)
    return method.learning_rates if arguments.choose else method.learning_rates[:1]


def main(arguments: argparse.Namespace) -> None:
    for name, known in (("methods", METHODS), ("divided", DIVIDED)):
        unknown = set(getattr(arguments, name).split(",")) - set(known)
        if unknown:
            raise InvalidDataError(f"no {sorted(unknown)[0]!r} in {name}: {list(known)}")
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    data = held_back(data) if arguments.choose else data
    folder = arguments.out / "runs"
    perform_missing(tasks_of(arguments), partial(perform, data), folder)
    runs = kept(folder, quick=arguments.quick, choose=arguments.choose)
    save_figure(figure(runs), arguments.out, "clients_that_differ.png")
    write_results(arguments.out, {"summary": over_seeds(summary(runs))})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--divided", default="label,dirichlet-0.1")
    options.add_argument("--clients", type=int, default=100, help="how many")
    options.add_argument("--wrong", type=float, default=0.0, help="the share of wrong labels")
    options.add_argument("--rounds", type=int, default=ROUNDS, help="how many")
    options.add_argument("--methods", default=",".join(one for one in METHODS if one != WANTS_ALL))
    options.add_argument("--learning-rate", type=float, help="in the place of a method's first")
    options.add_argument("--seeds", type=int, default=3, help="how many")
    options.add_argument(
        "--choose", action="store_true", help="score by training images that are held back"
    )
    run(main, options)
