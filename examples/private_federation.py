"""Differentially private federated learning: ten clients, each with a budget that it does not pass.

A Bayesian network, or a linear classifier, learns from MNIST images that ten clients keep. Every
answer is noisy, so that nobody who sees it, the server included, can tell whether one image was
there: (ε, 1e-5)-differential privacy for each image. The noise is chosen so that all rounds
together spend the budget. ``python -m experiments.measured.private_federation`` compares this with
federated averaging at several budgets. Draws error and what was spent.

--quick has 6,000 images and three rounds.
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
from scipy.ndimage import gaussian_filter
from tqdm import tqdm

from streaming_gp import bnn, datasets, pvi
from streaming_gp.datasets import Split
from streaming_gp.metrics import classification_error
from streaming_gp.pvi import privacy

NUM_CLIENTS, DELTA, SAMPLING_RATE = 10, 1e-5, 0.25
SIZES = {"linear": [784, 10], "network": [784, 100, 10]}


def images(arguments: argparse.Namespace) -> Split:
    """Smoothed images: noise then falls on what neighbouring pixels agree on."""
    data = datasets.load_mnist(arguments.data)
    if arguments.quick:
        data = replace(data, X=data.X[:6000], Y=data.Y[:6000])
    return replace(data, X=smoothed(data.X), X_test=smoothed(data.X_test))


def smoothed(X: np.ndarray) -> np.ndarray:
    return gaussian_filter(X.reshape(-1, 28, 28), (0.0, 1.0, 1.0)).reshape(len(X), -1)


def draw(records: list[Results], budget: float) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    rounds = [one["round"] for one in records]
    left.plot(rounds, [one["test_error"] for one in records])
    left.set(xlabel="rounds", ylabel="test error")
    right.plot(rounds, [one["spent"] for one in records])
    right.axhline(budget, color="grey", linestyle=":")
    right.set(xlabel="rounds", ylabel="ε spent by each client")
    return figure


def main(arguments: argparse.Namespace) -> None:
    data = images(arguments)
    rounds = 3 if arguments.quick else arguments.rounds
    budget = privacy.Budget(arguments.epsilon, DELTA)
    rule = privacy.PrivateGradients(
        pvi.FixedPointUpdate(),
        budget=budget,
        clip=1.0,
        noise_multiplier=privacy.noise_multiplier_for(budget, rounds, SAMPLING_RATE),
        sampling_rate=SAMPLING_RATE,
        means_only=True,
        insecure_seed=arguments.seed,  # for figures that can be made again; leave it out in use
    )
    likelihood = gpflow.likelihoods.Softmax(10)
    net = bnn.MeanFieldBNN(SIZES[arguments.model], likelihood, activation="tanh")
    shards = datasets.partition_iid(data.X, data.Y, NUM_CLIENTS, arguments.seed)
    clients = pvi.make_clients(net, shards, rule, arguments.seed)
    server = pvi.Server(net.prior(), clients, seed=arguments.seed)
    server.warm_start(net.initial(arguments.seed))

    def evaluate(q: Any) -> dict[str, float]:
        probabilities = net.predict(q, data.X_test, num_samples=10, seed=arguments.seed)
        return {"test_error": classification_error(probabilities, data.Y_test)}

    with tqdm(total=rounds, desc="rounds", disable=not sys.stderr.isatty()) as bar:
        history = pvi.fit(
            server,
            pvi.Synchronous(damping=pvi.Momentum(0.4)),
            rounds,
            evaluate=evaluate,
            callback=lambda one: bar.update(),
        )
    records = [
        {
            "round": number,
            "test_error": one["metrics"]["test_error"],
            "spent": max(one["epsilon"].values()),
        }
        for number, one in enumerate(history.to_records(), start=1)
    ]
    for one in records[:: max(1, rounds // 10)] + records[-1:]:
        print(f"round {one['round']}: test error {one['test_error']:.4f}, ε {one['spent']:.3f}")
    save_figure(draw(records, arguments.epsilon), arguments.out, "private_federation.png")
    results = {"seed": arguments.seed, "delta": DELTA, "rounds": records}
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--epsilon", type=float, default=2.0, help="the budget of each client")
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--model", choices=list(SIZES), default="linear")
    run(main, options)
