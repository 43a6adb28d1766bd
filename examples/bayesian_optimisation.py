"""Bayesian optimisation of Branin's function: a surrogate that takes in each value in milliseconds.

The next point is that of the largest expected improvement among random candidates. Three values are
always on their way: a pending point stands for the model's guess, so that the next differs from it,
and is divided out when its value comes. Learning everything anew at each step is compared with this
in ``python -m experiments.measured.bayesian_optimisation``. Draws the points that were chosen, and
the regret.

--quick takes 15 steps in place of 30.
"""

from __future__ import annotations

import argparse
import sys

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from common import parser, run, save_figure, write_results
from scipy.stats import norm
from tqdm import tqdm

import streaming_gp as sgp
from streaming_gp.surrogate import StreamingSurrogate

MINIMUM = 0.39788735772973816
FIRST, AT_A_TIME = 6, 4


def branin(X: np.ndarray) -> np.ndarray:
    """Branin's function (Dixon & Szegő 1978) at inputs [N, 2] of the unit square, [N, 1]."""
    a, b = 15.0 * X[:, :1] - 5.0, 15.0 * X[:, 1:]
    curve = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return curve**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0


def next_point(
    surrogate: StreamingSurrogate, best: np.ndarray, value: float, rng: np.random.Generator
) -> np.ndarray:
    """The candidate [1, 2] of the largest expected improvement on the best value so far."""
    near = best + rng.normal(0.0, 0.05, (200, 2))
    candidates = np.clip(np.vstack([rng.uniform(size=(800, 2)), near]), 0.0, 1.0)
    mean, variance = (np.asarray(moment) for moment in surrogate.predict(candidates))
    deviation = np.sqrt(np.maximum(variance, 1e-16))
    z = (value - mean) / deviation
    improvement = deviation * (z * norm.cdf(z) + norm.pdf(z))
    return candidates[[np.argmax(improvement)]]


def draw(X: np.ndarray, regrets: list[float]) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    sides = np.linspace(0.0, 1.0, 80)
    grid = np.stack([side.ravel() for side in np.meshgrid(sides, sides)], axis=1)
    left.contourf(sides, sides, np.log(branin(grid)).reshape(80, 80), levels=20)
    left.scatter(*X[:FIRST].T, c="white", marker="x", label="at random")
    left.scatter(*X[FIRST:].T, c="red", s=12, label="chosen")
    left.set(title="log of Branin's function, and where it was asked")
    left.legend()
    right.semilogy(range(1, len(regrets) + 1), regrets)
    right.set(xlabel="values", ylabel="best value minus minimum")
    return figure


def main(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(arguments.seed)
    kernel = gpflow.kernels.Matern52(lengthscales=[0.5, 0.5])
    zero, one, half = (tf.constant(value, tf.float64) for value in (0.0, 1.0, np.log(0.5)))
    kernel.variance.prior = tfp.distributions.LogNormal(zero, one)
    kernel.lengthscales.prior = tfp.distributions.LogNormal(half, one)
    likelihood = gpflow.likelihoods.Gaussian(1e-4)
    gpflow.set_trainable(likelihood, False)  # next to no noise, which is known
    surrogate = StreamingSurrogate(
        sgp.StreamingGP(
            kernel,
            likelihood,
            pseudo_points=sgp.PrivatePseudoPoints("all"),
            hyperparameters=sgp.PointHyperparameters(),
            seed=arguments.seed,
        )
    )
    X = rng.uniform(size=(FIRST, 2))
    values = branin(X)
    centre, scale = values.mean(), values.std()
    steps = range(4 if arguments.quick else 8)
    for step in tqdm(steps, desc="steps", disable=not sys.stderr.isatty()):
        targets = (values - centre) / scale
        surrogate.optimize((X, targets))
        chosen = []
        for number in range(AT_A_TIME):
            chosen.append(next_point(surrogate, X[np.argmin(targets)], targets.min(), rng))
            surrogate.add_pending(f"pending-{number}", chosen[-1])
        for name in surrogate.pending:
            surrogate.remove_pending(name)
        X = np.vstack([X, *chosen])
        values = branin(X)
        print(f"step {step + 1}: best value {values.min():.4f}", flush=True)
    regrets = [float(values[: number + 1].min() - MINIMUM) for number in range(len(values))]
    print(f"{len(values)} values, best {values.min():.4f}: {regrets[-1]:.4f} above the minimum")
    save_figure(draw(X, regrets), arguments.out, "bayesian_optimisation.png")
    write_results(arguments.out, {"seed": arguments.seed, "regret": regrets})


if __name__ == "__main__":
    run(main, parser(__doc__))
