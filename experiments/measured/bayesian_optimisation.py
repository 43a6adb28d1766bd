"""Bayesian optimisation of Branin and Hartmann-6: a streaming surrogate, or refitting each time.

All methods have the same kernel, priors, noise, first points and acquisition: expected improvement,
at its best among random candidates. They differ in the model: one that absorbs each observation and
learns hyperparameters when the rows have grown by a quarter; the same with a distribution over
hyperparameters; GPflow's regression, fitted anew at each step, as it is written down in a few lines
or with one compiled function; no model at all. One more asks for four points at a time: those that
are chosen and not yet observed are pending, and are forgotten when their values come.

Prints the simple regret at the end and the CPU seconds of the model (learning and predicting), as
means and standard errors over seeds. Every run is kept in OUT/runs. --quick makes two short runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_json, write_results
from scipy.stats import norm
from tqdm import tqdm

import streaming_gp as sgp
from experiments.means import mean_and_error
from experiments.measured.surrogates import Clock, Refit, RefitCompiledOnce, Streaming, warm_up

NOISE = 1e-4
BATCH = 4


def noise() -> gpflow.likelihoods.Gaussian:
    """Next to none, which is known."""
    found = gpflow.likelihoods.Gaussian(NOISE)
    gpflow.set_trainable(found, False)
    return found


# ---- what is minimised, on the unit cube ----


def branin(X: np.ndarray) -> np.ndarray:
    """Branin's function (Dixon & Szegő 1978) at inputs [N, 2]."""
    a, b = 15.0 * X[:, 0] - 5.0, 15.0 * X[:, 1]
    curve = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return curve**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0


HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
SLOPES = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
CENTRES = 1e-4 * np.array(
    [
        [1312.0, 1696.0, 5569.0, 124.0, 8283.0, 5886.0],
        [2329.0, 4135.0, 8307.0, 3736.0, 1004.0, 9991.0],
        [2348.0, 1451.0, 3522.0, 2883.0, 3047.0, 6650.0],
        [4047.0, 8828.0, 8732.0, 5743.0, 1091.0, 381.0],
    ]
)


