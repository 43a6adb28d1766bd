"""Differentially private federated learning: test error against ε, beside federated averaging.

Ten clients with 6,000 MNIST images each, iid. Every answer is private for each single image, at
δ = 1e-5, against whoever sees it, the server included. Partitioned variational inference by noisy
natural gradients beside DP-FedAvg, which is the same clipped and noisy gradients with averaging of
weights after a few local steps; all have the same accountant, the same rate of
sampling and as many noisy gradients. Images are smoothed, for every method alike: noise then falls
on what neighbouring pixels agree on. Smoothing looks at no other image.

Rates were chosen on the last 10,000 training images (--choose); the number of steps, the size of
samples, tanh and smoothing before that, by a simulation in which the test error was seen. Every run
is kept in OUT/runs and never repeated; one that is not over goes on after its last round. Stop and
start again at will. --quick makes a few rounds on 6,000 images. The noise has a seed here, so that
a run can be repeated: the images are public.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from scipy.ndimage import gaussian_filter

from experiments.federated_runs import (
    LOADERS,
    NUM_CLIENTS,
    Progress,
    fewer_images,
    held_back,
    kept,
    now_and_then,
    perform_missing,
    scored_rounds,
    scores,
)
from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi import privacy

DELTA = 1e-5
SIZES = {"logistic": [784, 10], "network": [784, 100, 10]}
GRADIENTS = {8.0: 400, 2.0: 200, 1.0: 100}
"""How many noisy gradients of each client: the smaller ε, the fewer with less noise are better."""
OTHERWISE, RATE, QUICK_ROUNDS, SCORED = 200, 0.25, 3, 10
SETTING = ("model", "epsilon", "method", "clip", "learning_rate", "noise_multiplier")
SCORES = ("error", "nll", "calibration")
SMOOTHED = 1.0
"""Pixels: the standard deviation of the Gaussian by which images are smoothed."""
ROWS = 60_000


@dataclass(frozen=True)
class Task:
    """One run."""

    method: str
    model: str
    epsilon: float
    seed: int
    dataset: str
    quick: bool
    choose: bool
    clip: float
    learning_rate: float

    @property
    def name(self) -> str:
        """Of its file."""
        kind = "-quick" * self.quick + "-choose" * self.choose
        setting = f"{self.epsilon:g}-{self.clip:g}-{self.learning_rate:g}"
        return f"{self.dataset}-{self.model}-{self.method}-{setting}-{self.seed}{kind}.json"

    @property
    def gradients(self) -> int:
        """How many noisy ones each client makes."""
        return GRADIENTS.get(self.epsilon, OTHERWISE)


@dataclass(frozen=True)
class Method:
    """How clients answer, how the server takes it, and how many noisy gradients a visit has.

    :param rule: The rule at a learning rate.
    :param damping: What the server does at a learning rate.
    :param learning_rate: For a model and ε; chosen among some that differ by a factor of two.
    """

    rule: Callable[[float], Any]
    damping: Callable[[float], Any]
    gradients: int
    learning_rate: Callable[[str, float], float]
    clip: float = 1.0


def averaging(steps: int, momentum: float) -> Callable[[float], Any]:
    """Federated averaging with so many local steps, each on a quarter of the rows."""
    epochs = max(1, round(steps * RATE))

    def rule(rate: float) -> Any:
        optimiser = pvi.SGD(rate * NUM_CLIENTS / ROWS, momentum)
        fit = pvi.VariationalUpdate(epochs, optimiser=optimiser)
        return pvi.AveragingUpdate(1.0 / NUM_CLIENTS, fit)

    return rule


METHODS = {
    "pvi": Method(
        lambda rate: pvi.FixedPointUpdate(), lambda rate: pvi.Momentum(rate), 1,
        lambda model, epsilon: 0.2 if model == "network" and epsilon < 4.0 else 0.4,
    ),
    "fedavg": Method(averaging(4, 0.0), lambda rate: 1.0, 4, lambda *_: 16.0),
    "fedavg-20": Method(averaging(20, 0.9), lambda rate: 1.0, 20, lambda *_: 2.0),
}  # fmt: skip
"""Averaging after four local steps, or twenty with momentum."""


@lru_cache
def noise(epsilon: float, gradients: int) -> float:
    """The noise multiplier with which all gradients of a client together have this ε."""
    return privacy.noise_multiplier_for(privacy.Budget(epsilon, DELTA), gradients, RATE)


def images(arguments: argparse.Namespace) -> Split:
    """Smoothed ones; to choose by, the last training images are in the place of test images."""
    data = fewer_images(LOADERS[arguments.dataset](arguments.data), arguments.quick)
    data = held_back(data) if arguments.choose else data
    return replace(data, X=smoothed(data.X), X_test=smoothed(data.X_test))


def smoothed(X: np.ndarray) -> np.ndarray:
    """Each image [N, 784] under a Gaussian filter."""
    width = (0.0, SMOOTHED, SMOOTHED)
    return gaussian_filter(X.reshape(-1, 28, 28), width).reshape(len(X), -1)


def perform(data: Split, folder: Path, task: Task, progress: Progress) -> Results:
    """One run: a list for each quantity, with an entry for each round that is scored."""
    method, multiplier = METHODS[task.method], noise(task.epsilon, task.gradients)
    net = bnn.MeanFieldBNN(SIZES[task.model], gpflow.likelihoods.Softmax(10), activation="tanh")
    shards = datasets.partition_iid(data.X, data.Y, NUM_CLIENTS, task.seed)
    rule = privacy.PrivateGradients(
        method.rule(task.learning_rate), budget=privacy.Budget(task.epsilon, DELTA),
        clip=task.clip, noise_multiplier=multiplier, sampling_rate=RATE,
        means_only=True, insecure_seed=task.seed,
    )  # fmt: skip
    clients = pvi.make_clients(net, shards, rule, task.seed)
    checkpoint = folder / f"{task.name}.part.npz"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        server = pvi.Server.load(checkpoint, net.prior(), clients, seed=task.seed)
    else:
        server = pvi.Server(net.prior(), clients, seed=task.seed)
        server.warm_start(net.initial(task.seed))
    rounds = QUICK_ROUNDS if task.quick else task.gradients // method.gradients
    every = max(1, rounds // SCORED)
    evaluate = now_and_then(lambda q: scores(net, q, data), server, every, rounds)
    if len(server.history) < rounds:
        pvi.fit(
            server, pvi.Synchronous(damping=method.damping(task.learning_rate)),
            rounds - len(server.history), callback=progress, checkpoint=checkpoint,
            evaluate=evaluate,
        )  # fmt: skip
    checkpoint.unlink(missing_ok=True)
    columns, records = scored_rounds(server.history)
    spent = [max(one["epsilon"].values()) for one in records]
    return {**asdict(task), "noise_multiplier": multiplier, **columns, "spent": spent}


def summary(runs: list[Results]) -> list[Results]:
    """What the runs of each setting have spent and how they end: means, and the error's spread."""
    settings: dict[tuple, list[Results]] = {}
    for one in runs:
        settings.setdefault(tuple(one[name] for name in SETTING), []).append(one)
    rows = []
    for setting, group in sorted(settings.items(), key=lambda item: item[0][:3]):
        ends = {kind: [one[f"test_{kind}"][-1] for one in group] for kind in SCORES}
        rows.append(
            dict(zip(SETTING, setting, strict=True))
            | {kind: float(np.mean(values)) for kind, values in ends.items()}
            | {"spread": float(np.std(ends["error"])), "seeds": len(group)}
            | {"spent": max(one["spent"][-1] for one in group)}
            | {"messages": group[0]["messages"][-1]}
            | {"seconds": float(np.mean([one["seconds"][-1] for one in group]))}
        )
    return rows


