"""One stream of real robot-arm data: PVI 2018, section 7.2.2, third joint, timed.

12,000 points of the Barrett WAM, sorted by the position of one joint, arrive in 24 batches of 500;
each owns ten private pseudo-points. Prints test SMSE, mean negative log density and seconds, and
draws error and seconds against batches.

--quick streams the first six batches only.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

import streaming_gp as sgp
from streaming_gp.datasets import Split, load_robot_arm
from streaming_gp.errors import InvalidDataError
from streaming_gp.metrics import mean_negative_log_density, smse


def standardised(data: Split, joint: int) -> Split:
    """Inputs and one torque, scaled by the training set."""
    mean, sd = data.X.mean(axis=0), data.X.std(axis=0)
    column = slice(joint, joint + 1)
    y_mean, y_sd = data.Y[:, column].mean(), data.Y[:, column].std()
    return Split(
        (data.X - mean) / sd,
        (data.Y[:, column] - y_mean) / y_sd,
        (data.X_test - mean) / sd,
        (data.Y_test[:, column] - y_mean) / y_sd,
    )


def stream(
    data: Split, batches: list[np.ndarray], points: sgp.PrivatePseudoPoints, seed: int
) -> list[Results]:
    """One record after each batch."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(data.X.shape[1], 4.0)),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=points,
        hyperparameters=sgp.VariationalHyperparameters(),
        seed=seed,
    )
    records: list[Results] = []
    for rows in tqdm(batches, desc="batches", disable=not sys.stderr.isatty()):
        info = model.update((data.X[rows], data.Y[rows]))
        density = model.predict_log_density((data.X_test, data.Y_test))
        records.append(
            {
                "batch": len(records) + 1,
                "pseudo_points": model.posterior_process.num_pseudo_points,
                "test_smse": smse(model.predict_f(data.X_test)[0], data.Y_test),
                "test_nlpd": mean_negative_log_density(density),
                "update_seconds": info.seconds,
            }
        )
    return records


def draw(records: list[Results]) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    batches = [record["batch"] for record in records]
    left.semilogy(batches, [record["test_smse"] for record in records])
    left.set(xlabel="batches seen", ylabel="test SMSE")
    right.plot(batches, [record["update_seconds"] for record in records])
    right.set(xlabel="batches seen", ylabel="seconds an update", ylim=(0, None))
    return figure


def main(arguments: argparse.Namespace) -> None:
    if not (1 <= arguments.joint <= 7 and 1 <= arguments.sorted_by <= 7):
        raise InvalidDataError("joints are numbered 1 to 7")
    data = standardised(load_robot_arm("barrett", arguments.data), arguments.joint - 1)
    order = np.argsort(data.X[:, arguments.sorted_by - 1], kind="stable")
    batches = np.array_split(order, 24)[: 6 if arguments.quick else 24]
    start = time.perf_counter()
    number: Any = "auto" if arguments.points == "auto" else int(arguments.points)
    records = stream(data, batches, sgp.PrivatePseudoPoints(number), arguments.seed)
    seconds = sum(record["update_seconds"] for record in records)
    last = records[-1]
    print(
        f"joint {arguments.joint}, sorted by joint {arguments.sorted_by}: "
        f"test SMSE {last['test_smse']:.4f}, NLPD {last['test_nlpd']:.3f}, "
        f"{last['pseudo_points']} points; updates {seconds:.1f} s, "
        f"with scoring {time.perf_counter() - start:.1f} s"
    )
    results = {
        "seed": arguments.seed,
        "summary": [{**last, "total_update_seconds": seconds}],
        "batches": records,
    }
    save_figure(draw(records), arguments.out, "barrett_stream.png")
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--joint", type=int, default=3, help="torque to predict, 1 to 7")
    options.add_argument("--sorted-by", type=int, default=1, help="joint whose position orders")
    options.add_argument("--points", default="10", help="pseudo-points a batch, or auto")
    run(main, options)