def hartmann6(X: np.ndarray) -> np.ndarray:
    """Hartmann's function (Dixon & Szegő 1978) at inputs [N, 6]."""
    squares = (X[:, None, :] - CENTRES) ** 2
    return -np.exp(-np.sum(SLOPES * squares, axis=2)) @ HEIGHTS


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube.

    :param function: From inputs [N, D] to values [N].
    :param dim: D.
    :param minimum: Its smallest value.
    :param first: The number of random points at the start.
    :param steps: The number of points that are chosen.
    """

    function: Callable[[np.ndarray], np.ndarray]
    dim: int
    minimum: float
    first: int
    steps: int


PROBLEMS = {
    "Branin": Problem(branin, 2, 0.39788735772973816, 6, 30),
    "Hartmann-6": Problem(hartmann6, 6, -3.322368011415515, 12, 60),
}


# ---- what is compared ----


METHODS: dict[str, Callable[[int], Any]] = {
    "streaming": lambda dim: Streaming(dim, noise(), sgp.PointHyperparameters()),
    "streaming, q(ε)": lambda dim: Streaming(dim, noise(), sgp.VariationalHyperparameters()),
    "streaming, four pending": lambda dim: Streaming(dim, noise(), sgp.PointHyperparameters()),
    "refit each step": lambda dim: Refit(dim, noise()),
    "refit, compiled once": lambda dim: RefitCompiledOnce(dim, noise()),
    "random": lambda dim: None,
}
STYLES = dict(zip(METHODS, ("C0-", "C1-", "C0:", "C3-", "C3--", "0.6"), strict=True))


# ---- the loop ----


def candidates(rng: np.random.Generator, best: np.ndarray) -> np.ndarray:
    """Points of the unit cube, some of them near the best one."""
    dim = len(best)
    near = best + rng.normal(0.0, 0.05, (100 * dim, dim))
    return np.clip(np.concatenate([rng.uniform(size=(400 * dim, dim)), near]), 0.0, 1.0)


def expected_improvement(mean: np.ndarray, variance: np.ndarray, best: float) -> np.ndarray:
    """E[max(best − f, 0)] (Jones, Schonlau & Welch 1998)."""
    deviation = np.sqrt(np.maximum(variance, 1e-16))
    z = (best - mean) / deviation
    return deviation * (z * norm.cdf(z) + norm.pdf(z))


def optimise(name: str, problem: Problem, steps: int, seed: int) -> Results:
    """The regret after every evaluation, and the CPU seconds of the model."""
    warm_up()
    rng, clock = np.random.default_rng(seed), Clock()
    X = rng.uniform(size=(problem.first, problem.dim))
    values = problem.function(X)
    centre, unit = values.mean(), values.std()
    at_a_time = BATCH if "pending" in name else 1
    with clock:
        model = METHODS[name](problem.dim)
    while len(X) < problem.first + steps:
        Y = (values - centre) / unit
        if model is None:
            chosen = rng.uniform(size=(1, problem.dim))
        else:
            with clock:
                model.learn(X, Y[:, None])
            chosen = choose(model, clock, rng, X[np.argmin(Y)], Y.min(), at_a_time)
        X, values = np.vstack([X, chosen]), np.append(values, problem.function(chosen))
    regret = np.minimum.accumulate(values) - problem.minimum
    return {
        "regret": regret[: problem.first + steps].tolist(),
        "seconds": clock.seconds,
        "last_regret": float(regret[problem.first + steps - 1]),
    }


def choose(
    model: Any, clock: Clock, rng: np.random.Generator, best: np.ndarray, value: float, number: int
) -> np.ndarray:
    """The next points [number, D]; those before the last are pending while it is chosen."""
    chosen: list[np.ndarray] = []
    for _ in range(number):
        points = candidates(rng, best)
        with clock:
            mean, variance = model.predict(points)
        point = points[np.argmax(expected_improvement(mean, variance, value))]
        chosen.append(point)
        if number > 1:
            with clock:
                model.surrogate.add_pending(f"pending-{len(chosen)}", point[None])
    if number > 1:
        with clock:
            for pending in model.surrogate.pending:
                model.surrogate.remove_pending(pending)
    return np.array(chosen)


def kept_run(path: Path, name: str, problem: Problem, steps: int, seed: int) -> Results:
    if not path.exists():
        write_json(path, optimise(name, problem, steps, seed))
    found: Results = json.loads(path.read_text())
    return found


# ---- tables and figure ----


def summary(runs: dict[tuple[str, str], list[Results]]) -> list[Results]:
    rows = []
    for (problem, method), found in runs.items():
        regret, regret_error = mean_and_error(found, "last_regret")
        seconds, seconds_error = mean_and_error(found, "seconds")
        rows.append(
            {
                "problem": problem,
                "method": method,
                "seeds": len(found),
                "regret": regret,
                "regret_error": regret_error,
                "seconds": seconds,
                "seconds_error": seconds_error,
            }
        )
    return rows


def draw(runs: dict[tuple[str, str], list[Results]], folder: Path) -> None:
    names = list(dict.fromkeys(problem for problem, _ in runs))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4.5 * len(names), 3.6), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        for (problem, method), found in runs.items():
            if problem == name:
                style = STYLES[method]
                look = {"color": style} if style == "0.6" else {}
                shape = () if look else (style,)
                median = np.median([one["regret"] for one in found], axis=0)
                ax.semilogy(np.maximum(median, 1e-6), *shape, label=method, **look)
        ax.set(title=name, xlabel="evaluations", ylabel="simple regret, median over seeds")
    axes[0, 0].legend(fontsize=7)
    save_figure(figure, folder, "bayesian_optimisation.png")


def main(arguments: argparse.Namespace) -> None:
    quick = arguments.quick
    seeds = range(arguments.seed, arguments.seed + (1 if quick else arguments.seeds))
    problems = {"Branin": PROBLEMS["Branin"]} if quick else PROBLEMS
    methods = ["streaming, four pending", "refit, compiled once"] if quick else list(METHODS)
    tasks = [(p, m, s) for s in seeds for p in problems for m in methods]
    runs: dict[tuple[str, str], list[Results]] = {(p, m): [] for p in problems for m in methods}
    for name, method, seed in tqdm(tasks, disable=not sys.stderr.isatty()):
        problem = PROBLEMS[name]
        steps = 8 if quick else problem.steps
        plain = re.sub("[^a-z0-9]+", "-", f"{name} {method} {seed}".lower())
        file = f"{plain}{'-quick' if quick else ''}.json"
        found = kept_run(arguments.out / "runs" / file, method, problem, steps, seed)
        runs[name, method].append(found)
        print(
            f"{name}, {method}, seed {seed}: regret {found['last_regret']:.3g}, "
            f"{found['seconds']:.1f} CPU seconds",
            flush=True,
        )
    rows = summary(runs)
    for row in rows:
        print(
            f"{row['problem']:<11} {row['method']:<24} regret {row['regret']:.3g} ± "
            f"{row['regret_error']:.2g}, {row['seconds']:.1f} ± {row['seconds_error']:.1f} s"
        )
    write_results(arguments.out, {"summary": rows})
    draw(runs, arguments.out)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="number of seeds")
    run(main, options)
