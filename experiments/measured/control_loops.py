"""One point at a time on the Barrett arm: errors beside other learners, and late steps.

Rows sorted by the first joint. A model learns hyperparameters from the first 1,000; from there on
each row is predicted, and then learned, by an object of ``StreamingGP.online`` on 300 points, by
LoG-GP at the same hyperparameters, by river's linear and local linear models, and by all seven
torques at once. Steps are timed beside a loop of NumPy alone, one triangular solve at 300 points:
once by themselves, and once while a thread or a process learns batch after batch.

``--study errors`` or ``--study latency`` does one half, and keeps the other; --quick takes 300
rows and 300 after them. Needs the extra river. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gpflow
import numpy as np
import scipy.linalg
import tensorflow as tf
from common import Results, parser, run, write_results
from river import linear_model, tree

import streaming_gp as sgp
from experiments.benchmarks.methods.learner import Hyperparameters
from experiments.benchmarks.methods.local_gps import LocalGPs
from streaming_gp.datasets import load_robot_arm

POINTS, LEAF, JOINT = 300, 100, 2
DEADLINE = 1.0
"""Milliseconds."""
Learner = tuple[Callable[[np.ndarray], tuple[Any, Any]], Callable[[np.ndarray, np.ndarray], object]]


def arm(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, 21] and torques [N, 7] in standard deviations, sorted by the first joint."""
    split = load_robot_arm("barrett", data)
    X, Y = ((part - part.mean(axis=0)) / part.std(axis=0) for part in (split.X, split.Y))
    order = np.argsort(X[:, 0], kind="stable")
    return X[order], Y[order]


def begun(X: np.ndarray, Y: np.ndarray, seed: int) -> sgp.StreamingGP:
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], X.shape[1] ** 0.5)),
        gpflow.likelihoods.Gaussian(np.full(Y.shape[1], 0.1)),
        seed=seed,
    )
    model.update((X, Y))
    return model


# ---- errors ----


def online_learner(model: sgp.StreamingGP) -> Learner:
    online = model.online(POINTS, on_alarm=lambda alarm: None)
    noise = model.likelihood.variance.numpy()

    def predict(x: np.ndarray) -> tuple[Any, Any]:
        mean, variance = online.predict(x)
        return mean, variance + noise

    return predict, online.update


def local_gps(model: sgp.StreamingGP, X: np.ndarray, Y: np.ndarray) -> Learner:
    kernel, noise = model.kernel, float(model.likelihood.variance.numpy()[0])
    variance = float(kernel.variance.numpy())
    of = Hyperparameters(variance, kernel.lengthscales.numpy(), max(noise, 1e-6 * variance))
    trees = LocalGPs(of, LEAF, seed=0)
    trees.update(X, Y)

    def predict(x: np.ndarray) -> tuple[Any, Any]:
        found = trees.predict(x[None])
        return found.mean, found.variance

    return predict, lambda x, y: trees.update(x[None], y[None])


def of_river(model: Any, X: np.ndarray, Y: np.ndarray) -> Learner:
    """A model of river, which gives no variance."""

    def predict(x: np.ndarray) -> tuple[Any, Any]:
        return model.predict_one(dict(enumerate(x.tolist()))), np.nan

    def learn(x: np.ndarray, y: np.ndarray) -> None:
        model.learn_one(dict(enumerate(x.tolist())), float(y[0]))

    for x, y in zip(X, Y, strict=True):
        learn(x, y)
    return predict, learn


