"""CPU seconds of small updates: sixty points in one dimension, from the very first one on.

A stream of regression or of labels is learned batch by batch, and then goes on being absorbed at
the hyperparameters that were learned. Every method has a process of its own, so that its first
update shows what there is to import, to trace and to compile; that of a second model in the process
shows what is left of it. Beside them is what a user may pick instead: scikit-learn's exact Gaussian
process and GPflow's SGPR and SVGP, fitted once more to all data so far whenever a batch comes, from
where they were before.

--quick has three batches of each kind and leaves the other libraries out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

import gpflow
import numpy as np
from common import Results, parser, run, write_results
from sklearn import gaussian_process
from tqdm import tqdm

import streaming_gp as sgp

SIZE, BATCHES, QUICK_BATCHES, NOISE_SD = 60, 10, 3, 0.1
REGRESSION, LABELS = "regression", "labels"
Batch = tuple[np.ndarray, np.ndarray]
Update = Callable[[Batch], Any]


def truth(X: np.ndarray) -> np.ndarray:
    return np.sin(3.0 * X)


def batches(kind: str, number: int, seed: int) -> Iterator[Batch]:
    """Inputs come from five overlapping pieces of a line in turn."""
    for index in range(number):
        rng = np.random.default_rng([seed, index])
        X = rng.uniform(index % 5, index % 5 + 1.5, (SIZE, 1))
        Y = truth(X) + NOISE_SD * rng.standard_normal(X.shape)
        yield X, Y if kind == REGRESSION else (Y > 0.0).astype(float)


# ---- methods: how each learns a batch, absorbs it, and what it predicts f to be ----


class Streaming:
    """A model of this library."""

    def __init__(self, kind: str, pseudo_points: Any) -> None:
        kernel = gpflow.kernels.SquaredExponential()
        self.model = sgp.StreamingGP(kernel, likelihood(kind), pseudo_points=pseudo_points)

    def learn(self, batch: Batch) -> None:
        self.model.update(batch)

    def absorb(self, batch: Batch) -> None:
        self.model.update(batch, learn=False)

    def mean(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict_y(X)[0])


class Refitted:
    """A model that is fitted to all data so far; it has no other way to take a batch in."""

    def __init__(self, kind: str) -> None:
        self.kind, self.X, self.Y = kind, np.zeros((0, 1)), np.zeros((0, 1))

    def learn(self, batch: Batch) -> None:
        self.X, self.Y = (
            np.concatenate(pair) for pair in zip((self.X, self.Y), batch, strict=True)
        )
        self.fit()

    def fit(self) -> None:
        raise NotImplementedError


class ScikitLearn(Refitted):
    """Exact, with the hyperparameters of before as the start."""

    kernel: Any = None

    def fit(self) -> None:
        kernels = gaussian_process.kernels
        if self.kind == LABELS:
            start = self.kernel or kernels.ConstantKernel() * kernels.RBF()
            self.model = gaussian_process.GaussianProcessClassifier(start)
        else:
            start = self.kernel or (
                kernels.ConstantKernel() * kernels.RBF() + kernels.WhiteKernel(NOISE_SD)
            )
            self.model = gaussian_process.GaussianProcessRegressor(start)
        self.model.fit(self.X, self.Y[:, 0])
        self.kernel = self.model.kernel_

    def mean(self, X: np.ndarray) -> np.ndarray:
        if self.kind == LABELS:
            return np.asarray(self.model.predict_proba(X)[:, 1:])
        return np.asarray(self.model.predict(X)[:, None])


class GPflow(Refitted):
    """On twenty points at inputs of the data, which move with the hyperparameters."""

    model: Any = None

    def fit(self) -> None:
        before, data = self.model, (self.X, self.Y)
        places = np.linspace(0, len(self.X) - 1, 20).astype(int)
        Z = np.sort(self.X, axis=0)[places]
        if self.kind == LABELS:
            kernel = gpflow.kernels.SquaredExponential()
            self.model = gpflow.models.SVGP(kernel, likelihood(self.kind), Z)
            loss = self.model.training_loss_closure(data)
        else:
            self.model = gpflow.models.SGPR(data, gpflow.kernels.SquaredExponential(), Z)
            loss = self.model.training_loss
        if before is not None:
            kept = gpflow.utilities.read_values(before)
            kept = {name: value for name, value in kept.items() if "inducing" not in name}
            gpflow.utilities.multiple_assign(self.model, kept)
        gpflow.optimizers.Scipy().minimize(
            loss, self.model.trainable_variables, options={"maxiter": 100}
        )

    def mean(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict_y(X)[0])


def likelihood(kind: str) -> gpflow.likelihoods.Likelihood:
    if kind == LABELS:
        return gpflow.likelihoods.Bernoulli()
    return gpflow.likelihoods.Gaussian(NOISE_SD)


OURS: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "private, 10 a batch": lambda: sgp.PrivatePseudoPoints(10),
    "shared, 20": lambda: sgp.SharedPseudoPoints(20),
    "conditional, 10 a batch": lambda: sgp.ConditionalPseudoPoints(10),
}
OTHERS = {"scikit-learn, refitted": ScikitLearn, "GPflow, 20 points, refitted": GPflow}


# ---- one method ----


def seconds(update: Update, stream: list[Batch]) -> list[float]:
    """CPU seconds of each update."""
    found = []
    for batch in stream:
        start = time.process_time()
        update(batch)
        found.append(time.process_time() - start)
    return found


def measured(kind: str, name: str, number: int, seed: int) -> Results:
    """In a process of its own: seconds of the first update, of later ones, and of absorbing."""
    model = made(kind, name)
    stream = list(batches(kind, 2 * number, seed))
    first, *later = seconds(model.learn, stream[:number])
    row: Results = {
        "method": name,
        "first": first,
        "learning": float(np.median(later)),
        "longest": max(later),
        "rmse": error(kind, model),
        "first_absorbed": None,
        "absorbing_ms": None,
    }
    if isinstance(model, Streaming):
        first, *later = seconds(model.absorb, stream[number:])
        row |= {"first_absorbed": first, "absorbing_ms": 1e3 * float(np.median(later))}
    (row["first_of_second"],) = seconds(made(kind, name).learn, stream[:1])
    return row


def made(kind: str, name: str) -> Any:
    """A model that has seen nothing."""
    return OTHERS[name](kind) if name in OTHERS else Streaming(kind, OURS[name]())


def error(kind: str, model: Any) -> float:
    """RMSE of the mean of y, or of the probability, against the truth."""
    X = np.linspace(0.1, 5.4, 300)[:, None]
    wanted = truth(X)
    if kind == LABELS:
        wanted = gpflow.likelihoods.Bernoulli().invlink(truth(X) / NOISE_SD).numpy()
    return float(np.sqrt(np.mean((model.mean(X) - wanted) ** 2)))


def in_a_new_process(*task: Any) -> Results:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, task)


def main(arguments: argparse.Namespace) -> None:
    number = QUICK_BATCHES if arguments.quick else BATCHES
    names = [*OURS] if arguments.quick else [*OURS, *OTHERS]
    found: Results = {REGRESSION: [], LABELS: []}
    with tqdm(total=2 * len(names), disable=not sys.stderr.isatty()) as bar:
        for kind, rows in found.items():
            for name in names:
                rows.append(in_a_new_process(kind, name, number, arguments.seed))
                print(f"{kind}: {rows[-1]}", flush=True)
                bar.update()
    write_results(arguments.out, {"batch": SIZE, **found})


if __name__ == "__main__":
    run(main, parser(__doc__))
