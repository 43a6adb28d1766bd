"""A long stream under a budget: seconds and memory of every update, and the error.

1,000 batches of 100 noisy values of a function of two inputs; ten private pseudo-points a batch,
never more than 300 together, variational hyperparameters.

--quick streams 120 batches under a budget of 60.
"""

from __future__ import annotations

import argparse
import sys
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import psutil
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

import streaming_gp as sgp
from streaming_gp.metrics import mean_negative_log_density, smse

NOISE_SD = 0.1
WARM_UP = 100
"""Updates after which time and memory are compared: all is compiled by then, the budget reached."""


def truth(X: np.ndarray) -> np.ndarray:
    return np.sin(1.5 * X[:, :1]) * np.cos(X[:, 1:])


def observed(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-5.0, 5.0, (number, 2))
    return X, truth(X) + NOISE_SD * rng.standard_normal((number, 1))


def stream(num_batches: int, budget: int, seed: int) -> list[Results]:
    """One record after each batch; scores after every tenth."""
    rng = np.random.default_rng(seed)
    test = observed(rng, 1000)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(10, budget=budget),
        seed=seed,
    )
    process, records = psutil.Process(), []
    for number in tqdm(range(1, num_batches + 1), desc="batches", disable=not sys.stderr.isatty()):
        busy = time.process_time()
        info = model.update(observed(rng, 100))
        record: Results = {
            "batch": number,
            "seconds": info.seconds,
            "processor_seconds": time.process_time() - busy,
            "megabytes": process.memory_info().rss / 2**20,
            "pseudo_points": model.posterior_process.num_pseudo_points,
        }
        if number % 10 == 0:
            record["test_smse"] = smse(model.predict_f(test[0])[0], truth(test[0]))
            record["test_nlpd"] = mean_negative_log_density(model.predict_log_density(test))
        records.append(record)
    return records


def _mean(records: list[Results], key: str) -> float:
    return float(np.mean([record[key] for record in records]))


def summary(records: list[Results]) -> Results:
    """Late updates beside those after the warm-up; processor seconds know of no neighbours."""
    warm = min(WARM_UP, len(records) // 3)
    first, last = records[warm : 2 * warm], records[-warm:]
    early, late = _mean(first, "seconds"), _mean(last, "seconds")
    after = [record["megabytes"] for record in records[warm:]]
    return {
        "batches": len(records),
        "pseudo_points": max(record["pseudo_points"] for record in records),
        "early_seconds": early,
        "late_seconds": late,
        "ratio": late / early,
        "processor_ratio": _mean(last, "processor_seconds") / _mean(first, "processor_seconds"),
        "megabytes_grown": float(max(after) - after[0]),
        "test_smse": records[-1]["test_smse"],
        "test_nlpd": records[-1]["test_nlpd"],
    }


def draw(records: list[Results]) -> plt.Figure:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    batches = np.array([record["batch"] for record in records])
    seconds = np.array([record["seconds"] for record in records])
    left.plot(batches, seconds, ".", markersize=2)
    left.set(xlabel="batches seen", ylabel="seconds an update", ylim=(0, 3 * np.median(seconds)))
    middle.plot(batches, [record["megabytes"] for record in records])
    middle.set(xlabel="batches seen", ylabel="resident memory, MB", ylim=(0, None))
    scored = [record for record in records if "test_smse" in record]
    right.semilogy([r["batch"] for r in scored], [r["test_smse"] for r in scored])
    right.set(xlabel="batches seen", ylabel="test SMSE of the function")
    return figure


def main(arguments: argparse.Namespace) -> None:
    num_batches, budget = (120, 60) if arguments.quick else (1000, 300)
    records = stream(num_batches, budget, arguments.seed)
    found = summary(records)
    print(
        f"{found['batches']} batches, at most {found['pseudo_points']} points: "
        f"{found['late_seconds']:.2f} s an update at the end, {found['ratio']:.2f} times that "
        f"after the warm-up; {found['megabytes_grown']:.0f} MB grown; "
        f"SMSE {found['test_smse']:.5f}"
    )
    save_figure(draw(records), arguments.out, "endless_stream.png")
    results = {
        "seed": arguments.seed,
        "summary": found,
        "batches": records,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
