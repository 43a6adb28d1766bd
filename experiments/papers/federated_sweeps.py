"""Federated MNIST by learning rate and damping: PVI 2018, figures 4, 5 and appendix E.

Ten clients with MNIST shards, iid or one class each; a network 784-200-10 with a standard normal
prior, Adam, minibatches of 200. Each method runs with each of its learning rates and its dampings,
or numbers of epochs, and is scored on the last 10,000 training images, which are held back.
--best runs the settings that were best there, on all training images, and scores the test images.
--methods adam-200,sngd-200,adam-500,sngd-500 compares Adam with natural gradients for global VI, by
networks of 200 and 500 hidden units (appendix E.6). --longer 8 trains eight times as long, and
--rates and --settings try these in the place of a method's own.

Every run is kept in OUT/runs and never repeated, and one that was stopped goes on. --quick trains
on 6,000 images for a few rounds.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gpflow
from common import Results, parser, run, save_figure, write_results

from experiments.federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    PARTITIONS,
    Progress,
    begun,
    fewer_images,
    held_back,
    kept,
    now_and_then,
    perform_missing,
    scored_rounds,
    scores_and_free_energy,
)
from experiments.papers.federated_sweep_methods import (
    BATCH,
    FEDERATED,
    METHODS,
    OPTIMISERS,
    OneClassBatches,
)
from experiments.papers.federated_sweep_tables import (
    best_figure,
    best_of,
    summary,
    sweep_figure,
    sweep_rows,
)
from streaming_gp import bnn, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError

QUICK_ROUNDS, SEEDS = 2, 3


@dataclass(frozen=True)
class Task:
    """One run.

    :param setting: The damping, or the number of epochs of a visit.
    :param choose: Whether it is scored on held-back images, and not on the test images.
    :param longer: So many times the method's own rounds.
    """

    method: str
    partition: str
    learning_rate: float
    setting: float
    seed: int
    dataset: str
    quick: bool
    choose: bool
    longer: int

    @property
    def name(self) -> str:
        """Of its file."""
        kind = "-quick" * self.quick + "-choose" * self.choose
        kind += f"-x{self.longer}" * (self.longer > 1)
        of = f"{self.dataset}-{self.partition}-{self.method}"
        return f"{of}-{self.learning_rate:g}-{self.setting:g}-{self.seed}{kind}.json"


def perform(data: Split, folder: Path, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round that is scored.

    :param folder: Where a run that is not over is kept after each round.
    """
    method = METHODS[task.method]
    net = bnn.MeanFieldBNN([784, method.units, 10], gpflow.likelihoods.Softmax(10))
    clients = pvi.make_clients(net, shards(data, task), rule_of(task), task.seed)
    checkpoint = folder / f"{task.name}.part.npz"
    server = begun(net, clients, task.seed, checkpoint)
    rounds = task.longer * method.rounds[task.partition]
    rounds = min(rounds, QUICK_ROUNDS) if task.quick else rounds
    every = 1 if rounds <= 12 else 5 if rounds <= 100 else 10

    def score(q: Any) -> dict[str, float]:
        return scores_and_free_energy(net, q, data, task.seed)

    if len(server.history) < rounds:
        pvi.fit(
            server, method.schedule(task.setting), rounds - len(server.history),
            callback=progress, checkpoint=checkpoint,
            evaluate=now_and_then(score, server, every, rounds),
        )  # fmt: skip
    checkpoint.unlink(missing_ok=True)
    return {**asdict(task), **columns(server.history, task, len(data.X))}


def shards(data: Split, task: Task) -> list[pvi.Data]:
    """All images in one place for global VI, and else ten shards."""
    if METHODS[task.method].cores:
        return [(data.X, data.Y)]
    return PARTITIONS[task.partition](data.X, data.Y, NUM_CLIENTS, task.seed)


def rule_of(task: Task) -> pvi.UpdateRule:
    method = METHODS[task.method]
    rule = method.rule(task.learning_rate, task.setting)
    one_class = method.cores == 1 and task.partition == "label"
    return OneClassBatches(rule) if one_class else rule


