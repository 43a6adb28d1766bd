"""Eight threads predict while one updates a thousand times: is every answer that of a committed
state?

The thread that updates writes down what the model predicts before the first update and after each
one. The others predict a hundred times a second, and each of their answers is looked up among
these. All threads start at once, so that the first update and the first predictions trace side by
side. Once for a point of hyperparameters and once for a distribution over them; every hundredth
update learns.

--quick makes twenty updates.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpflow
import numpy as np
from common import Results, parser, run, write_results

import streaming_gp as sgp

THREADS, PAUSE = 8, 0.01
"""Threads that predict, and the seconds that each waits before it asks again."""
AT = np.linspace(-2.0, 2.0, 5)[:, None]
KINDS: dict[str, Any] = {
    "point": sgp.PointHyperparameters(),
    "distribution": sgp.VariationalHyperparameters(num_samples=2),
}


def begun(kind: str, seed: int) -> sgp.StreamingGP:
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(2, budget=12),
        hyperparameters=KINDS[kind],
        optimiser=sgp.LocalOptimiser(max_iterations=3, projection_iterations=2),
        num_prediction_samples=2,
        seed=seed,
    )


def predicted(model: sgp.StreamingGP) -> bytes:
    return np.stack(model.predict_f(AT)).tobytes()


def perform(kind: str, updates: int, seed: int) -> Results:
    """Updates in one thread, predictions in the others."""
    model, rng, done = begun(kind, seed), np.random.default_rng(seed), threading.Event()
    committed: dict[bytes, int] = {}

    def update() -> None:
        try:
            committed[predicted(model)] = 0
            for number in range(updates):
                X = rng.uniform(-2.0, 2.0, (5, 1))
                model.update((X, np.sin(2.0 * X)), learn=number % 100 == 0)
                committed[predicted(model)] = number + 1
        finally:
            done.set()

    def predict() -> tuple[Counter[bytes], list[str]]:
        answers: Counter[bytes] = Counter()
        errors = []
        while not done.wait(PAUSE):
            try:
                answers[predicted(model)] += 1
            except Exception as error:  # any error is a finding
                errors.append(f"{type(error).__name__}: {error}")
        return answers, errors

    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS + 1) as pool:
        updating = pool.submit(update)
        predicting = [pool.submit(predict) for _ in range(THREADS)]
        updating.result()
        found = [one.result() for one in predicting]
    answers = sum((one for one, _ in found), Counter())
    return {
        "hyperparameters": kind,
        "updates": updates,
        "states": len(committed),
        "predictions": answers.total(),
        "states_seen": sum(answer in committed for answer in answers),
        "of_no_state": sum(n for answer, n in answers.items() if answer not in committed),
        "errors": sum(len(errors) for _, errors in found),
        "seconds": time.perf_counter() - start,
    }


def main(arguments: argparse.Namespace) -> None:
    updates = 20 if arguments.quick else 1000
    rows = []
    for kind in KINDS:
        rows.append(perform(kind, updates, arguments.seed))
        print(rows[-1], flush=True)
    write_results(arguments.out, {"seed": arguments.seed, "summary": rows})


if __name__ == "__main__":
    run(main, parser(__doc__))
