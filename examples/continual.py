"""Variational continual learning: split MNIST, five tasks of two digits (Nguyen et al. 2018).

A network 784-200 with a head of two outputs for each task, which learns 0/1, 2/3, 4/5, 6/7 and 8/9
one after another: PVI with one pass, and with coresets of 40 random images a task, which are put
aside and visited after each task. Prints and records the test error of every task after each, and
draws their mean.

--quick has 200 images a task, tests on as many, and fewer epochs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split
from streaming_gp.metrics import classification_error

TASKS, CORESET = 5, 40
Tasks = list[tuple[np.ndarray, np.ndarray]]


def tasks_of(X: np.ndarray, Y: np.ndarray, most: int | None = None) -> Tasks:
    """Digits 2t and 2t + 1 as labels 0 and 1 of task t, whose number stands in front of X."""
    found = []
    for number in range(TASKS):
        rows = np.flatnonzero(Y[:, 0] // 2 == number)[:most]
        found.append((np.insert(X[rows], 0, number, axis=1), Y[rows] % 2))
    return found


def errors(net: bnn.MultiHeadBNN, q: Any, tests: Tasks) -> list[float]:
    return [classification_error(net.predict(q, X, num_samples=20), Y) for X, Y in tests]


def learned(data: Split, coreset: int, quick: bool, seed: int) -> Results:
    """Test errors of the tasks so far, after each."""
    net = bnn.MultiHeadBNN([784, 200, 2], TASKS, gpflow.likelihoods.Softmax(2))
    rule = bnn.NewHeads(pvi.VariationalUpdate(5 if quick else 20, 200, learning_rate=2e-3))
    tasks = tasks_of(data.X, data.Y, 200 if quick else None)
    clients = pvi.continual_clients(net, tasks, rule, coreset, seed)
    server = pvi.Server(net.prior(), clients, seed=seed)
    tests, found, refused = tasks_of(data.X_test, data.Y_test, 200 if quick else None), [], 0
    for number in tqdm(range(TASKS), desc="tasks", disable=not sys.stderr.isatty()):
        history = pvi.fit(server, pvi.Continual())
        refused += len(history[-1].refused) + len(history[-1].failed)
        found.append(errors(net, server.posterior, tests[: number + 1]))
        print(f"coreset {coreset}, task {number}: {[f'{100 * e:.2f} %' for e in found[-1]]}")
        sys.stdout.flush()
    return {"coreset": coreset, "refused": refused, "test_errors": found}


def summary(runs: list[Results]) -> list[Results]:
    """Mean error over the tasks so far after each task, and each task's own at the end."""
    rows = []
    for one in runs:
        means = {f"after_{n + 1}": float(np.mean(e)) for n, e in enumerate(one["test_errors"])}
        rows.append({"coreset": one["coreset"], **means, "refused": one["refused"]})
    return rows


def figure(runs: list[Results]) -> plt.Figure:
    canvas, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for one in runs:
        means = [100.0 * np.mean(errors) for errors in one["test_errors"]]
        axes.plot(range(1, len(means) + 1), means, "o-", label=f"{one['coreset']} images put aside")
    axes.set(xlabel="tasks learned", ylabel="mean test error, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return canvas


def main(arguments: argparse.Namespace) -> None:
    data = datasets.load_mnist(arguments.data)
    runs = [learned(data, size, arguments.quick, arguments.seed) for size in (0, CORESET)]
    save_figure(figure(runs), arguments.out, "continual.png")
    results = {"seed": arguments.seed, "summary": summary(runs), "runs": runs}
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
