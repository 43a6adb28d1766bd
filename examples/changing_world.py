"""A function that changes half-way: count everything, let the past fade, or listen to an alarm.

Batches of 25 noisy values come from one function, and later from another. One model counts every
batch in full; for one the past fades; one keeps the five newest batches. The last forgets when the
density of the next batch, before it is learned, tells an alarm that something has changed. Draws
the error of each.

--quick streams 12 batches in place of 40. Needs the extra river.
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

import streaming_gp as sgp
from streaming_gp.evaluate import DriftAlarm
from streaming_gp.metrics import smse

METHODS: dict[str, Any] = {
    "every batch counts": sgp.ForgetNothing(),
    "fading, 0.7 a batch": sgp.Fading(0.7),
    "window of 5 batches": sgp.SlidingWindow(5),
    "alarm": sgp.ForgetNothing(),
}
GRID = np.linspace(-2.0, 2.0, 200)[:, None]


def function(X: np.ndarray, is_late: bool) -> np.ndarray:
    return np.cos(2.0 * X) + 0.5 * X if is_late else np.sin(3.0 * X)


def streamed(name: str, num_batches: int, seed: int) -> list[Results]:
    """The error on the present function after each batch, and whether there was an alarm."""
    rng, alarm = np.random.default_rng(seed), DriftAlarm()
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        learning=sgp.UntilSettled(every=5),
        forgetting=METHODS[name],
        seed=seed,
    )
    records: list[Results] = []
    for number in tqdm(range(num_batches), desc=name, disable=not sys.stderr.isatty()):
        is_late = number >= num_batches // 2
        X = rng.uniform(-2.0, 2.0, (25, 1))
        batch = X, function(X, is_late) + 0.1 * rng.standard_normal(X.shape)
        has_changed = alarm.update(model.predict_log_density(batch))
        if has_changed and name == "alarm":
            model.fade(0.0)  # what was learned of the function goes; hyperparameters stay
        model.update(batch)
        error = smse(model.predict_f(GRID)[0], function(GRID, is_late))
        records.append({"batch": number + 1, "test_smse": error, "alarm": has_changed})
    return records


def draw(runs: dict[str, list[Results]]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, records in runs.items():
        axes.semilogy([one["batch"] for one in records], [one["test_smse"] for one in records])
        axes.lines[-1].set_label(name)
    axes.axvline(len(records) // 2 + 0.5, color="black", linestyle=":", label="change")
    axes.set(xlabel="batches seen", ylabel="test SMSE of the present function")
    figure.legend(loc="outside right")
    return figure


def main(arguments: argparse.Namespace) -> None:
    num_batches = 12 if arguments.quick else 40
    runs = {name: streamed(name, num_batches, arguments.seed) for name in METHODS}
    summary: list[dict[str, Any]] = []
    for name, records in runs.items():
        alarms = [one["batch"] for one in records if one["alarm"]]
        row = {"method": name, "smse_end": records[-1]["test_smse"], "alarms": alarms}
        summary.append(row)
        print(f"{name}: SMSE {row['smse_end']:.4f} at the end; alarms at batches {alarms}")
    save_figure(draw(runs), arguments.out, "changing_world.png")
    results = {"seed": arguments.seed, "summary": summary, "batches": runs}
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