def figure(rows: list[Results]) -> plt.Figure:
    """Test error at the end against ε, of each method."""
    canvas, panels = plt.subplots(1, len(SIZES), figsize=(9, 3.5), layout="constrained")
    for axes, model in zip(panels, SIZES, strict=True):
        for method in METHODS:
            mine = [one for one in rows if (one["model"], one["method"]) == (model, method)]
            if mine:
                mine.sort(key=lambda one: float(one["epsilon"]))
                columns = ([one[name] for one in mine] for name in ("epsilon", "error", "spread"))
                x, y, error = columns
                axes.errorbar(x, y, error, fmt="o-", capsize=3, label=method)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ε of each client at δ = 1e-5", ylabel="test error", title=model)
        axes.set_ylim(bottom=0.0)
        axes.xaxis.set_major_formatter("{x:g}")
    panels[-1].legend()
    return canvas


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    """All runs that are asked for."""
    return [
        Task(
            name, model, epsilon, seed, arguments.dataset, arguments.quick,
            arguments.choose, arguments.clip or METHODS[name].clip,
            arguments.learning_rate or METHODS[name].learning_rate(model, epsilon),
        )
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for epsilon in map(float, arguments.epsilons.split(","))
        for model in arguments.models.split(",")
        for name in arguments.methods.split(",")
    ]  # fmt: skip


def main(arguments: argparse.Namespace) -> None:
    for name, known in (("methods", METHODS), ("models", SIZES)):
        unknown = set(getattr(arguments, name).split(",")) - set(known)
        if unknown:
            raise InvalidDataError(f"no {sorted(unknown)[0]!r} in {name}: {list(known)}")
    data = images(arguments)
    folder = arguments.out / "runs"
    perform_missing(tasks_of(arguments), partial(perform, data, folder), folder)
    common: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("dataset", "quick", "choose")
    }
    rows = summary(kept(folder, **common))
    save_figure(figure(rows), arguments.out, "private_federation.png")
    write_results(arguments.out, {"delta": DELTA, "summary": rows})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(LOADERS), default="mnist")
    options.add_argument("--models", default=",".join(SIZES))
    options.add_argument("--methods", default="pvi,fedavg")
    options.add_argument("--epsilons", default="8,2,1")
    options.add_argument("--seeds", type=int, default=3, help="how many")
    options.add_argument(
        "--choose", action="store_true", help="score by training images that are held back"
    )
    options.add_argument("--clip", type=float, help="the largest norm of an image's gradient")
    options.add_argument("--learning-rate", type=float)
    run(main, options)
