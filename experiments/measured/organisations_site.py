"""The program of one organisation: python -m experiments.measured.organisations_site KIT.

It reads its own data, connects to the coordinator with the certificates in KIT, and answers until
it is ended. Data are invented here, with a seed for each organisation; a real one reads its files.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

from streaming_gp import bnn, engines, linear, pvi
from streaming_gp.engines.nvflare import read_kit

PLACES = ("clinic-a", "clinic-b", "clinic-c")
NUM_DATA = 120


@dataclass(frozen=True)
class Problem:
    """A model that all share, the rule by which they answer, and each one's data."""

    model: Callable[[], Any]
    update: Any
    shard: Callable[[int], pvi.Data]


def patients(number: int) -> pvi.Data:
    """Inputs [N, 5] and labels [N, 1] of one place, whose inputs lie elsewhere than others'."""
    rng = np.random.default_rng([1, number])
    X = rng.standard_normal((NUM_DATA, 5)) + number - 1.0
    probability = 1.0 / (1.0 + np.exp(-X @ np.array([[2.0], [-1.0], [0.5], [0.0], [0.0]])))
    return X, (rng.uniform(size=(NUM_DATA, 1)) < probability).astype(float)


def images(number: int) -> pvi.Data:
    """Invented images [N, 784] of ten kinds, and their labels [N, 1]."""
    kinds = np.random.default_rng(2).uniform(size=(10, 784))
    rng = np.random.default_rng([3, number])
    Y = rng.integers(10, size=(NUM_DATA, 1))
    X = kinds[Y[:, 0]] + 0.3 * rng.standard_normal((NUM_DATA, 784))
    return X.astype(np.float32), Y.astype(np.float32)


PROBLEMS = {
    "logistic": Problem(
        partial(linear.logistic_regression, 5),
        pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS()),
        patients,
    ),
    "network": Problem(
        lambda: bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10)),
        pvi.VariationalUpdate(epochs=2, batch_size=40, learning_rate=2e-3),
        images,
    ),
}


@dataclass(frozen=True)
class Timed:
    """A rule that writes down when it worked, and in which process."""

    rule: Any
    log: Path

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        start = time.time()
        result: pvi.LocalResult = self.rule(task)
        line = {"process": os.getpid(), "start": start, "end": time.time()}
        with open(self.log, "a") as file:
            file.write(json.dumps(line) + "\n")
        return result


def sites_at(place: str, log: Path) -> list[pvi.Site]:
    """What a place holds: a site for each problem."""
    number, found = PLACES.index(place), []
    for name, problem in PROBLEMS.items():
        load, rule = partial(problem.shard, number), Timed(problem.update, log)
        identity = f"{name}-{place}"
        found.append(pvi.Site(identity, problem.model(), rule, NUM_DATA, load, place=place))
    return found


def known_sites(name: str) -> list[pvi.Site]:
    """What the coordinator knows of them: names, models, rules and numbers of data."""
    problem = PROBLEMS[name]
    model = problem.model()
    return [
        pvi.Site(f"{name}-{place}", model, problem.update, NUM_DATA, place=place)
        for place in PLACES
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kit", type=Path)
    options.add_argument("--address", default=None, help="host:port of the coordinator")
    options.add_argument(
        "--folder", type=Path, default=Path(), help="where to write when it worked"
    )
    arguments = options.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    place = read_kit(arguments.kit).name
    engine = engines.NVFlare(arguments.kit, address=arguments.address)
    pvi.serve(sites_at(place, arguments.folder / f"{place}.work"), engine)


if __name__ == "__main__":
    main()