def followed(learner: Learner, X: np.ndarray, Y: np.ndarray) -> Results:
    """Each row predicted, then learned."""
    predict, update = learner
    means, variances = np.empty(Y.shape), np.empty(Y.shape)
    milliseconds, busy = np.empty(len(X)), time.process_time()
    for step, (x, y) in enumerate(zip(X, Y, strict=True)):
        begin = time.perf_counter()
        means[step], variances[step] = predict(x)
        update(x, y)
        milliseconds[step] = 1e3 * (time.perf_counter() - begin)
    busy = time.process_time() - busy
    squares = (means - Y) ** 2
    densities = 0.5 * (squares / variances + np.log(2.0 * np.pi * variances))
    late, has_density = slice(len(X) // 2, None), bool(np.isfinite(densities).all())
    return {
        "mse": float(squares.mean()),
        "mse_last_half": float(squares[late].mean()),
        "median_square": float(np.median(squares)),
        "nlpd": float(densities.mean()) if has_density else None,
        "standardised": float((squares / variances).mean()) if has_density else None,
        "ms_p50": float(np.percentile(milliseconds, 50)),
        "ms_p99.9": float(np.percentile(milliseconds, 99.9)),
        "cpu_ms": 1e3 * busy / len(X),
    }


def errors(X: np.ndarray, Y: np.ndarray, first: int, seed: int) -> list[Results]:
    y, before = Y[:, [JOINT]], slice(0, first)
    model, all_seven = begun(X[before], y[before], seed), begun(X[before], Y[before], seed)
    local = tree.HoeffdingTreeRegressor(
        leaf_prediction="model", leaf_model=linear_model.BayesianLinearRegression()
    )
    linear = linear_model.BayesianLinearRegression()
    learners: dict[str, Callable[[], Learner]] = {
        f"online, {POINTS} points": partial(online_learner, model),
        f"LoG-GP, {LEAF} a leaf": partial(local_gps, model, X[before], y[before]),
        "river, local linear": partial(of_river, local, X[before], y[before]),
        "river, linear": partial(of_river, linear, X[before], y[before]),
        f"online, {POINTS} points, seven torques": partial(online_learner, all_seven),
    }
    rows = []
    for name, learner in learners.items():
        targets = Y if "seven" in name else y
        rows.append({"learner": name, **followed(learner(), X[first:], targets[first:])})
        print(rows[-1], flush=True)
    return rows


# ---- late steps ----


def learn(X: np.ndarray, Y: np.ndarray, done: Any, give: Callable[[Any], None]) -> None:
    """Batch after batch, from the beginning again where they end; the model is given after each."""
    while not done.is_set():
        model = begun(X[:500], Y[:500], seed=0)
        for start in range(500, len(X) - 500, 500):
            if not done.is_set():
                model.update((X[start : start + 500], Y[start : start + 500]), learn=True)
                give(model)


def learn_elsewhere(X: np.ndarray, Y: np.ndarray, has_begun: Any, pipe: Any) -> None:
    """In a process that leaves the loop a processor: of one thread, and last in line."""
    os.nice(19)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    has_begun.set()
    learn(X, Y, threading.Event(), lambda model: pipe.send(model.online(POINTS)))


def adopt_all(online: sgp.gp.OnlineGP, done: Any, pipe: Any) -> None:
    while not done.is_set():
        if pipe.poll(0.1):
            online.adopt(pipe.recv(), keep=False)


@contextmanager
def learning(kind: str, X: np.ndarray, Y: np.ndarray, online: sgp.gp.OnlineGP) -> Iterator[None]:
    """A learner beside what is done within the block, from which the object goes on."""
    done, beside, far = threading.Event(), None, None
    if kind == "a thread":
        adopt = partial(online.adopt, keep=False)
        beside = threading.Thread(target=learn, args=(X, Y, done, adopt))
    elif kind == "a process":
        context = multiprocessing.get_context("spawn")
        has_begun, (here, there) = context.Event(), context.Pipe(duplex=False)
        far = context.Process(target=learn_elsewhere, args=(X, Y, has_begun, there), daemon=True)
        far.start()
        has_begun.wait()
        beside = threading.Thread(target=adopt_all, args=(online, done, here))
    if beside is not None:
        beside.start()
    try:
        yield
    finally:
        done.set()
        if beside is not None:
            beside.join()
        if far is not None:
            far.terminate()


def late_steps(kind: str, model: sgp.StreamingGP, X: np.ndarray, Y: np.ndarray) -> Results:
    """Steps of the object, and as many of NumPy alone, one after another."""
    online = model.online(POINTS, on_alarm=lambda alarm: None)
    L, Z = np.linalg.cholesky(np.eye(POINTS) + 0.1), np.asfortranarray(X[:POINTS])
    times = np.empty((len(X), 2))
    gc.collect()
    gc.freeze()
    with learning(kind, X, Y, online):
        for step, (x, y) in enumerate(zip(X, Y, strict=True)):
            begin = time.perf_counter()
            k = np.exp(-0.5 * ((Z - x) ** 2).sum(axis=1) / len(x))
            white = scipy.linalg.solve_triangular(L, k, lower=True, check_finite=False)
            white @ white
            middle = time.perf_counter()
            online.predict(x)
            online.update(x, y)
            times[step] = 1e3 * (middle - begin), 1e3 * (time.perf_counter() - middle)
    gc.unfreeze()
    alone, steps = times[100:].T
    late_alone, late = (int(np.sum(one > DEADLINE)) for one in (alone, steps))
    return {
        "learner": kind,
        "joints": Y.shape[1],
        "steps": len(steps),
        "late_numpy": late_alone,
        "late": late,
        "late_beyond_numpy_per_1000": 1e3 * (late - late_alone) / len(steps),
        **{f"ms_p{level:g}": float(np.percentile(steps, level)) for level in (50, 99, 99.9)},
        "ms_worst": float(steps.max()),
        "numpy_ms_p50": float(np.median(alone)),
    }


def latency(X: np.ndarray, Y: np.ndarray, first: int, seed: int) -> list[Results]:
    rows = []
    for joints in ([JOINT], np.arange(Y.shape[1])):
        model = begun(X[:first], Y[:first, joints], seed)
        for kind in ("none", "a process", "a thread"):
            rows.append(late_steps(kind, model, X[first:], Y[first:, joints]))
            print(rows[-1], flush=True)
    return rows


def main(arguments: argparse.Namespace) -> None:
    X, Y = arm(arguments.data)
    first = 300 if arguments.quick else 1000
    if arguments.quick:
        X, Y = X[: 2 * first], Y[: 2 * first]
    path = arguments.out / "results.json"
    is_first = arguments.study == "both" or not path.exists()
    results = {} if is_first else json.loads(path.read_text())
    studies = {"errors": errors, "latency": latency}
    for name, study in studies.items():
        if arguments.study in (name, "both"):
            results[name] = study(X, Y, first, arguments.seed)
    write_results(arguments.out, {**results, "seed": arguments.seed})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--study", choices=["errors", "latency", "both"], default="both")
    run(main, options)
