"""One point at a time at 1 kHz: an arm that picks up a load, each torque predicted before learned.

A model learns the inverse dynamics of seven simulated joints from its first movements; then one
point after another is predicted and learned, on at most 300 points, as in a control loop. Half-way
the hand picks up two kilograms, and nobody tells the model. Prints and draws error, alarms and
latency.

--quick takes the first 200 rows, and 2,000 after them. Needs the ``simulation`` extra.
"""

from __future__ import annotations

import argparse
import gc
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from streaming_gp.datasets import simulated_arm
from streaming_gp.gp.online import Alarm

PERIOD, PAYLOAD = 1.0, 2.0
"""Milliseconds from one point to the next; kilograms."""
WARM_UP = 100
"""Points after which latency is counted."""
SMOOTH = 100
"""Points over which errors are averaged in the figure."""


def movements(number: int, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """States and torques in standard deviations, and the row from which on the hand is loaded."""
    states, torques = simulated_arm.simulate(number, seed)
    start = len(states) // 2
    noise = torques - simulated_arm.inverse_dynamics(states)
    torques[start:] = (simulated_arm.inverse_dynamics(states, PAYLOAD) + noise)[start:]
    X, Y = ((part - part.mean(axis=0)) / part[:start].std(axis=0) for part in (states, torques))
    return X, Y, start


def loop(
    online: sgp.gp.OnlineGP, noise: np.ndarray, X: np.ndarray, Y: np.ndarray
) -> dict[str, np.ndarray]:
    """Squared errors before learning, the same in predicted variances, and milliseconds."""
    squared, standardised = np.zeros(Y.shape), np.zeros(Y.shape)
    milliseconds = np.zeros(len(X))
    gc.collect()
    gc.freeze()  # what is there already is not searched again and again
    for step, (x, y) in enumerate(zip(X, Y, strict=True)):
        begin = time.perf_counter()
        mean, variance = online.predict(x)
        online.update(x, y)
        milliseconds[step] = 1e3 * (time.perf_counter() - begin)
        squared[step] = (mean - y) ** 2
        standardised[step] = squared[step] / (variance + noise)
    return {"squared": squared, "standardised": standardised, "milliseconds": milliseconds}


def summary(found: dict[str, np.ndarray], alarms: list[Alarm], start: int) -> Results:
    """Errors before the load, right after it and later; alarms; and latency."""
    figures: Results = {"points": len(found["squared"]), "loaded_at": start}
    after = {"before": slice(0, start), "within_500": slice(start, start + 500)}
    after["later"] = slice(start + 500, None)
    for name, rows in after.items():
        figures[f"mse_{name}"] = float(found["squared"][rows].mean())
        figures[f"standardised_{name}"] = float(found["standardised"][rows].mean())
    late = [one.observation for one in alarms if one.observation > start]
    figures |= {"alarms_before": len(alarms) - len(late), "alarms_after": len(late)}
    figures["noticed_after"] = late[0] - start if late else None
    sums = np.cumsum(found["standardised"][start:].mean(axis=1))
    is_right = sums[SMOOTH:] - sums[:-SMOOTH] < 2.0 * SMOOTH
    figures["right_after"] = int(is_right.argmax()) if is_right.any() else None
    times = found["milliseconds"][WARM_UP:]
    for name, level in (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("worst", 100)):
        figures[f"ms_{name}"] = float(np.percentile(times, level))
    return figures | {"late_steps": int(np.sum(times > PERIOD))}


def draw(found: dict[str, np.ndarray], alarms: list[Alarm], start: int) -> plt.Figure:
    figure, grid = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
    axes = grid.ravel()
    steps = np.arange(SMOOTH, len(found["squared"]) + 1)
    names = {"squared": "squared error", "standardised": "squared error / predicted variance"}
    for axis, (name, label) in zip(axes, names.items(), strict=False):
        sums = np.cumsum(np.concatenate([[0.0], found[name].mean(axis=1)]))
        axis.semilogy(steps, (sums[SMOOTH:] - sums[:-SMOOTH]) / SMOOTH)
        axis.set(title=f"{label}, mean of {SMOOTH}")
    axes[1].axhline(1.0, color="grey", linewidth=0.8)
    places, sizes = [one.observation for one in alarms], [one.size for one in alarms]
    axes[2].semilogy(places, sizes, "C3.", markersize=4)
    axes[2].set(title="alarms: the part of the prior that has changed", ylim=(1e-4, 2.0))
    for axis in axes[:3]:
        axis.axvline(start, color="black", linestyle=":", label=f"{PAYLOAD:g} kg in hand")
        axis.set(xlabel="observations", xlim=(0, len(found["squared"])))
    axes[0].legend(loc="upper left")
    times = found["milliseconds"][WARM_UP:]
    bins = np.geomspace(times.min(), max(times.max(), 2.0 * PERIOD), 60)
    axes[3].hist(times, bins=bins, color="C0")
    axes[3].axvline(PERIOD, color="C3", label="deadline at 1 kHz")
    axes[3].set(xscale="log", yscale="log", xlabel="milliseconds", title="latency of a step")
    axes[3].legend()
    return figure


def main(arguments: argparse.Namespace) -> None:
    first, number = (200, 15) if arguments.quick else (1000, 60)
    X, Y, start = movements(number, arguments.seed)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], X.shape[1] ** 0.5)),
        gpflow.likelihoods.Gaussian(np.full(Y.shape[1], 0.1)),  # of each joint its own
        hyperparameters=sgp.PointHyperparameters(),
        seed=arguments.seed,
    )
    model.update((X[:first], Y[:first]))
    alarms: list[Alarm] = []
    online = model.online(budget=300, on_alarm=alarms.append)
    found = loop(online, model.likelihood.variance.numpy(), X[first:], Y[first:])
    figures = summary(found, alarms, start - first)
    print(
        f"{figures['points']} points of seven joints, {PAYLOAD:g} kg after {figures['loaded_at']}: "
        f"noticed after {figures['noticed_after']}, right after {figures['right_after']}\n"
        f"MSE {figures['mse_before']:.4f} before, {figures['mse_within_500']:.4f} in the 500 "
        f"after, {figures['mse_later']:.4f} later; in predicted variances "
        f"{figures['standardised_before']:.2f}, {figures['standardised_within_500']:.2f}, "
        f"{figures['standardised_later']:.2f}\n"
        f"a step takes {figures['ms_p50']:.3f} ms, p99 {figures['ms_p99']:.3f}, p99.9 "
        f"{figures['ms_p99.9']:.3f}, worst {figures['ms_worst']:.2f}; {figures['late_steps']} of "
        f"{figures['points'] - WARM_UP} took more than {PERIOD:g} ms"
    )
    save_figure(draw(found, alarms, start - first), arguments.out, "control_loop.png")
    write_results(
        arguments.out,
        {"seed": arguments.seed, "summary": figures, "alarms": [vars(a) for a in alarms]},
    )


if __name__ == "__main__":
    run(main, parser(__doc__))
