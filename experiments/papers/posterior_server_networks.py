"""Distributed Bayesian networks by SNEP: Hasenclever et al. (2017), section 6.2, figures 3 to 7.

Workers hold equal shards of the images and sample by adaptive SGLD under the posterior server;
answers arrive one by one on a seeded clock. Beside SNEP with beta = 1 and p-SNEP with beta = 1/K
for K workers: asynchronous SGD, elastic averaging SGD, and Adam on one machine. Test errors are of
the network at the posterior's mean; at the end of each run also of networks drawn from it. As in
the paper, an epoch is as many images for every worker as there are in the training set.

Studies: workers, sync, outer and beta (figure 3), power (figure 4) and methods (figure 5) on MNIST
with 784-500-300-10, deep (figure 6, 20 hidden layers of 50) and convolutional (figure 7, here on
Fashion-MNIST).

Every run is kept in OUT/runs and repeated only for more epochs, and results and figures show all
studies that are complete: stop and start again at will. --quick takes 2,000 images, --full as long
and as often as the paper; otherwise each setting is run once, for fewer epochs. --under repeats
only what is fast.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results
from tqdm import tqdm

from experiments.federated_runs import LOADERS, advance, error_and_nll
from experiments.papers.posterior_server_tables import command, figure, summary
from streaming_gp import bnn, datasets, metrics, pvi, samplers
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal

QUICK_IMAGES, QUICK_EPOCHS, PAPER_REPETITIONS, BATCH, SAMPLES = 2000, 2.0, 10, 100, 10
INITIAL_VARIANCE = 0.01
"""Of each worker's first factor, and the least of all later ones."""


@dataclass(frozen=True)
class Problem:
    """A network, its data, and the settings that section 6.2 gives for them.

    :param learning_rate: of SNEP; ``step_size`` is that of its sampler.
    :param adam: step size of Adam on one machine.
    :param elastic: of the workers of elastic averaging.
    :param downpour: of the workers and of the server of asynchronous SGD.
    :param epochs: of a run in the paper, and here unless --full.
    """

    build: Callable[[], bnn.Network]
    dataset: str
    learning_rate: float
    step_size: float
    adam: float
    elastic: float
    downpour: tuple[float, float]
    epochs: tuple[float, float]
    moving_rate: float = 0.25


def wide() -> bnn.Network:
    return bnn.MeanFieldBNN([784, 500, 300, 10], gpflow.likelihoods.Softmax(10), 0.5)


def deep() -> bnn.Network:
    return bnn.MeanFieldBNN([784, *[50] * 20, 10], gpflow.likelihoods.Softmax(10), 0.05)


def convolutional() -> bnn.Network:
    layers: list[bnn.Layer] = [
        bnn.Convolution(8), bnn.MaxPool(), bnn.Convolution(16), bnn.MaxPool(), bnn.Dense(10)
    ]  # fmt: skip
    return bnn.Network((28, 28, 1), layers, gpflow.likelihoods.Softmax(10), 1.0)


