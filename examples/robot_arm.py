"""Inverse dynamics of a robot arm: PVI 2018, section 7.2.2 and figure 7.

For each of seven joints, streams of 24 batches sorted by the position of each joint in turn; every
streaming GP system of the paper, with batch SGPR and the exact GP on all data as limits. Prints and
records test SMSE, mean negative log density and seconds after every batch.

Every run is kept in OUT/runs and never repeated: stop and start again at will; --finished makes
tables and figures of what there is. --quick runs six batches of one stream of the third joint.
--source simulated needs no data and is labelled so.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import scipy.linalg
import tensorflow as tf
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from barrett_stream import standardised
from common import Results, parser, run, save_figure, write_json, write_results
from robot_arm_tables import curve, figure_7, private_and_shared, side_by_side, summary

import streaming_gp as sgp
from streaming_gp.datasets import Split, load_robot_arm
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Candidates
from streaming_gp.gp.strategies.selection import greedy_variance
from streaming_gp.metrics import mean_negative_log_density, smse

NUM_JOINTS, NUM_BATCHES = 7, 24
NOISE_VARIANCE = 0.1
"""Where every method starts."""
POINTS_A_BATCH, POINTS_IN_ALL, MEMORY, EXACT_SUBSET = 10, 240, 1500, 2000
ALL_AT_ONCE = 0
"""Number of the 'stream' of a method that sees all data at once."""

Batches = list[np.ndarray]
Runner = Callable[[Split, Batches, int], Iterator[Results]]


@dataclass(frozen=True)
class Task:
    """One run: joints and streams are numbered from 1, as in the paper."""

    method: str
    joint: int
    stream: int
    seed: int
    batches: int
    source: str
    folder: str | None

    @property
    def name(self) -> str:
        """Of its file."""
        parts = f"joint{self.joint}-stream{self.stream}-{self.method}-{self.batches}-{self.seed}"
        return f"{Path(self.source).stem}-{parts}.json"


def kernel(dimension: int) -> gpflow.kernels.Kernel:
    """Where every method starts."""
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(dimension, 4.0))


def scores(model: Any, data: Split) -> Results:
    density = model.predict_log_density((data.X_test, data.Y_test))
    return {
        "test_smse": smse(model.predict_f(data.X_test)[0], data.Y_test),
        "test_nlpd": mean_negative_log_density(density),
    }


# ---- streams ----


def started(
    data: Split,
    pseudo_points: Any,
    hyperparameters: Any,
    seed: int,
    optimiser: sgp.LocalOptimiser | None = None,
    alpha: float = 0.0,
) -> sgp.StreamingGP:
    """Before its first batch."""
    return sgp.StreamingGP(
        kernel(data.X.shape[1]),
        gpflow.likelihoods.Gaussian(NOISE_VARIANCE),
        pseudo_points=pseudo_points,
        hyperparameters=hyperparameters,
        optimiser=optimiser,
        seed=seed,
        alpha=alpha,
    )


def streaming(
    pseudo_points: Any,
    hyperparameters: Any,
    optimiser: sgp.LocalOptimiser | None = None,
    alpha: float = 0.0,
) -> Runner:
    def stream(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
        model = started(data, pseudo_points, hyperparameters, seed, optimiser, alpha)
        for rows in batches:
            info = model.update((data.X[rows], data.Y[rows]))
            points = model.posterior_process.num_pseudo_points
            yield {"pseudo_points": points, "seconds": info.seconds, **scores(model, data)}

    return stream


def limited_memory(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """An exact GP on the newest points, trained from scratch after every batch."""
    for number in range(1, len(batches) + 1):
        start = time.perf_counter()
        rows = np.concatenate(batches[:number])[-MEMORY:]
        model = gpflow.models.GPR((data.X[rows], data.Y[rows]), kernel(data.X.shape[1]))
        train(model, 20)
        yield {
            "pseudo_points": len(rows),
            "seconds": time.perf_counter() - start,
            **scores(model, data),
        }


# ---- limits: all data at once ----


def batch_sgpr(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """Titsias' bound on all data, with as many points as the streams end with."""
    start = time.perf_counter()
    rows, prior = np.concatenate(batches), kernel(data.X.shape[1])
    X = data.X[rows]

    variance = prior(X, full_cov=False).numpy()
    candidates = Candidates(
        X,
        variance,
        lambda some: prior(X, X[some]).numpy(),
        lambda some: prior(X[some]).numpy(),
        lambda: np.ones(len(X)),
    )
    chosen = greedy_variance(candidates, POINTS_IN_ALL)
    model = gpflow.models.SGPR((X, data.Y[rows]), prior, X[chosen])
    train(model, 300)
    seconds = time.perf_counter() - start
    yield {"pseudo_points": POINTS_IN_ALL, "seconds": seconds, **scores(model, data)}


