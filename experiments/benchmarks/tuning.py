"""Hyperparameters by exact maximum likelihood, for methods that cannot learn them on the way."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gpflow
import numpy as np
from common import write_json

from experiments.benchmarks.methods import Hyperparameters
from experiments.benchmarks.streams import Batch, Stream

ITERATIONS = 100
MOST_POINTS = 1000
"""So many points are drawn at random where there are more."""


@dataclass
class Seconds:
    """CPU time of all threads of this process, and wall time, in seconds."""

    cpu: float = 0.0
    wall: float = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add what the block takes."""
        cpu, wall = cpu_seconds(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu += cpu_seconds() - cpu
            self.wall += time.perf_counter() - wall


def cpu_seconds() -> float:
    """What all threads of this process have used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def maximum_likelihood(data: Batch, iterations: int) -> Hyperparameters:
    """Exact maximum likelihood of a squared-exponential kernel and Gaussian noise."""
    X, Y = data
    if len(X) > MOST_POINTS:
        chosen = np.random.default_rng(0).permutation(len(X))[:MOST_POINTS]
        X, Y = X[chosen], Y[chosen]
    start = Hyperparameters.start(X.shape[1])
    model = gpflow.models.GPR((X, Y), start.kernel(), noise_variance=start.noise)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": iterations}
    )
    kernel = model.kernel
    return Hyperparameters(
        float(kernel.variance.numpy()),
        kernel.lengthscales.numpy(),
        float(model.likelihood.variance.numpy()),
    )


def tuned(stream: Stream, on: str, iterations: int, kept: Path) -> tuple[Hyperparameters, Seconds]:
    """Hyperparameters and what they cost; kept in a file, as many methods want the same ones.

    :param on: ``"first batches"`` or ``"all data"``.
    :param kept: The file.
    """
    if kept.exists():
        found = json.loads(kept.read_text())
        of = Hyperparameters(found["variance"], np.array(found["lengthscales"]), found["noise"])
        return of, Seconds(found["cpu_seconds"], found["wall_seconds"])
    X, Y = stream.first() if on == "first batches" else stream.joined()
    seconds = Seconds()
    with seconds.counted():
        of = maximum_likelihood((X, 2.0 * Y - 1.0 if stream.classes else Y), iterations)
    record = {
        "variance": of.variance,
        "lengthscales": of.lengthscales.tolist(),
        "noise": of.noise,
        "cpu_seconds": seconds.cpu,
        "wall_seconds": seconds.wall,
    }
    write_json(kept, record)
    return of, seconds
