"""The program of a place whose site answers within sums: python -m tests.oracles.sums_of_tests.

It takes the number of the place, the folder of all, the address of its SuperNode and the secret.
"""

import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from streaming_gp import engines, linear, pvi
from streaming_gp.errors import NumericalError
from streaming_gp.pvi import privacy

PLACES = "clinic-a", "clinic-b", "clinic-c", "clinic-d"
NUM_DATA, NUM_INPUTS = 60, 12


@dataclass(frozen=True)
class Troubled:
    """A rule that fails where the test has put a note, or ends its process and the note with it."""

    notes: str

    def __call__(self, task):
        if Path(self.notes, f"fails-{task.client_id}").exists():
            raise NumericalError("the rows of patient 7 have no numbers")
        killed = Path(self.notes, f"killed-{task.client_id}")
        if killed.exists():
            killed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())(task)


def model():
    return linear.logistic_regression(NUM_INPUTS)


def shard(number):
    rng = np.random.default_rng([7, number])
    X = rng.standard_normal((NUM_DATA, NUM_INPUTS)) + 0.3 * number
    logits = X @ np.linspace(-1.0, 1.0, NUM_INPUTS)[:, None]
    return X, (logits + rng.logistic(size=(NUM_DATA, 1)) > 0.0).astype(float)


def rule(folder, **options):
    """What all have agreed on: a sum is of three at least."""
    record = str(Path(folder, "kept"))
    return privacy.SummedChanges(Troubled(folder), sites=len(PLACES), record=record, **options)


def site(number, folder, **options):
    name, load = f"s{number}", partial(shard, number)
    return pvi.Site(name, model(), rule(folder, **options), NUM_DATA, load, place=PLACES[number])


def main(number, folder, address, secret):
    pvi.serve(site(int(number), folder), engines.Flower(address, secret))


if __name__ == "__main__":
    main(*sys.argv[1:])
