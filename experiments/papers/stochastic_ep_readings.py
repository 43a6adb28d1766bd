"""What the paper's table of kernel probit regression may mean: readings of its model, under EP.

The supplement of Li et al. (2015) says "RBF kernel with width l = 1.0" and "the features are
changed to kernel representations", and prints EP's error and log likelihood. It gives neither the
scale in its kernel nor the prior of the weights. Two natural readings of each are tried on the data
of stochastic_ep.py, for 10, 20 and 50 training points a Gaussian:

- the kernel is exp(−d²/2) or exp(−d²);
- weights are N(0, I), as in the paper's main text, or N(0, K⁻¹), at which the function has the
  covariance K at the training points, as a Gaussian process has.

Every run is kept in OUT/runs and never repeated; --finished makes the table of what there is, and
--quick runs two sets of 10 points a Gaussian.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from common import Results, parser, run, write_json, write_results
from scipy.linalg import cholesky, solve_triangular
from tqdm import tqdm

from experiments.means import mean_and_error
from experiments.papers.stochastic_ep import METHODS, TEST_POINTS, xor
from streaming_gp import linear, pvi
from streaming_gp.metrics import error_rate

KERNELS = {"exp(-d²/2)": 0.5, "exp(-d²)": 1.0}
PRIORS = "N(0, I)", "N(0, K⁻¹)"
PAPER = {10: (0.032, -0.378), 20: (0.012, -0.317), 50: (0.006, -0.238)}
"""EP's mean test error and log likelihood in the supplement's table, by points a Gaussian."""
JITTER = 1e-8


@dataclass(frozen=True)
class Reading:
    """One run: kernel and prior of the weights, points a Gaussian, the number of the set."""

    kernel: str
    prior: str
    size: int
    repetition: int
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        where = list(KERNELS).index(self.kernel), PRIORS.index(self.prior)
        return "-".join(map(str, (*where, self.size, self.repetition, self.seed))) + ".json"


def kernel(A: np.ndarray, B: np.ndarray, rate: float) -> np.ndarray:
    """``exp(−rate |a − b|²)`` [N, M]."""
    squares = np.sum((A[:, None] - B[None]) ** 2, axis=-1)
    return np.asarray(np.exp(-rate * squares))


def features(reading: Reading, X: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Features [N, M] whose weights are N(0, I): with ``K = L Lᵀ`` weights N(0, K⁻¹) of ``k`` are
    these of ``L⁻¹ k``.
    """
    rate = KERNELS[reading.kernel]
    k = kernel(X, centres, rate)
    if reading.prior == PRIORS[0]:
        return k
    K = kernel(centres, centres, rate) + JITTER * np.eye(len(centres))
    return np.asarray(solve_triangular(cholesky(K, lower=True), k.T, lower=True).T)


def perform(reading: Reading) -> Results:
    """Test error and mean test log likelihood of EP."""
    rng = np.random.default_rng([reading.seed, reading.size, reading.repetition])
    (X, Y), (X_test, Y_test) = xor(reading.size, rng), xor(TEST_POINTS, rng)
    method, model = METHODS["EP"], linear.probit_regression(len(X))
    shards = method.shards(features(reading, X, X), Y)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, method.update(1)))
    pvi.fit(server, pvi.Sequential(order="random", seed=reading.repetition), method.rounds)
    probability = model.predict(server.posterior, features(reading, X_test, X))[0]
    density = np.log(np.where(Y_test == 1.0, probability, 1.0 - probability))
    return {
        "test_error": error_rate(probability, Y_test),
        "test_log_likelihood": float(np.mean(density)),
    }


def performed(readings: list[Reading], folder: Path) -> list[Results]:
    """Every run's record, from its file where there is one."""
    for one in tqdm(readings, desc="runs", disable=not sys.stderr.isatty()):
        if not (folder / one.name).exists():
            write_json(folder / one.name, {**asdict(one), **perform(one)})
    return [json.loads((folder / one.name).read_text()) for one in readings]


def row(records: list[Results]) -> Results:
    """The mean and its standard error over sets, beside what the paper has."""
    of = records[0]
    error, density = (mean_and_error(records, key) for key in ("test_error", "test_log_likelihood"))
    return {
        "kernel": of["kernel"],
        "prior": of["prior"],
        "points": f"{of['size']}·4",
        "sets": len(records),
        "test_error": f"{error[0]:.3f} ± {error[1]:.4f}",
        "test_log_likelihood": f"{density[0]:.3f} ± {density[1]:.3f}",
        "paper_error": PAPER[of["size"]][0],
        "paper_log_likelihood": PAPER[of["size"]][1],
    }


def main(arguments: argparse.Namespace) -> None:
    rows = []
    for size in [10] if arguments.quick else sorted(PAPER):
        for name, prior in product(KERNELS, PRIORS):
            sets = range(2 if arguments.quick else arguments.sets)
            readings = [Reading(name, prior, size, one, arguments.seed) for one in sets]
            if arguments.finished:
                readings = [r for r in readings if (arguments.out / "runs" / r.name).exists()]
            if readings:
                rows.append(row(performed(readings, arguments.out / "runs")))
                print(rows[-1], flush=True)
    write_results(arguments.out, {"summary": rows})


if __name__ == "__main__":
    options = parser(__doc__)
    options.set_defaults(out=Path("out/stochastic_ep_readings"))
    options.add_argument("--sets", type=int, default=10, help="training sets of each size")
    options.add_argument("--finished", action="store_true", help="only sets that are done")
    run(main, options)
