"""Ten thousand batches of five points under a small budget, whose merges have few iterations.

What adds up over a long stream: memory, the error of the function, predictions that are not finite
or not positive, and log normalisers, which the free energies of the updates must explain up to what
merges lose. Scores are taken after 100 batches, 300, 1,000 and so on.

The stream is saved to OUT every 500 batches and goes on from there: stop and start again at will.
--quick streams 100 batches. --iterations says how many each merge has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import psutil
from common import Results, parser, run, write_json, write_results

import streaming_gp as sgp

BUDGET, NOISE_SD, KEPT_EVERY = 40, 0.1, 500
SCORED = (100, 300, 1000, 3000, 6000, 10000)


def truth(X: np.ndarray) -> np.ndarray:
    return np.sin(X[:, :1]) * np.cos(X[:, 1:])


def batch(seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, number])
    X = rng.uniform(-3.0, 3.0, (5, 2))
    return X, truth(X) + NOISE_SD * rng.standard_normal((5, 1))


def modules() -> Results:
    return {
        "kernel": gpflow.kernels.SquaredExponential(lengthscales=[1.5, 1.5]),
        "likelihood": gpflow.likelihoods.Gaussian(NOISE_SD**2),
    }


def begun(iterations: int, seed: int) -> sgp.StreamingGP:
    fixed: Any = sgp.FixedHyperparameters()
    return sgp.StreamingGP(
        **modules(),
        pseudo_points=sgp.PrivatePseudoPoints(5, budget=BUDGET),
        hyperparameters=fixed,
        optimiser=sgp.LocalOptimiser(
            max_iterations=max(iterations, 1), projection_iterations=iterations
        ),
        seed=seed,
    )


def evidence(model: sgp.StreamingGP) -> float:
    """The log normaliser of prior × factors, computed anew from the ledger."""
    return float(model.maximum_log_likelihood_objective())


def scores(model: sgp.StreamingGP, told: float, unexplained: float) -> Results:
    """How good predictions are, and whether the log normaliser is what updates said."""
    X = np.random.default_rng(0).uniform(-3.0, 3.0, (1000, 2))
    mean, variance = (np.asarray(part) for part in model.predict_f(X))
    error = mean - truth(X)
    return {
        "batches": model.num_updates,
        "points": model.posterior_process.num_pseudo_points,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "error_in_sd": float(np.sqrt(np.mean(error**2 / variance))),
        "least_variance": float(variance.min()),
        "all_finite": bool(np.isfinite([mean, variance]).all()),
        "evidence_per_datum": evidence(model) / (5 * model.num_updates),
        "told_per_datum": told / (5 * model.num_updates),
        "lost_by_merges_per_datum": (told - evidence(model)) / (5 * model.num_updates),
        "largest_unexplained": unexplained,
        "megabytes": psutil.Process().memory_info().rss / 2**20,
    }


def merges_next(model: sgp.StreamingGP) -> bool:
    return model.posterior_process.num_pseudo_points + 5 > BUDGET


def stream(folder: Path, iterations: int, seed: int, batches: int) -> list[Results]:
    """One record at each score; goes on where the folder's file says."""
    kept, progress = folder / "stream.npz", folder / "progress.json"
    records: list[Results] = []
    told = unexplained = 0.0
    if progress.exists():
        model = sgp.StreamingGP.load(kept, **modules())
        told, unexplained, records = json.loads(progress.read_text())[str(model.num_updates)]
    else:
        model = begun(iterations, seed)
    for number in range(model.num_updates, batches):
        merging, before = merges_next(model), evidence(model) if number else 0.0
        info = model.update(batch(seed, number))
        told += info.free_energy
        if not merging:  # a merge loses something, and everything else must add up
            difference = evidence(model) - before - info.free_energy
            unexplained = max(unexplained, abs(difference))
        if model.num_updates in SCORED or model.num_updates == batches:
            records.append(scores(model, told, unexplained))
            print(records[-1], flush=True)
        if model.num_updates % KEPT_EVERY == 0:
            all_so_far = json.loads(progress.read_text()) if progress.exists() else {}
            now = {str(model.num_updates): [told, unexplained, records]}
            write_json(progress, all_so_far | now)  # first: it knows every state that is saved
            model.save(kept)
    return records


def main(arguments: argparse.Namespace) -> None:
    batches = 100 if arguments.quick else 10000
    name = f"iterations-{arguments.iterations}-seed-{arguments.seed}"
    folder = arguments.out / "runs" / f"{name}{'-quick' * arguments.quick}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = stream(folder, arguments.iterations, arguments.seed, batches)
    merges = f"{arguments.iterations} iterations"
    write_json(folder / "scores.json", {"merges": merges, "scores": rows})
    kept = [json.loads(path.read_text()) for path in sorted(folder.parent.glob("*/scores.json"))]
    every = [{"merges": one["merges"], **row} for one in kept for row in one["scores"]]
    write_results(arguments.out, {"summary": every})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--iterations", type=int, default=2, help="iterations of each merge")
    run(main, options)
