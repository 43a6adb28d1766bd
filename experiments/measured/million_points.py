"""A million points, one at a time, on at most 300 points: what adds up over so long a stream.

Inputs are uniform on a square, values those of a wave with noise. Each point is predicted and then
learned. For every 10,000 points the CPU seconds, the error before learning and the memory are kept;
in the end what was learned is absorbed by the model, whose covariance over a grid must be positive.
Inputs keep coming from everywhere, and the function never changes, which the object is told.

--quick streams 20,000 points, and --defaults does not tell the object.
"""

from __future__ import annotations

import argparse
import sys
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import psutil
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

import streaming_gp as sgp
from experiments.measured.endless_stream import observed, truth

BUDGET, STRETCH, SIZE = 300, 10_000, 5.0


def new_model(rng: np.random.Generator, seed: int) -> sgp.StreamingGP:
    """Hyperparameters are learned from the first 300 points."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        seed=seed,
    )
    model.update(observed(rng, 300))
    return model


def stretch(online: sgp.gp.OnlineGP, X: np.ndarray, Y: np.ndarray) -> Results:
    """Predict and learn these points, one after another."""
    means, variances = np.empty(len(X)), np.empty(len(X))
    start = time.process_time()
    for step, (x, y) in enumerate(zip(X, Y, strict=True)):
        mean, variance = online.predict(x)
        online.update(x, y)
        means[step], variances[step] = mean[0], variance[0]
    return {
        "cpu_seconds": time.process_time() - start,
        "rmse": float(np.sqrt(np.mean((means - truth(X)[:, 0]) ** 2))),
        "least_variance": float(variances.min()),
        "all_finite": bool(np.all(np.isfinite(means) & np.isfinite(variances))),
        "megabytes": psutil.Process().memory_info().rss / 2**20,
    }


def least_eigenvalue(model: sgp.StreamingGP) -> float:
    """Of the covariance of f over a grid of 20 × 20 points, relative to the largest."""
    axis = np.linspace(-SIZE, SIZE, 20)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    eigenvalues = np.linalg.eigvalsh(np.asarray(model.predict_f(grid, full_cov=True)[1])[0])
    return float(eigenvalues[0] / eigenvalues[-1])


def summary(stretches: list[Results]) -> Results:
    """The last tenth beside the first, which comes after 10,000 points."""
    after = stretches[1:]
    tenth = max(1, len(after) // 10)
    early, late = (
        float(np.median([one["cpu_seconds"] for one in part])) / STRETCH
        for part in (after[:tenth], after[-tenth:])
    )
    return {
        "points": len(stretches) * STRETCH,
        "early_ms": 1e3 * early,
        "late_ms": 1e3 * late,
        "ratio": late / early,
        "megabytes_grown": max(one["megabytes"] for one in after) - stretches[0]["megabytes"],
        "rmse_early": stretches[0]["rmse"],
        "rmse_late": stretches[-1]["rmse"],
        "least_variance": min(one["least_variance"] for one in stretches),
        "all_finite": all(one["all_finite"] for one in stretches),
    }


def draw(stretches: list[Results]) -> plt.Figure:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    points = STRETCH * np.arange(1, len(stretches) + 1)
    axes[0].plot(points, [1e3 * one["cpu_seconds"] / STRETCH for one in stretches])
    axes[0].set(ylabel="CPU ms to predict and learn a point", ylim=(0, None))
    axes[1].plot(points, [one["megabytes"] for one in stretches])
    axes[1].set(ylabel="resident memory, MB", ylim=(0, None))
    axes[2].plot(points, [one["rmse"] for one in stretches])
    axes[2].set(ylabel="RMSE of the function before learning", ylim=(0, None))
    for ax in axes:
        ax.set(xlabel="points seen")
    return figure


def main(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(arguments.seed)
    model = new_model(rng, arguments.seed)
    stretches = []
    online = model.online(BUDGET) if arguments.defaults else model.online(BUDGET, np.inf, 0.0)
    number = 2 if arguments.quick else 100
    for _ in tqdm(range(number), desc="10,000 points", disable=not sys.stderr.isatty()):
        stretches.append(stretch(online, *observed(rng, STRETCH)))
    model.absorb(online)
    found = {**summary(stretches), "least_eigenvalue": least_eigenvalue(model)}
    print(
        f"{found['points']} points: {found['early_ms']:.3f} CPU ms each at first, "
        f"{found['late_ms']:.3f} at the end; {found['megabytes_grown']:.1f} MB grown; "
        f"RMSE {found['rmse_early']:.4f}, then {found['rmse_late']:.4f}"
    )
    save_figure(draw(stretches), arguments.out, "million_points.png")
    results = {
        "seed": arguments.seed,
        "summary": [found],
        "stretches": stretches,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--defaults", action="store_true", help="of memory and of alarms")
    run(main, options)
