"""The seven torques of the Barrett arm: one model that mixes latent functions, and seven models.

The first batches of 500 data, sorted by the position of the first joint, as in PVI 2018, section
7.2.2. Both have as many pseudo-points: ten a batch for each torque. The one model starts as the
seven are, with W the identity, and learns what the torques have in common. Prints test SMSE by
joint, mean negative log density and CPU seconds.

--quick streams two batches of 100 data, with two points a batch for each torque.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import reduce
from operator import add
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

JOINTS = np.arange(7)
FULL_EFFORT = 200
"""Points of one torque up to which an update gets all iterations: the default of the package."""


def standardised(data: Split) -> Split:
    """Inputs and torques, scaled by the training set."""
    X_mean, X_sd, Y_mean, Y_sd = (
        statistic(part, axis=0) for part in (data.X, data.Y) for statistic in (np.mean, np.std)
    )
    return Split(
        (data.X - X_mean) / X_sd,
        (data.Y - Y_mean) / Y_sd,
        (data.X_test - X_mean) / X_sd,
        (data.Y_test - Y_mean) / Y_sd,
    )


def kernel(input_dim: int) -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(input_dim, 4.0))


def stream(
    the_kernel: gpflow.kernels.Kernel,
    data: Split,
    batches: list[np.ndarray],
    points: int,
    arguments: argparse.Namespace,
) -> tuple[sgp.StreamingGP, list[Results]]:
    """The model, and a record after each batch; ``points`` are those of one torque in a batch."""
    number = data.Y.shape[1]
    model = sgp.StreamingGP(
        the_kernel,
        gpflow.likelihoods.Gaussian(np.full(number, 0.1)),
        pseudo_points=sgp.PrivatePseudoPoints(points * number),
        optimiser=sgp.LocalOptimiser(full_effort_points=FULL_EFFORT * number),
        seed=arguments.seed,
    )
    records = []
    for rows in tqdm(batches, desc=f"{number} torques", disable=not sys.stderr.isatty()):
        start = time.process_time()
        model.update((data.X[rows], data.Y[rows]))
        seconds = time.process_time() - start
        mean = np.asarray(model.predict_f(data.X_test)[0])
        density = model.predict_log_density((data.X_test, data.Y_test))
        records.append(
            {
                "pseudo_points": model.posterior_process.num_pseudo_points,
                "smse": [smse(mean[:, [p]], data.Y_test[:, [p]]) for p in range(number)],
                "nlpd": mean_negative_log_density(density),
                "cpu_seconds": seconds,
            }
        )
    return model, records


def seven_models(data: Split, *rest: Any) -> list[Results]:
    """Records of one model for each torque, taken together."""
    alone = [Split(data.X, data.Y[:, [p]], data.X_test, data.Y_test[:, [p]]) for p in JOINTS]
    streams = [stream(kernel(data.X.shape[1]), one, *rest)[1] for one in alone]
    return [
        {key: reduce(add, (one[key] for one in records)) for key in records[0]}
        for records in zip(*streams, strict=True)
    ]


def correlations(mixing: gpflow.kernels.LinearCoregionalization) -> np.ndarray:
    """Prior correlations [P, P] of the outputs at one input."""
    variances = np.array([part.variance.numpy() for part in mixing.kernels])
    W = mixing.W.numpy()
    covariance = W * variances @ W.T
    sd = np.sqrt(covariance.diagonal())
    return np.asarray(covariance / np.outer(sd, sd))


def closest(torques: np.ndarray, learned: np.ndarray, number: int = 3) -> list[Results]:
    """The pairs of joints whose torques [N, P] are correlated most, and what is learned of them."""
    found = np.corrcoef(torques, rowvar=False)
    pairs = zip(*np.triu_indices(len(found), 1), strict=True)
    most = sorted(pairs, key=lambda pair: -abs(found[pair]))[:number]
    return [
        {
            "joints": f"{i + 1} and {j + 1}",
            "data": float(found[i, j]),
            "learned": float(learned[i, j]),
        }
        for i, j in most
    ]


def draw(records: dict[str, list[Results]], correlation: np.ndarray) -> plt.Figure:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.3), layout="constrained")
    numbers, batches = JOINTS + 1, np.arange(len(records["one model"])) + 1
    for name, marker in (("seven models", "o"), ("one model", "x")):
        left.plot(numbers, records[name][-1]["smse"], marker, label=name)
        means = [np.mean(record["smse"]) for record in records[name]]
        middle.plot(batches, means, f"{marker}-", label=name)
    left.set(xlabel="joint", ylabel="test SMSE after the last batch", xticks=numbers)
    middle.set(xlabel="batches seen", ylabel="test SMSE, mean over the joints", xticks=batches)
    for axis in (left, middle):
        axis.set_ylim(bottom=0.0)
    left.legend()
    image = right.imshow(correlation, cmap="RdBu_r", vmin=-1, vmax=1, extent=(0.5, 7.5, 7.5, 0.5))
    right.set(xlabel="joint", ylabel="joint", xticks=numbers, yticks=numbers)
    figure.colorbar(image, label="prior correlation that is learned")
    return figure


def main(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.batches <= 24:
        raise InvalidDataError(f"there are 24 batches, got --batches {arguments.batches}")
    data = standardised(load_robot_arm("barrett", arguments.data))
    order = np.argsort(data.X[:, 0], kind="stable")
    size, number, points = (100, 2, 2) if arguments.quick else (500, arguments.batches, 10)
    batches = [order[i * size : (i + 1) * size] for i in range(number)]
    mixing = gpflow.kernels.LinearCoregionalization(
        [kernel(data.X.shape[1]) for _ in JOINTS], W=np.eye(len(JOINTS))
    )
    seven = seven_models(data, batches, points, arguments)
    model, one = stream(mixing, data, batches, points, arguments)
    records = {"seven models": seven, "one model": one}
    summaries = [summary(name, found) for name, found in records.items()]
    for last in summaries:
        errors = ", ".join(f"{error:.3f}" for error in records[last["method"]][-1]["smse"])
        print(
            f"{last['method']}: {last['pseudo_points']} points, SMSE by joint {errors}, "
            f"NLPD {last['nlpd']:.3f}, {last['cpu_seconds']:.0f} CPU s"
        )
    results = {
        "seed": arguments.seed,
        "joints": by_joint(records, model),
        "summary": summaries,
        "batches": records,
        "correlations": correlations(mixing).tolist(),
        "closest": closest(data.Y, correlations(mixing)),
    }
    write_results(arguments.out, results)
    save_figure(draw(records, correlations(mixing)), arguments.out, "seven_torques.png")


def by_joint(records: dict[str, list[Results]], model: sgp.StreamingGP) -> list[Results]:
    """Test SMSE after the last batch, and the one model's pseudo-points, for each joint."""
    errors = {name: found[-1]["smse"] for name, found in records.items()}
    outputs = np.concatenate([factor.Z[:, -1] for factor in model.factors.values()])
    return [
        {"joint": int(p) + 1, "points": int(np.sum(outputs == p))}
        | {name: error[p] for name, error in errors.items()}
        for p in JOINTS
    ]


def summary(name: str, records: list[Results]) -> Results:
    """What a method reached, and what it took."""
    last = records[-1]
    return {
        "method": name,
        "batches": len(records),
        "pseudo_points": last["pseudo_points"],
        "mean_smse": float(np.mean(last["smse"])),
        "nlpd": last["nlpd"],
        "cpu_seconds": sum(record["cpu_seconds"] for record in records),
    }


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=4, help="number of batches, of 24")
    run(main, options)
