"""A function that changes half-way, and models of the same stream that differ in what they forget.

One counts every batch in full. Some let the past fade or have a sliding window, and may forget of
the hyperparameters, too. The last forgets the function when a drift alarm on the log density of the
next batch tells it to.

--quick streams 12 batches in place of 40.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

import streaming_gp as sgp
from streaming_gp.evaluate import DriftAlarm
from streaming_gp.gp import Forgetting
from streaming_gp.metrics import smse

BATCH_SIZE, NOISE_SD = 25, 0.1
GRID = np.linspace(-2.0, 2.0, 200)[:, None]


@dataclass(frozen=True)
class Method:
    """One way to live in a world that changes.

    :param title: Its name in the figure.
    :param style: How it is drawn there.
    :param forgetting: What earlier batches still say of the function.
    :param of_epsilon: The forgetting factor of what they say of the hyperparameters.
    :param listens: Whether the function is forgotten at an alarm.
    """

    title: str
    style: str
    forgetting: Forgetting
    of_epsilon: float = 1.0
    listens: bool = False


METHODS = (
    Method("every batch counts", "C0-", sgp.ForgetNothing()),
    Method("fading, 0.7 a batch", "C1-", sgp.Fading(0.7)),
    Method("fading, ε too", "C1--", sgp.Fading(0.7), of_epsilon=0.7),
    Method("window of 5 batches", "C2-", sgp.SlidingWindow(5)),
    Method("window, ε fading", "C2--", sgp.SlidingWindow(5), of_epsilon=0.7),
    Method("alarm", "C3-", sgp.ForgetNothing(), listens=True),
)


def truth(X: np.ndarray, is_late: bool) -> np.ndarray:
    return np.cos(2.0 * X) + 0.5 * X if is_late else np.sin(3.0 * X)


def observed(rng: np.random.Generator, is_late: bool) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-2.0, 2.0, (BATCH_SIZE, 1))
    return X, truth(X, is_late) + NOISE_SD * rng.standard_normal(X.shape)


def new_model(method: Method, seed: int) -> sgp.StreamingGP:
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=sgp.VariationalHyperparameters(forgetting_factor=method.of_epsilon),
        optimiser=sgp.LocalOptimiser(max_iterations=20),
        learning=sgp.UntilSettled(every=5),
        forgetting=method.forgetting,
        seed=seed,
    )


def streamed(method: Method, num_batches: int, seed: int) -> list[Results]:
    """One record after each batch: the error of what is true now, and the log density before."""
    rng = np.random.default_rng(seed)
    model, alarm, records = new_model(method, seed), DriftAlarm(), []
    on_terminal = sys.stderr.isatty()
    for number in tqdm(range(1, num_batches + 1), desc=method.title, disable=not on_terminal):
        is_late = number > num_batches // 2
        data = observed(rng, is_late)
        log_density = model.predict_log_density(data)
        has_changed = alarm.update(log_density)
        if has_changed and method.listens:
            model.fade(0.0)
        model.update(data)
        record: Results = {
            "batch": number,
            "log_density": float(np.mean(log_density)),
            "alarm": has_changed,
            "test_smse": smse(model.predict_f(GRID)[0], truth(GRID, is_late)),
            "noise_sd": float(np.sqrt(model.likelihood.variance)),
            "pseudo_points": model.posterior_process.num_pseudo_points,
        }
        records.append(record)
    return records


def summary(method: Method, records: list[Results]) -> Results:
    """Before the change, five batches after it, and at the end: there of the last five batches."""
    half = len(records) // 2
    after = {"before": half - 1, "five_later": half + 4, "end": len(records) - 1}
    return {
        "method": method.title,
        **{f"smse_{when}": records[index]["test_smse"] for when, index in after.items()},
        "log_density_end": float(np.mean([record["log_density"] for record in records[-5:]])),
        "noise_sd_end": records[-1]["noise_sd"],
        "first_alarm": next((record["batch"] for record in records if record["alarm"]), None),
    }


def draw(runs: dict[str, list[Results]]) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for method in METHODS:
        records, style = runs[method.title], method.style
        batches = [record["batch"] for record in records]
        errors = [record["test_smse"] for record in records]
        left.semilogy(batches, errors, style, label=method.title)
        right.plot(batches, [record["log_density"] for record in records], style)
    change = len(records) // 2 + 0.5
    for axes in (left, right):
        axes.axvline(change, color="black", linestyle=":", linewidth=1.0, label="change")
        axes.set(xlabel="batches seen")
    left.set(ylabel="test SMSE of the present function")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right", fontsize="small")
    right.set(ylabel="log density of a datum before\nit is learned, nats", ylim=(-6.0, 1.5))
    return figure


def main(arguments: argparse.Namespace) -> None:
    num_batches = 12 if arguments.quick else 40
    runs = {method.title: streamed(method, num_batches, arguments.seed) for method in METHODS}
    found = [summary(method, runs[method.title]) for method in METHODS]
    for row in found:
        print(
            f"{row['method']}: SMSE {row['smse_before']:.4f} before the change, "
            f"{row['smse_five_later']:.4f} five batches later, {row['smse_end']:.4f} at the end; "
            f"first alarm at batch {row['first_alarm']}"
        )
    save_figure(draw(runs), arguments.out, "changing_world.png")
    results = {
        "seed": arguments.seed,
        "summary": found,
        "batches": runs,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
