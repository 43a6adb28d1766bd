"""Shared by experiments with federated networks: images, shards, scores, and runs that are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Results, write_json
from tqdm import tqdm

from streaming_gp import bnn, datasets, metrics, pvi
from streaming_gp.datasets import Split

NUM_CLIENTS = 10
LOADERS = {"mnist": datasets.load_mnist, "fashion-mnist": datasets.load_fashion_mnist}
PARTITIONS = {"iid": datasets.partition_iid, "label": datasets.partition_by_label}
QUICK_IMAGES, SAMPLES, CHUNK = 6000, 20, 2000
Progress = Callable[[pvi.Round], None]


def fewer_images(data: Split, quick: bool) -> Split:
    """The first of those to learn from, where it has to be quick."""
    return replace(data, X=data.X[:QUICK_IMAGES], Y=data.Y[:QUICK_IMAGES]) if quick else data


def held_back(data: Split) -> Split:
    """To choose by: the last sixth of the training images in the place of the test images."""
    kept = len(data.X) - len(data.X) // 6
    X, Y = data.X[kept:], data.Y[kept:]
    return replace(data, X=data.X[:kept], Y=data.Y[:kept], X_test=X, Y_test=Y)


def scored_rounds(history: pvi.History) -> tuple[Results, list[Results]]:
    """Scores and traffic of the rounds that have scores, as columns; and all that they hold."""
    records = [one for one in history.to_records() if one["metrics"]]
    names = ["round", "seconds", "messages", *records[0]["metrics"]]
    return {name: [one[name] for one in records] for name in names}, records


def scores(net: bnn.MeanFieldBNN, q: Any, data: Split) -> dict[str, float]:
    """Error, negative log likelihood and calibration error on the test images."""
    probabilities = net.predict(q, data.X_test, num_samples=SAMPLES)
    error, nll = error_and_nll(probabilities, data.Y_test)
    calibration = metrics.expected_calibration_error(probabilities, data.Y_test)
    return {"test_error": error, "test_nll": nll, "test_calibration": calibration}


def free_energy(net: bnn.Network, q: Any, data: Split, seed: int) -> float:
    """Of all training images, in nats per image."""
    X, Y = net.as_data(data.X, data.Y)
    chunks = [slice(first, first + CHUNK) for first in range(0, len(X), CHUNK)]
    expected = [
        net.expected_log_likelihood(q, X[rows], Y[rows], np.array([seed, number]))
        for number, rows in enumerate(chunks)
    ]
    return float(np.sum(expected) - q.kl_divergence(net.prior())) / len(X)


def scores_and_free_energy(
    net: bnn.MeanFieldBNN, q: Any, data: Split, seed: int
) -> dict[str, float]:
    return {"free_energy": free_energy(net, q, data, seed), **scores(net, q, data)}


def now_and_then(
    score: Callable[[Any], dict[str, float]], server: pvi.Server, every: int, rounds: int
) -> Callable[[Any], dict[str, float]]:
    """Scores after every so many of the rounds, and after the last."""

    def scored(q: Any) -> dict[str, float]:
        number = len(server.history) + 1
        return score(q) if number % every == 0 or number == rounds else {}

    return scored


def begun(
    net: bnn.MeanFieldBNN, clients: dict[str, Any], seed: int, checkpoint: Path, warm: bool = False
) -> pvi.Server:
    """A server at its first round, or at the one after the last that is in the checkpoint.

    :param warm: Whether q starts as a network's fit does, and not as the prior.
    """
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        return pvi.Server.load(checkpoint, net.prior(), clients, seed=seed)
    server = pvi.Server(net.prior(), clients, seed=seed)
    if warm:
        server.warm_start(net.initial(seed))
    return server


def error_and_nll(probabilities: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
    """Share of wrong labels, and mean negative log likelihood in nats."""
    likelihood = probabilities[np.arange(len(Y)), Y[:, 0].astype(int)]
    density = np.log(np.maximum(likelihood, 1e-12))
    return (
        metrics.classification_error(probabilities, Y),
        metrics.mean_negative_log_density(density),
    )


def perform_missing(
    tasks: Sequence[Any], perform: Callable[[Any, Progress], Results], folder: Path
) -> None:
    """Every run that has no file yet.

    :param tasks: each with a ``name``, which is that of its file.
    :param perform: makes one of them, and calls back after each round.
    """
    for task in tasks:
        path = folder / task.name
        if path.exists():
            continue
        with tqdm(desc=task.name, unit="round", disable=not sys.stderr.isatty()) as bar:
            result = perform(task, partial(advance, bar))
        write_json(path, result)
        print(
            f"{task.name}: last error {result['test_error'][-1]:.4f}, "
            f"best {min(result['test_error']):.4f}, NLL {result['test_nll'][-1]:.4f}, "
            f"{result['seconds'][-1]:.0f} s, {result['messages'][-1]} messages",
            flush=True,
        )


def kept(folder: Path, **wanted: Any) -> list[Results]:
    """All runs of this kind that are there, also those of earlier calls."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [one for one in runs if wanted.items() <= one.items()]


def advance(bar: Any, one: pvi.Round) -> None:
    if one.metrics:
        bar.set_postfix(one.metrics)
    bar.update()