PROBLEMS = {
    "wide": Problem(
        wide, "mnist", learning_rate=0.02, step_size=1e-3, adam=1e-3, elastic=1e-3,
        downpour=(1e-3, 7.5e-4), epochs=(20.0, 5.0),
    ),
    "deep": Problem(
        deep, "mnist", learning_rate=0.04, step_size=6.5e-4, adam=6.5e-4, elastic=6.5e-4,
        downpour=(6.5e-4, 6.5e-4 / 3.0), epochs=(50.0, 5.0),
    ),
    "convolutional": Problem(
        convolutional, "fashion-mnist", learning_rate=0.02, step_size=1e-3, adam=1e-3,
        elastic=1e-3, downpour=(1e-3, 7.5e-4), epochs=(30.0, 2.0),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One run.

    :param method: "snep", "a-sgd", "easgd" or "adam".
    :param beta: of SNEP.
    """

    problem: str
    epochs: float
    seed: int
    quick: bool
    method: str = "snep"
    workers: int = 4
    sync: int = 10
    outer: int = 10
    beta: float = 1.0

    @property
    def name(self) -> str:
        """Of its file."""
        quick = "-quick" if self.quick else ""
        snep = f"-{self.outer}-{self.beta:g}" if self.method == "snep" else ""
        setting = f"{self.workers}-{self.sync}{snep}"
        return f"{self.problem}-{self.method}-{setting}-{self.seed}{quick}.json"


# ---- one run ----


def update_of(task: Task) -> pvi.UpdateRule:
    problem = PROBLEMS[task.problem]
    if task.method == "a-sgd":
        return pvi.DownpourUpdate(pvi.Adam(problem.downpour[0]), task.sync, BATCH)
    if task.method == "easgd":
        return pvi.ElasticUpdate(
            pvi.Adam(problem.elastic), task.sync, BATCH, problem.moving_rate, 1.0 / task.workers
        )
    if task.method == "adam":
        return pvi.ElasticUpdate(pvi.Adam(problem.adam), task.sync, BATCH, moving_rate=1.0)
    sampler = samplers.AdaptiveSGLD(problem.step_size, BATCH)
    return pvi.SNEPUpdate(
        sampler, task.beta, problem.learning_rate, task.sync, task.outer, INITIAL_VARIANCE
    )


def damping_of(task: Task) -> Any:
    problem = PROBLEMS[task.problem]
    if task.method == "a-sgd":
        return pvi.ServerAdam(problem.downpour[1])
    return pvi.FedAvg(problem.moving_rate) if task.method == "easgd" else 1.0


def start_of(task: Task, net: bnn.Network) -> MeanFieldNormal:
    """Posterior whose mean is the network's own start, nearly: factors of equal width about it."""
    mean = np.asarray(net.initial(task.seed).mean)
    precision = np.full_like(mean, task.workers / INITIAL_VARIANCE)
    prior = net.prior()
    return MeanFieldNormal(precision * mean, precision + prior.precision).as_arrays()


def perform(data: Split, task: Task, bar: Any) -> Results:
    """One run: a list for each quantity, with an entry for each evaluation."""
    net = PROBLEMS[task.problem].build()
    shards = datasets.partition_iid(data.X, data.Y, task.workers, task.seed)
    clients = pvi.make_clients(net, shards, update_of(task), task.seed)
    server = pvi.Server(net.prior(), clients, checks=pvi.NO_LIMITS, seed=task.seed)
    server.warm_start(start_of(task, net))
    an_epoch = len(data.X) / (BATCH * task.sync)
    rounds = max(1, round(task.epochs * an_epoch))
    times = {min(rounds, max(1, round(epoch * an_epoch))) for epoch in evaluations(task.epochs)}

    def evaluate(q: Any) -> dict[str, float]:
        return error_at_mean(net, q, data) if len(server.history) + 1 in times else {}

    schedule = pvi.Asynchronous(damping=damping_of(task), seed=task.seed)
    history = pvi.fit(server, schedule, rounds, evaluate=evaluate, callback=partial(advance, bar))
    found = [one for one in history if one.metrics]
    return {
        **asdict(task),
        "epoch": [one.round / an_epoch for one in found],
        "seconds": [one.seconds for one in found],
        "test_error": [one.metrics["test_error"] for one in found],
        "refused": sum(len(one.refused) + len(one.failed) for one in history),
        "messages": history[-1].messages,
        **final_scores(net, server.posterior, data, task.method == "snep"),
    }


def evaluations(epochs: float) -> Iterator[float]:
    """Epochs at which the error is measured: dense at first."""
    yield from np.arange(0.1, min(epochs, 1.0), 0.1)
    yield from np.arange(1.0, epochs, 0.25)
    yield epochs


def error_at_mean(net: bnn.Network, q: Any, data: Split) -> dict[str, float]:
    probabilities = net.predict_by(np.asarray(q.mean)[None], data.X_test)
    return {"test_error": metrics.classification_error(probabilities, data.Y_test)}


def final_scores(net: bnn.Network, q: Any, data: Split, drawn: bool) -> Results:
    """Error and negative log likelihood (nats) at the mean, and by drawn networks if q has them."""
    at_mean = error_and_nll(net.predict_by(np.asarray(q.mean)[None], data.X_test), data.Y_test)
    by_draws: tuple[float | None, ...] = (None, None)
    if drawn:
        by_draws = error_and_nll(net.predict(q, data.X_test, num_samples=SAMPLES), data.Y_test)
    names = ("mean_error", "mean_nll", "drawn_error", "drawn_nll")
    return dict(zip(names, (*at_mean, *by_draws), strict=True))


# ---- studies ----


@dataclass(frozen=True)
class Study:
    """Runs of one figure.

    :param title: of the figure.
    :param problem: what is learned.
    :param variants: by label, fields of a task.
    """

    title: str
    problem: str
    variants: dict[str, dict[str, Any]]

    def tasks(self, arguments: argparse.Namespace, seed: int) -> dict[str, Task]:
        """By label."""
        epochs = arguments.epochs or PROBLEMS[self.problem].epochs[0 if arguments.full else 1]
        if arguments.quick:
            epochs = QUICK_EPOCHS
        return {
            label: Task(self.problem, epochs, seed, arguments.quick, **fields)
            for label, fields in self.variants.items()
        }


def values(name: str, *several: float) -> dict[str, dict[str, Any]]:
    """Variants that differ in one field."""
    return {f"{name} {value}": {name: value} for value in several}


def methods(workers: int) -> dict[str, dict[str, Any]]:
    return {
        "SNEP": {"workers": workers},
        "p-SNEP": {"workers": workers, "beta": 1.0 / workers},
        "A-SGD": {"workers": workers, "method": "a-sgd"},
        "EASGD": {"workers": workers, "method": "easgd"},
        "Adam": {"workers": 1, "method": "adam"},
    }


STUDIES = {
    "workers": Study("SNEP (figure 3)", "wide", values("workers", 1, 2, 4, 8)),
    "sync": Study("SNEP (figure 3)", "wide", values("sync", 1, 10, 100)),
    "outer": Study("SNEP (figure 3)", "wide", values("outer", 1, 10, 100)),
    "beta": Study("SNEP (figure 3)", "wide", values("beta", 1.0, 0.5, 0.25, 0.125)),
    "power": Study(
        "p-SNEP (figure 4)", "wide",
        {f"workers {k}": {"workers": k, "beta": 1.0 / k} for k in (8, 4, 2, 1)},
    ),
    "methods": Study("Four workers (figure 5)", "wide", methods(4)),
    "deep": Study("20 hidden layers, eight workers (figure 6)", "deep", methods(8)),
    "convolutional": Study("Convolutions, eight workers (figure 7)", "convolutional", methods(8)),
}  # fmt: skip


# ---- one run after another ----


def record_of(task: Task, folder: Path) -> Results | None:
    """Of a run of so many epochs or more, if there is one."""
    path = folder / task.name
    record: Results = json.loads(path.read_text()) if path.exists() else {"epochs": 0.0}
    return record if record["epochs"] >= task.epochs else None


def perform_missing(tasks: list[Task], arguments: argparse.Namespace) -> None:
    folder = arguments.out / "runs"
    loaded: dict[str, Split] = {}
    for task in tasks:
        if record_of(task, folder) is not None:
            continue
        name = PROBLEMS[task.problem].dataset
        if name not in loaded:
            loaded[name] = data_of(name, arguments)
        with tqdm(desc=task.name, unit="round", disable=not sys.stderr.isatty()) as bar:
            record = perform(loaded[name], task, bar)
        write_json(folder / task.name, record)
        error, seconds = record["mean_error"], record["seconds"][-1]
        print(f"{task.name}: error {error:.4f}, {seconds:.0f} s", flush=True)


def data_of(name: str, arguments: argparse.Namespace) -> Split:
    data = LOADERS[name](arguments.data)
    few = slice(QUICK_IMAGES if arguments.quick else None)
    return Split(data.X[few], data.Y[few], data.X_test[few], data.Y_test[few])


def tasks_of(seed: int, arguments: argparse.Namespace) -> list[Task]:
    """Of all studies asked for; after the first seed those alone whose first run was fast."""
    return [
        task
        for name in arguments.studies.split(",")
        for task in STUDIES[name].tasks(arguments, seed).values()
        if seed == arguments.seed or seconds_of_first(task, arguments) < arguments.under
    ]


def seconds_of_first(task: Task, arguments: argparse.Namespace) -> float:
    """That the run of the same setting by the first seed took."""
    first = record_of(replace(task, seed=arguments.seed), arguments.out / "runs")
    return float(first["seconds"][-1]) if first else np.inf


def kept(arguments: argparse.Namespace) -> dict[str, list[Results]]:
    """Labelled runs of all studies of which each setting was run, also by earlier calls."""
    found = {}
    for name, study in STUDIES.items():
        runs = {label: kept_of(study, label, arguments) for label in study.variants}
        if all(runs.values()):
            found[name] = [one for records in runs.values() for one in records]
    return found


def kept_of(study: Study, label: str, arguments: argparse.Namespace) -> list[Results]:
    """Runs of one setting by the first seed, the second, and so on as far as there are any."""
    tasks = (study.tasks(arguments, seed)[label] for seed in count(arguments.seed))
    records = (record_of(task, arguments.out / "runs") for task in tasks)
    return [{"label": label} | one for one in takewhile(bool, records) if one]


def main(arguments: argparse.Namespace) -> None:
    unknown = set(arguments.studies.split(",")) - set(STUDIES)
    if unknown:
        raise InvalidDataError(f"no study {sorted(unknown)[0]!r}; there are {list(STUDIES)}")
    number = arguments.repetitions or (PAPER_REPETITIONS if arguments.full else 1)
    for seed in range(arguments.seed, arguments.seed + number):
        perform_missing(tasks_of(seed, arguments), arguments)
    runs = kept(arguments)
    for name, records in runs.items():
        save_figure(figure(STUDIES[name].title, records), arguments.out, f"{name}.png")
    results = {
        "command": command(arguments, runs),
        "seed": arguments.seed,
        "summary": summary(runs),
        "runs": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--studies", default=",".join(STUDIES), help=f"of {', '.join(STUDIES)}")
    options.add_argument("--full", action="store_true", help="as long and as often as the paper")
    options.add_argument("--epochs", type=float, default=None, help="of each run that is missing")
    options.add_argument("--repetitions", type=int, default=None, help="seeds of each setting")
    options.add_argument(
        "--under", type=float, default=np.inf, metavar="SECONDS",
        help="repeat only the settings whose run by the first seed took less",
    )  # fmt: skip
    run(main, options)
