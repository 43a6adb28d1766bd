"""How much of what a batch says can a few pseudo-observations hold, whatever they refer to?

Given all earlier batches, the data of a batch say ½ Σ_k log(1 + λ_k) nats of f, with λ_k the
eigenvalues of its covariance over the variance of the noise. The k largest are what the best k
linear combinations of f can hold, at any points, old or new (Burt, Rasmussen & van der Wilk 2019):
no factor with k rows says more. Hyperparameters are exact maximum likelihood on a thousand points.

--quick looks at one stream and its first batches.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import Results, parser, run, write_results
from scipy import linalg

from experiments.benchmarks.methods import Hyperparameters
from experiments.benchmarks.streams import Batch, load
from experiments.benchmarks.tuning import maximum_likelihood

STREAMS = "kin8nm-500", "power-500", "barrett3-by1-500"
BATCHES, QUICK_BATCHES = 12, 3
FEW, SHARES = (10, 30), (0.5, 0.9, 0.99)


def nats(of: Hyperparameters, X: np.ndarray, earlier: np.ndarray) -> np.ndarray:
    """What the best linear combinations of f say, in nats and in descending order [N]."""
    kernel = of.kernel()
    K = np.array(kernel(X))
    if len(earlier) > 0:
        L = linalg.cholesky(kernel(earlier) + of.noise * np.eye(len(earlier)), lower=True)
        V = linalg.solve_triangular(L, np.array(kernel(earlier, X)), lower=True)
        K -= V.T @ V
    eigenvalues = np.maximum(linalg.eigvalsh(K)[::-1], 0.0)
    return np.asarray(0.5 * np.log1p(eigenvalues / of.noise))


def described(stream: str, batches: list[Batch], of: Hyperparameters) -> Results:
    """Of the last of some batches: its nats, the share of few rows, and the rows for a share."""
    *before, (X, _) = batches
    found = nats(of, X, np.concatenate([X for X, _ in before] or [X[:0]]))
    share = np.cumsum(found) / np.sum(found)
    return {
        "stream": stream,
        "batch": len(batches),
        "data": len(X),
        "nats": float(np.sum(found)),
        **{f"of_{number}_rows": float(share[number - 1]) for number in FEW},
        **{f"rows_for_{part}": int(np.searchsorted(share, part)) + 1 for part in SHARES},
    }


def main(arguments: argparse.Namespace) -> None:
    rows = []
    for name in STREAMS[:1] if arguments.quick else STREAMS:
        stream = load(name, arguments.data)
        of = maximum_likelihood(stream.joined(), 10 if arguments.quick else 100)
        batches = list(stream.batches[: QUICK_BATCHES if arguments.quick else BATCHES])
        for number in (1, len(batches)):
            rows.append(described(name, batches[:number], of))
            print(rows[-1], flush=True)
    write_results(arguments.out, {"summary": rows})


if __name__ == "__main__":
    run(main, parser(__doc__))