def columns(history: pvi.History, task: Task, num_data: int) -> Results:
    """What ``results.json`` holds of a run; global VI sends messages for each minibatch."""
    method = METHODS[task.method]
    found, _ = scored_rounds(history)
    epochs = [number * method.epochs(task.setting) for number in found["round"]]
    if method.cores:
        steps = -(-num_data // (BATCH * method.cores))
        found["messages"] = [2 * method.cores * steps * number for number in epochs]
    return {**found, "epochs": epochs}


# ---- one run after another ----


def sweep_tasks(arguments: argparse.Namespace) -> list[Task]:
    """Every learning rate with every setting, by one seed."""
    return [
        Task(
            name, way, rate, setting, arguments.seed, arguments.dataset, arguments.quick, True,
            arguments.longer,
        )
        for way in ways(arguments)
        for name in arguments.methods.split(",")
        for rate, setting in product(
            arguments.rates or METHODS[name].rates[way],
            arguments.settings or METHODS[name].settings[way],
        )
    ]  # fmt: skip


def best_tasks(arguments: argparse.Namespace, chosen: list[Results]) -> list[Task]:
    """The settings that were chosen, by several seeds."""
    names = [one.name for one in fields(Task)]
    wanted = [one for one in chosen if one["partition"] in ways(arguments)]
    wanted = [one for one in wanted if one["method"] in arguments.methods.split(",")]
    repetitions = 1 if arguments.quick else arguments.repetitions
    return [
        replace(Task(**{name: one[name] for name in names}), seed=seed, choose=False)
        for seed in range(arguments.seed, arguments.seed + repetitions)
        for one in wanted
    ]


def numbers(said: str) -> tuple[float, ...]:
    return tuple(float(one) for one in said.split(","))


def ways(arguments: argparse.Namespace) -> list[str]:
    return list(PARTITIONS) if arguments.partition == "both" else [arguments.partition]


def main(arguments: argparse.Namespace) -> None:
    unknown = set(arguments.methods.split(",")) - set(METHODS)
    if unknown:
        raise InvalidDataError(f"no method {sorted(unknown)[0]!r}; there are {list(METHODS)}")
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    folder = arguments.out / "runs"
    of = {name: getattr(arguments, name) for name in ("dataset", "quick", "longer")}
    perform_missing(sweep_tasks(arguments), partial(perform, held_back(data), folder), folder)
    tried = kept(folder, choose=True, **of)
    chosen = best_of(tried)
    if arguments.best:
        perform_missing(best_tasks(arguments, chosen), partial(perform, data, folder), folder)
    best = kept(folder, choose=False, **of)
    for partition, (kind, methods) in product(
        PARTITIONS, (("sweep", FEDERATED), ("optimisers", OPTIMISERS))
    ):
        there = {one["method"] for one in tried if one["partition"] == partition}
        names = [name for name in methods if name in there]
        if names:
            canvas = sweep_figure(tried, partition, names)
            save_figure(canvas, arguments.out, f"{arguments.dataset}_{partition}_{kind}.png")
    for partition in sorted({one["partition"] for one in best}):
        canvas = best_figure(best, partition)
        save_figure(canvas, arguments.out, f"{arguments.dataset}_{partition}.png")
    write_results(
        arguments.out,
        {
            "summary": summary(best, chosen),
            "sweep": sweep_rows(tried),
            "optimisers": sweep_rows([one for one in tried if one["method"] in OPTIMISERS]),
            "runs": tried + best,
        },
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--partition", choices=[*PARTITIONS, "both"], default="both")
    options.add_argument("--methods", default=",".join(FEDERATED), help=f"of {', '.join(METHODS)}")
    options.add_argument("--longer", type=int, default=1, help="times a method's own rounds")
    options.add_argument("--rates", type=numbers, default=(), help="these alone, as 1e-4,3e-4")
    options.add_argument("--settings", type=numbers, default=(), help="these alone, as 0.1,0.2")
    options.add_argument("--best", action="store_true", help="then run what was best, by 3 seeds")
    options.add_argument("--repetitions", type=int, default=SEEDS, help="seeds of what was best")
    run(main, options)
