"""Federated Bayesian neural networks on MNIST: ten clients that keep their images.

A network 784-200-10 with a standard normal prior; images are dealt at random (iid), or every client
has one digit (label). Partitioned variational inference by three schedules stands beside global
variational inference (gvi), a Bayesian committee (bcm), and federated averaging. Draws test error
against messages. ``python -m experiments.papers.federated_mnist`` has more of them, and goes on
where it was stopped.

--quick trains on 2,000 images for two rounds, and tests on as many.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

from streaming_gp import bnn, datasets, metrics, pvi
from streaming_gp.datasets import Split
from streaming_gp.errors import InvalidDataError

NUM_CLIENTS = 10
PARTITIONS = {"iid": datasets.partition_iid, "label": datasets.partition_by_label}
RATES = {"iid": 5e-3, "label": 5e-4}
METHODS = (
    "pvi-natural",
    "pvi-sync",
    "pvi-async",
    "pvi-seq",
    "gvi",
    "bcm-same",
    "bcm-split",
    "fedavg",
)


def setting(method: str, partition: str, share: float) -> tuple[Any, Any, int]:
    """The rule of a client that has this share of all data, the schedule, the number of rounds."""
    visit = pvi.VariationalUpdate(epochs=1, batch_size=200, learning_rate=RATES[partition])
    longer = replace(visit, epochs=20, learning_rate=2e-3)
    slow, whole = pvi.Synchronous(damping=0.1), pvi.Synchronous(damping=1.0)
    found: dict[str, tuple[Any, Any, int]] = {
        "pvi-natural": (pvi.FixedPointUpdate(600), pvi.Synchronous(damping=pvi.Momentum()), 400),
        "pvi-sync": (visit, slow, 40),
        "pvi-async": (visit, pvi.Asynchronous(damping=0.1), 40),
        "pvi-seq": (visit, pvi.Sequential(damping=0.5), 10),
        "gvi": (replace(longer, epochs=5), pvi.Sequential(), 8),
        "bcm-same": (longer, whole, 1),
        "bcm-split": (pvi.SplitPriorUpdate(longer, 1.0 / NUM_CLIENTS), whole, 1),
        "fedavg": (pvi.AveragingUpdate(share, replace(longer, epochs=5)), whole, 20),
    }
    return found[method]


def perform(method: str, data: Split, arguments: argparse.Namespace) -> Results:
    """One run: a list for each quantity, with an entry for each round."""
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    number = 1 if method == "gvi" else NUM_CLIENTS  # all images at one place
    partition = datasets.partition_iid if method == "gvi" else PARTITIONS[arguments.partition]
    clients: dict[str, Any] = {}
    for k, (X, Y) in enumerate(partition(data.X, data.Y, number, arguments.seed)):
        share = len(X) / len(data.X)
        rule, schedule, rounds = setting(method, arguments.partition, share)
        clients |= pvi.make_clients(net, {f"c{k}": (X, Y)}, rule, arguments.seed)
    rounds = min(rounds, 2) if arguments.quick else arguments.rounds or rounds
    server = pvi.Server(net.prior(), clients, seed=arguments.seed)
    if method == "pvi-natural":
        server.warm_start(net.initial(arguments.seed))

    def evaluate(q: Any) -> dict[str, float]:
        probabilities = net.predict(q, data.X_test, num_samples=20, seed=arguments.seed)
        of_label = probabilities[np.arange(len(data.Y_test)), data.Y_test[:, 0].astype(int)]
        nll = metrics.mean_negative_log_density(np.log(np.maximum(of_label, 1e-12)))
        error = metrics.classification_error(probabilities, data.Y_test)
        return {"test_error": error, "test_nll": nll}

    with tqdm(total=rounds, desc=method, disable=not sys.stderr.isatty()) as bar:
        history = pvi.fit(
            server, schedule, rounds, evaluate=evaluate, callback=lambda _: bar.update()
        )
    names = ["round", "seconds", "messages", "bytes", "test_error", "test_nll"]
    columns = {name: history.column(name) for name in names}
    return {"method": method, "partition": arguments.partition, "seed": arguments.seed, **columns}


def main(arguments: argparse.Namespace) -> None:
    methods = arguments.methods.split(",")
    for method in set(methods) - set(METHODS):
        raise InvalidDataError(f"no method {method!r}; there are {METHODS}")
    data = datasets.load_mnist(arguments.data)
    if arguments.quick:
        data = Split(*(part[:2000] for part in (data.X, data.Y, data.X_test, data.Y_test)))
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    runs = []
    for method in methods:
        runs.append(one := perform(method, data, arguments))
        error, nll = one["test_error"][-1], one["test_nll"][-1]
        print(f"{method}: test error {error:.4f}, NLL {nll:.4f}, {one['seconds'][-1]:.0f} s")
        axes.loglog(one["messages"], one["test_error"], "o-", label=method)
        write_results(arguments.out, {"seed": arguments.seed, "runs": runs})
    axes.set(xlabel="messages", ylabel="test error", title=arguments.partition)
    axes.legend()
    save_figure(figure, arguments.out, f"mnist_{arguments.partition}.png")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--partition", choices=list(PARTITIONS), default="iid")
    options.add_argument(
        "--methods", default="pvi-natural,pvi-sync,gvi,fedavg", help=", ".join(METHODS)
    )
    options.add_argument("--rounds", type=int, help="in the place of a method's own")
    run(main, options)