def sgpr_at_streamed_points(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """The same at the points that the first stream ends with: what choosing them batch by batch
    costs, apart from what compressing batches does.
    """
    start = time.perf_counter()
    rows = np.concatenate(batches)
    rows = rows[np.argsort(data.X[rows, 0], kind="stable")]
    stream = started(data, sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI, seed)
    for batch in np.array_split(rows, len(batches)):
        stream.update((data.X[batch], data.Y[batch]))
    Z = np.concatenate([one.Z for one in stream.posterior_process.pseudo_observations])
    model = gpflow.models.SGPR((data.X[rows], data.Y[rows]), kernel(data.X.shape[1]), Z)
    gpflow.set_trainable(model.inducing_variable, False)
    train(model, 100)
    seconds = time.perf_counter() - start
    yield {"pseudo_points": len(Z), "seconds": seconds, **scores(model, data)}


def exact(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """The exact GP on all data; its hyperparameters are trained on a random subset."""
    start = time.perf_counter()
    rows = np.concatenate(batches)
    X, Y = data.X[rows], data.Y[rows]
    subset = np.random.default_rng(seed).permutation(len(X))[:EXACT_SUBSET]
    model = gpflow.models.GPR((X[subset], Y[subset]), kernel(X.shape[1]))
    train(model, 100)
    noise = float(model.likelihood.variance.numpy())
    K = model.kernel(X).numpy()
    K[np.diag_indices_from(K)] += noise
    factor = scipy.linalg.cho_factor(K, lower=True, overwrite_a=True, check_finite=False)
    cross = model.kernel(X, data.X_test).numpy()
    mean = cross.T @ scipy.linalg.cho_solve(factor, Y, check_finite=False)
    white = scipy.linalg.solve_triangular(factor[0], cross, lower=True, check_finite=False)
    prior_variance = model.kernel(data.X_test, full_cov=False).numpy()
    variance = (prior_variance - np.sum(white**2, axis=0))[:, None] + noise
    density = -0.5 * (np.log(2.0 * np.pi * variance) + (data.Y_test - mean) ** 2 / variance)
    yield {
        "pseudo_points": len(X),
        "seconds": time.perf_counter() - start,
        "test_smse": smse(mean, data.Y_test),
        "test_nlpd": mean_negative_log_density(density),
    }


def train(model: Any, max_iterations: int) -> None:
    """From the noise variance that the streams start at."""
    model.likelihood.variance.assign(NOISE_VARIANCE)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": max_iterations}
    )


VI = sgp.VariationalHyperparameters()
ML = sgp.PointHyperparameters(remember=False)
FORGETTING = sgp.VariationalHyperparameters(forgetting_factor=0.7)
"""Early batches were fitted with few points, which the bound takes for noise: let that fade."""
AT_INPUTS = sgp.PrivatePseudoPoints("all", budget=POINTS_IN_ALL)
SHARED_POINTS = sgp.SharedPseudoPoints(POINTS_IN_ALL, growth=POINTS_A_BATCH, kept_batches=1)
SHARED = sgp.LocalOptimiser(max_iterations=10, location_iterations=20)
"""Fewer iterations, more of them at the centre of q(ε): with up to 240 locations to move, this
still takes nearly as long as the private points' 50."""
ANEW = sgp.SharedPseudoPoints(POINTS_IN_ALL, kept_batches=1)
STAYING = sgp.SharedPseudoPoints(POINTS_IN_ALL, kept_batches=1, fresh=0)
"""All points from the first batch, each update starting where they are: as in the published code of
Bui et al. (2017a), which also takes 50 iterations a batch."""

INDEPENDENT = sgp.IndependentPseudoPoints(POINTS_IN_ALL, growth=POINTS_A_BATCH)
"""As the growing shared points, but for a posterior in which they do not depend on ε."""

STREAMS: dict[str, Runner] = {
    "private VI": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI),
    "private VI forgetting": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), FORGETTING),
    "private VI power EP": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI, alpha=0.5),
    "automatic VI": streaming(sgp.PrivatePseudoPoints("auto"), VI),
    "automatic VI forgetting": streaming(sgp.PrivatePseudoPoints("auto"), FORGETTING),
    "inputs VI": streaming(AT_INPUTS, VI),
    "inputs VI forgetting": streaming(AT_INPUTS, FORGETTING),
    "private ML": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), ML),
    "conditional VI": streaming(sgp.ConditionalPseudoPoints(POINTS_A_BATCH), VI),
    "independent VI": streaming(INDEPENDENT, VI, SHARED),
    "shared VI from the first batch": streaming(ANEW, VI, SHARED),
    "shared VI staying": streaming(STAYING, VI),
    "shared ML from the first batch": streaming(ANEW, sgp.PointHyperparameters()),
    "shared ML staying": streaming(STAYING, sgp.PointHyperparameters()),
    "shared VI": streaming(SHARED_POINTS, VI, SHARED),
    "shared VI forgetting": streaming(SHARED_POINTS, FORGETTING, SHARED),
    "exact GP with limited memory": limited_memory,
}
LIMITS: dict[str, Runner] = {
    "batch SGPR": batch_sgpr,
    "batch SGPR at streamed points": sgpr_at_streamed_points,
    "exact GP on all data": exact,
}
NOT_DRAWN = {
    "shared VI from the first batch",
    "shared ML from the first batch",
    "exact GP on all data",
}
"""Their errors differ from the others' by orders of magnitude: they are in the tables."""
METHODS = {**STREAMS, **LIMITS}


