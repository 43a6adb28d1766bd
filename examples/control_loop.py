"""One point at a time at 1 kHz: the Barrett arm, each torque predicted before it is learned.

A model learns the hyperparameters on the first batch; then one point after another is predicted and
learned, on at most 300 points. Prints the prequential error and the latency.

--quick takes 2,000 of the points and learns the hyperparameters on 200.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from streaming_gp.datasets import load_robot_arm

JOINT, PERIOD = 2, 1.0
"""Torque of joint 3; milliseconds from one point to the next."""
WARM_UP = 200
"""Points after which latency is counted."""


def standardised(folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and one torque, scaled and sorted by the position of the first joint."""
    data = load_robot_arm("barrett", folder)
    X, Y = data.X, data.Y[:, JOINT : JOINT + 1]
    X, Y = (X - X.mean(axis=0)) / X.std(axis=0), (Y - Y.mean()) / Y.std()
    order = np.argsort(X[:, 0], kind="stable")
    return X[order], Y[order]


def loop(online: sgp.gp.OnlineGP, X: np.ndarray, Y: np.ndarray) -> dict[str, np.ndarray]:
    """Squared errors before learning, and milliseconds of every step."""
    squared, predicting, learning = (np.zeros(len(X)) for _ in range(3))
    gc.collect()
    gc.freeze()  # what is there already is not searched again and again
    for step, (x, y) in enumerate(zip(X, Y, strict=True)):
        start = time.perf_counter()
        mean, _ = online.predict(x)
        predicted = time.perf_counter()
        online.update(x, y)
        learned = time.perf_counter()
        squared[step] = float(np.mean((mean - y) ** 2))
        predicting[step], learning[step] = 1e3 * (predicted - start), 1e3 * (learned - predicted)
    return {"squared_error": squared, "predict_ms": predicting, "update_ms": learning}


def summary(found: dict[str, np.ndarray]) -> Results:
    """Error of the last half, and latency after the warm-up."""
    squared = found["squared_error"]
    figures: Results = {
        "points": len(squared),
        "prequential_mse": float(squared[len(squared) // 2 :].mean()),
        "late_steps": int(np.sum(found["predict_ms"] + found["update_ms"] > PERIOD)),
    }
    for name in ("predict_ms", "update_ms"):
        p50, p99, worst = np.percentile(found[name][WARM_UP:], (50, 99, 100))
        figures |= {f"{name}_p50": p50, f"{name}_p99": p99, f"{name}_worst": worst}
    return figures


def draw(found: dict[str, np.ndarray]) -> plt.Figure:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    parts = np.array_split(found["squared_error"], 40)
    seconds = np.cumsum([len(part) for part in parts]) * PERIOD / 1e3
    axes[0].semilogy(seconds, [part.mean() for part in parts])
    axes[0].set(xlabel="seconds at 1 kHz", ylabel="squared error before learning")
    for axis, name in zip(axes[1:], ("predict_ms", "update_ms"), strict=True):
        parts = np.array_split(found[name], 40)
        for label, level in (("worst", 100), ("p99", 99), ("p50", 50)):
            axis.semilogy(seconds, [np.percentile(part, level) for part in parts], label=label)
        axis.axhline(PERIOD, color="grey", linestyle=":")
        axis.set(xlabel="seconds at 1 kHz", ylabel=f"{name.removesuffix('_ms')}, ms")
    axes[1].legend()
    return figure


def main(arguments: argparse.Namespace) -> None:
    first, last = (200, 2200) if arguments.quick else (1000, None)
    X, Y = standardised(arguments.data)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], X.shape[1] ** 0.5)),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(60, optimise_locations=False),
        seed=arguments.seed,
    )
    model.update((X[:first], Y[:first]))
    online = model.online(budget=300)
    found = loop(online, X[first:last], Y[first:last])
    figures = summary(found)
    figures["factor"] = model.absorb(online)
    figures["pseudo_points"] = model.posterior_process.num_pseudo_points
    print(
        f"{figures['points']} points: prequential MSE {figures['prequential_mse']:.4f}; "
        f"predict p50 {figures['predict_ms_p50']:.3f}, p99 {figures['predict_ms_p99']:.3f}, "
        f"worst {figures['predict_ms_worst']:.2f} ms; "
        f"update p50 {figures['update_ms_p50']:.3f}, p99 {figures['update_ms_p99']:.3f}, "
        f"worst {figures['update_ms_worst']:.2f} ms; {figures['late_steps']} steps over 1 ms"
    )
    save_figure(draw(found), arguments.out, "control_loop.png")
    write_results(arguments.out, {"seed": arguments.seed, "summary": figures})


if __name__ == "__main__":
    run(main, parser(__doc__))
