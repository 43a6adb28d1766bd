"""Which rows to measure next: active learning of two computer experiments from a pool of rows.

kin8nm simulates a robot arm with eight inputs, naval-propulsion-plant a gas turbine with sixteen.
Their inputs are known, and each value has to be asked for. The next row is the candidate that
lowers the mean predictive variance over other rows the most (Cohn 1996), a question of the model's
joint covariance alone. Methods differ in the model, as in bayesian_optimisation.py: a streaming
surrogate that absorbs each value; the same that asks for ten rows at a time, each chosen with those
before it pending; GPflow's regression fitted anew with one compiled function; rows at random.

Prints the error on test rows over the variance of the targets, and the CPU seconds of the model
(learning and predicting), as means and standard errors over seeds. Every run is kept in OUT/runs.
--quick asks for twenty rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results
from gpflow.likelihoods import Gaussian
from tqdm import tqdm

import streaming_gp as sgp
from experiments.means import mean_and_error
from experiments.measured.surrogates import Clock, RefitCompiledOnce, Streaming, warm_up
from streaming_gp.datasets import Split, load_uci
from streaming_gp.metrics import smse

SETS = {"kin8nm": "kin8nm", "naval": "naval-propulsion-plant"}
FIRST, ASKED, SCORED_EVERY = 20, 200, 20
CANDIDATES, REFERENCES = 200, 200
"""Rows of the pool that are looked at in each step, and rows whose variance is to fall."""
BATCH = 10
METHODS = {
    "streaming": "C0-",
    "streaming, ten pending": "C0:",
    "refit, compiled once": "C3--",
    "rows at random": "0.6",
}


def pool(name: str, folder: Path | None) -> Split:
    """Rows of the published split 0: inputs in the unit cube, as far as they vary, and targets
    standardised.
    """
    data = load_uci(SETS[name], 0, folder)
    varies = np.ptp(data.X, axis=0) > 0.0
    least, width = data.X[:, varies].min(axis=0), np.ptp(data.X[:, varies], axis=0)
    centre, unit = data.Y.mean(), data.Y.std()
    X, X_test = ((one[:, varies] - least) / width for one in (data.X, data.X_test))
    return Split(X, (data.Y - centre) / unit, X_test, (data.Y_test - centre) / unit)


def new_model(method: str, dim: int) -> Any:
    if method == "refit, compiled once":
        return RefitCompiledOnce(dim, Gaussian(0.01))
    return Streaming(dim, Gaussian(0.01), sgp.PointHyperparameters())


def best(covariance: np.ndarray, noise: float) -> int:
    """The candidate that lowers the sum of the reference rows' variances the most.

    :param covariance: Of f at the candidates, then at the reference rows.
    :param noise: The variance of the noise of one value.
    """
    number = len(covariance) - REFERENCES
    with_references = covariance[:number, number:]
    own = np.diag(covariance)[:number] + noise
    return int(np.argmax(np.sum(with_references**2, axis=1) / own))


def choose(
    model: Any, X: np.ndarray, known: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
    """The next rows [number]; those before the last are pending while it is chosen."""
    unknown = np.setdiff1d(np.arange(len(X)), known)
    looked_at = rng.choice(unknown, CANDIDATES + REFERENCES, replace=False)
    chosen: list[int] = []
    for _ in range(number):
        one = best(model.covariance(X[looked_at]), model.noise)
        found, looked_at = looked_at[one], np.delete(looked_at, one)
        chosen.append(found)
        if len(chosen) < number:
            model.surrogate.add_pending(f"row-{found}", X[[found]])
    for name in model.surrogate.pending if number > 1 else ():
        model.surrogate.remove_pending(name)
    return np.array(chosen)


def learn_actively(method: str, data: Split, asked: int, seed: int) -> Results:
    """The error after every few rows, and the CPU seconds of the model."""
    warm_up()
    rng, clock = np.random.default_rng(seed), Clock()
    known = rng.choice(len(data.X), FIRST, replace=False)
    number = BATCH if "pending" in method else 1
    with clock:
        model = new_model(method, data.X.shape[1])
    errors: list[float] = []
    while True:
        with clock:
            model.learn(data.X[known], data.Y[known])
        if (len(known) - FIRST) % SCORED_EVERY == 0:
            errors.append(smse(model.predict(data.X_test)[0], data.Y_test[:, 0]))
        if len(known) == FIRST + asked:
            break
        if method == "rows at random":
            chosen = rng.choice(np.setdiff1d(np.arange(len(data.X)), known), 1)
        else:
            with clock:
                chosen = choose(model, data.X, known, number, rng)
        known = np.append(known, chosen)
    return {"errors": errors, "last_error": errors[-1], "seconds": clock.seconds}


def kept_run(path: Path, method: str, data: Split, asked: int, seed: int) -> Results:
    if not path.exists():
        write_json(path, learn_actively(method, data, asked, seed))
    found: Results = json.loads(path.read_text())
    return found


def summary(runs: dict[tuple[str, str], list[Results]]) -> list[Results]:
    rows = []
    for (name, method), found in runs.items():
        error, spread = mean_and_error(found, "last_error")
        seconds, seconds_error = mean_and_error(found, "seconds")
        rows.append(
            {
                "pool": name,
                "method": method,
                "seeds": len(found),
                "error": error,
                "error_error": spread,
                "seconds": seconds,
                "seconds_error": seconds_error,
            }
        )
    return rows


def draw(runs: dict[tuple[str, str], list[Results]], folder: Path) -> None:
    names = list(dict.fromkeys(name for name, _ in runs))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4.5 * len(names), 3.6), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        for method, style in METHODS.items():
            errors = np.mean([one["errors"] for one in runs[name, method]], axis=0)
            rows = FIRST + SCORED_EVERY * np.arange(len(errors))
            look = {"color": style} if style == "0.6" else {}
            ax.semilogy(rows, errors, *(() if look else (style,)), label=method, **look)
        ax.set(title=name, xlabel="rows whose value was asked for", ylabel="SMSE on test rows")
    axes[0, 0].legend(fontsize=7)
    save_figure(figure, folder, "active_learning.png")


def main(arguments: argparse.Namespace) -> None:
    quick = arguments.quick
    seeds = range(arguments.seed, arguments.seed + (1 if quick else arguments.seeds))
    names = ["kin8nm"] if quick else list(SETS)
    asked = SCORED_EVERY if quick else ASKED
    pools = {name: pool(name, arguments.data) for name in names}
    tasks = [(name, method, seed) for seed in seeds for name in names for method in METHODS]
    runs: dict[tuple[str, str], list[Results]] = {(n, m): [] for n in names for m in METHODS}
    for name, method, seed in tqdm(tasks, disable=not sys.stderr.isatty()):
        file = f"{name}-{method.replace(',', '').replace(' ', '-')}-{seed}-{asked}.json"
        path = arguments.out / "runs" / file
        found = kept_run(path, method, pools[name], asked, seed)
        runs[name, method].append(found)
        print(
            f"{name}, {method}, seed {seed}: SMSE {found['last_error']:.3g}, "
            f"{found['seconds']:.1f} CPU seconds",
            flush=True,
        )
    write_results(arguments.out, {"summary": summary(runs)})
    draw(runs, arguments.out)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="number of seeds")
    run(main, options)