# ---- one run after another ----


def perform(task: Task, threads: int | None = None) -> list[Results]:
    """Records after every batch of one run."""
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    data = standardised(load_robot_arm(task.source, task.folder), task.joint - 1)
    order = np.arange(len(data.X))
    if task.stream != ALL_AT_ONCE:
        order = np.argsort(data.X[:, task.stream - 1], kind="stable")
    batches = np.array_split(order, NUM_BATCHES)[: task.batches]
    found = METHODS[task.method](data, batches, task.seed + task.stream)
    return [{"batch": number, **record} for number, record in enumerate(found, start=1)]


def performed(tasks: list[Task], folder: Path, jobs: int) -> list[Results]:
    """Every run's records, from its file where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [task for task in tasks if not (folder / task.name).exists()]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are there already")
    with tqdm(total=len(missing), desc="runs", disable=not sys.stderr.isatty()) as bar:
        for task, records in _in_parallel(missing, jobs):
            write_json(folder / task.name, {**asdict(task), "jobs": jobs, "records": records})
            last, seconds = records[-1], sum(r["seconds"] for r in records)
            print(
                f"{task.method}, joint {task.joint}, stream {task.stream}: SMSE "
                f"{last['test_smse']:.4f}, NLPD {last['test_nlpd']:.3f}, {seconds:.0f} s",
                flush=True,
            )
            bar.update()
    return [json.loads((folder / task.name).read_text()) for task in tasks]


def _in_parallel(tasks: list[Task], jobs: int) -> Iterator[tuple[Task, list[Results]]]:
    if jobs == 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:  # a fresh TensorFlow each
        yield from pool.imap_unordered(partial(_named, threads=threads), tasks)


def _named(task: Task, threads: int) -> tuple[Task, list[Results]]:
    return task, perform(task, threads)


# ---- which runs ----


def chosen_tasks(arguments: argparse.Namespace) -> list[Task]:
    """The third joint first, and streams of every joint in turn: useful wherever it is stopped."""
    folder = None if arguments.data is None else str(arguments.data)

    def task(method: str, joint: int, stream: int) -> Task:
        batches = 6 if arguments.quick else NUM_BATCHES
        return Task(method, joint, stream, arguments.seed, batches, arguments.source, folder)

    joints = sorted(arguments.joints, key=lambda joint: (joint != 3, joint))
    streams = [
        task(method, joint, stream)
        for stream in arguments.streams
        for joint in joints
        for method in arguments.methods
        if method in STREAMS
    ]
    limits = [
        task(method, joint, ALL_AT_ONCE)
        for joint in joints
        for method in arguments.methods
        if method in LIMITS
    ]
    return limits + streams


def checked(arguments: argparse.Namespace) -> argparse.Namespace:
    unknown = set(arguments.methods) - set(METHODS)
    if unknown:
        raise InvalidDataError(f"no method {sorted(unknown)[0]!r}; there are {list(METHODS)}")
    if not {*arguments.joints, *arguments.streams} <= set(range(1, NUM_JOINTS + 1)):
        raise InvalidDataError("joints and streams are numbered 1 to 7")
    return arguments


def command(arguments: argparse.Namespace) -> str:
    """What to type for the same runs."""
    lists = ("joints", "streams", "methods")
    chosen = [f"--{name} " + shlex.join(map(str, getattr(arguments, name))) for name in lists]
    flags = [f"--{name}" for name in ("quick", "finished") if getattr(arguments, name)]
    source = f"--source {arguments.source} --seed {arguments.seed}"
    return " ".join(["python examples/robot_arm.py", *flags, source, *chosen])


def main(arguments: argparse.Namespace) -> None:
    tasks = chosen_tasks(checked(arguments))
    if arguments.source == "simulated":
        print("data of a simulated arm, not of a real one")
    folder = arguments.out / "runs"
    if arguments.finished:
        tasks = [task for task in tasks if (folder / task.name).exists()]
    if not tasks:
        raise InvalidDataError(f"no run is finished in {folder}")
    runs = performed(tasks, folder, arguments.jobs)
    rows = summary(runs)
    drawn = [[name for name in methods if name not in NOT_DRAWN] for methods in (STREAMS, LIMITS)]
    for key, label in (("test_smse", "test SMSE"), ("test_nlpd", "mean negative log density")):
        figure = figure_7(runs, key, label, *drawn)
        save_figure(figure, arguments.out, f"robot_arm_{key.removeprefix('test_')}.png")
    results = {
        "command": command(arguments),
        "source": arguments.source,
        "seed": arguments.seed,
        "joints": side_by_side(rows, list(METHODS)),
        "private_and_shared": private_and_shared(runs),
        "summary": rows,
        "curves": [curve(run) for run in runs],
    }
    write_results(arguments.out, results)


def with_defaults(arguments: argparse.Namespace) -> None:
    """--quick narrows what is not asked for by name."""
    quick = arguments.quick
    everything = list(range(1, NUM_JOINTS + 1))
    arguments.joints = arguments.joints or ([3] if quick else everything)
    arguments.streams = arguments.streams or ([1] if quick else everything)
    arguments.methods = arguments.methods or (
        ["private VI", "private ML"] if quick else list(METHODS)
    )
    main(arguments)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument(
        "--source", default="barrett", help="barrett, sarcos, simulated or a .mat file"
    )
    options.add_argument("--joints", type=int, nargs="+", help="torques to predict, 1 to 7")
    options.add_argument("--streams", type=int, nargs="+", help="joints to sort by, 1 to 7")
    options.add_argument("--methods", nargs="+", help=f"of {', '.join(METHODS)}")
    options.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options.add_argument("--finished", action="store_true", help="only runs that are done")
    run(with_defaults, options)
