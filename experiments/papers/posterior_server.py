"""SNEP against moment sharing: Bayesian logistic regression (Hasenclever et al. 2017, figure 2).

N = 50,000 labels from a logistic model of 50 weights with the prior N(0, 10 I), covariates
N(μ, P Pᵀ) with entries of μ uniform in [0, 1] and of P in [−1, 1], on three workers. Every worker
answers after one iteration, with 2, 10 or 50 draws by NUTS from its tilted distribution:

- SNEP: stochastic natural-gradient expectation propagation;
- SMS: sampling via moment sharing, damped. The unbiased precision needs more than 52 draws, and so
  it is shown with 60, 100 and 400 as well.

Both start at the Laplace approximation of every tenth datum, an equal share of it for each worker.
The reference is a long run of NUTS on all data. Recorded after each iteration: relative errors of
posterior mean and covariance, and the predictive RMSE. Every run is kept in OUT/runs and never
repeated: stop and start again at will. --quick runs N = 2,000 and 5 weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from common import Results, parser, run, save_figure, write_json, write_results
from tqdm import tqdm

from streaming_gp import datasets, linear, pvi, samplers
from streaming_gp.expfam import Normal

WORKERS, PRIOR_VARIANCE = 3, 10.0
LEARNING_RATES = {2: 0.05, 10: 0.1, 50: 0.25}  # of SNEP, at first, by draws an iteration
METRICS = {
    "mean_error": "relative error of the mean",
    "covariance_error": "relative error of the covariance",
    "rmse": "predictive RMSE",
}


@dataclass(frozen=True)
class Problem:
    """Its size, and the seed of its data."""

    num_data: int
    num_weights: int
    seed: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.num_data}-{self.num_weights}-{self.seed}"


@dataclass(frozen=True)
class Task:
    """One run: a method with so many draws an iteration, for so many iterations."""

    problem: Problem
    method: str
    samples: int
    rounds: int
    repetition: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.method}-{self.samples}-{self.rounds}-{self.repetition}-{self.problem.name}"


def model_of(problem: Problem) -> linear.GeneralisedLinearModel:
    return linear.logistic_regression(problem.num_weights, PRIOR_VARIANCE)


def data_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """X [N, d] and labels Y [N, 1]."""
    rng = np.random.default_rng(problem.seed)
    d = problem.num_weights
    root, centre = rng.uniform(-1.0, 1.0, (d, d)), rng.uniform(0.0, 1.0, d)
    X = centre + rng.standard_normal((problem.num_data, d)) @ root.T
    weights = np.sqrt(PRIOR_VARIANCE) * rng.standard_normal(d)
    probability = 1.0 / (1.0 + np.exp(-X @ weights))
    return X, (rng.uniform(size=problem.num_data) < probability).astype(float)[:, None]


# ---- the reference ----


def laplace(X: np.ndarray, Y: np.ndarray) -> Normal:
    """Gaussian at the mode, which Newton's method finds."""
    mode = np.zeros(X.shape[1])
    for _ in range(100):
        probability = 1.0 / (1.0 + np.exp(-X @ mode))
        gradient = X.T @ (Y[:, 0] - probability) - mode / PRIOR_VARIANCE
        weighted = X * (probability * (1.0 - probability))[:, None]
        precision = X.T @ weighted + np.eye(len(mode)) / PRIOR_VARIANCE
        step = np.linalg.solve(precision, gradient)
        mode = mode + step / max(1.0, float(np.linalg.norm(step)))
    return Normal(precision @ mode, precision)


def by_nuts(problem: Problem, chains: int, draws: int) -> Results:
    """Moments of the posterior, and Gelman and Rubin's R̂, the largest of all weights."""
    X, Y = (tf.constant(array) for array in data_of(problem))
    model, q = model_of(problem), laplace(X.numpy(), Y.numpy())
    prior, sampler = model.prior(), samplers.NUTS(num_samples=20)

    def log_density(theta: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return prior.log_prob(theta) + model.log_likelihood(theta, X, Y)

    step = tf.function(
        lambda chain, seed: sampler.step(chain, pvi.Target(log_density, q), seed),
        reduce_retracing=True,
    )
    kept = []
    for number in range(chains):
        chain, parts = sampler.begin(q.sample(1, problem.seed + number)[0]), []
        for part in tqdm(range(draws // 20 + 5), desc="NUTS", disable=not sys.stderr.isatty()):
            chain, found = step(chain, tf.constant([number, part]))
            parts.append(found.numpy())
        kept.append(np.concatenate(parts[5:]))
    between = np.var([np.mean(one, axis=0) for one in kept], axis=0, ddof=1)
    within = np.mean([np.var(one, axis=0, ddof=1) for one in kept], axis=0)
    together = np.concatenate(kept)
    return {
        "mean": together.mean(0).tolist(),
        "covariance": np.cov(together.T).tolist(),
        "r_hat": float(np.sqrt(np.max(1.0 + between / within))),
        "draws": len(together),
    }


def reference(problem: Problem, folder: Path, chains: int, draws: int) -> Results:
    path = folder / f"nuts-{chains}-{draws}-{problem.name}.json"
    if not path.exists():
        write_json(path, by_nuts(problem, chains, draws))
    found: Results = json.loads(path.read_text())
    print(f"NUTS: {found['draws']} draws, R̂ at most {found['r_hat']:.3f}")
    return found


# ---- one run after another ----


def rule_of(task: Task) -> tuple[pvi.UpdateRule, float]:
    """The rule, and the server's damping."""
    sampler = samplers.NUTS(task.samples, max_tree_depth=4)
    if task.method == "SMS":
        return pvi.MomentSharingUpdate(sampler), 0.2
    rate = Decaying(LEARNING_RATES[task.samples], 100.0)
    return pvi.SNEPUpdate(sampler, learning_rate=rate, sync=1, outer=1), 1.0


@dataclass(frozen=True)
class Decaying:
    """A learning rate ``ε / √(1 + t/t_0)``."""

    start: float
    after: float

    def __call__(self, iteration: tf.Tensor) -> tf.Tensor:
        return self.start / tf.sqrt(1.0 + tf.cast(iteration, tf.float64) / self.after)


def perform(task: Task, wanted: Results) -> Results:
    """Errors after each iteration."""
    X, Y = data_of(task.problem)
    model, (rule, damping) = model_of(task.problem), rule_of(task)
    shards = datasets.partition_iid(X, Y, WORKERS)
    clients = pvi.make_clients(model, shards, rule)
    server = pvi.Server(model.prior(), clients, seed=task.repetition)
    server.warm_start(laplace(X[::10], Y[::10]))
    mean, covariance = np.array(wanted["mean"]), np.array(wanted["covariance"])

    def evaluate(q: Any) -> dict[str, float]:
        probability = 1.0 / (1.0 + np.exp(-X @ np.asarray(q.mean)))
        return {
            "mean_error": relative(q.mean, mean),
            "covariance_error": relative(q.covariance, covariance),
            "rmse": float(np.sqrt(np.mean((probability - Y[:, 0]) ** 2))),
        }

    history = pvi.fit(
        server, pvi.Synchronous(damping=damping), task.rounds, evaluate=evaluate,
        callback=lambda one: say(task, one),
    )  # fmt: skip
    return {
        **{key: [one.metrics[key] for one in history] for key in METRICS},
        "without_effect": sum(len(one.refused) + len(one.failed) for one in history),
        "answers": WORKERS * task.rounds,
        "seconds": history[-1].seconds,
    }


def say(task: Task, one: pvi.Round) -> None:
    if one.round % 20 == 0:
        error = one.metrics["mean_error"]
        print(
            f"{task.method} {task.samples}: {one.round} of {task.rounds}, {error:.3f}", flush=True
        )


def relative(found: Any, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found) - wanted) / np.linalg.norm(wanted))


def performed(tasks: list[Task], folder: Path, wanted: Results) -> list[Results]:
    """Every run's record, from its file where there is one."""
    for task in tasks:
        path = folder / f"{task.name}.json"
        if not path.exists():
            write_json(path, {**asdict(task), **perform(task, wanted)})
    return [json.loads((folder / f"{task.name}.json").read_text()) for task in tasks]


# ---- table and figure ----


def summary(runs: list[Results]) -> list[Results]:
    """One row for each method and number of draws: means over the last tenth of the iterations."""
    rows = []
    for method, samples in dict.fromkeys((one["method"], one["samples"]) for one in runs):
        mine = [one for one in runs if (one["method"], one["samples"]) == (method, samples)]
        last = max(1, mine[0]["rounds"] // 10)
        rows.append(
            {
                "method": method,
                "samples": samples,
                "runs": len(mine),
                "iterations": mine[0]["rounds"],
                **{key: float(np.mean([one[key][-last:] for one in mine])) for key in METRICS},
                "worst_mean_error": float(np.max([one["mean_error"][-last:] for one in mine])),
                "without_effect": sum(one["without_effect"] for one in mine),
                "answers": sum(one["answers"] for one in mine),
                "seconds": float(np.mean([one["seconds"] for one in mine])),
            }
        )
    return rows


def curves(runs: list[Results]) -> plt.Figure:
    """Errors by iteration: SNEP in full lines, SMS in broken ones."""
    figure, panels = plt.subplots(1, len(METRICS), figsize=(13, 4), layout="constrained")
    sizes = sorted({one["samples"] for one in runs})
    for axes, (key, label) in zip(panels, METRICS.items(), strict=True):
        for one in runs:
            axes.plot(
                np.arange(1, one["rounds"] + 1), one[key], lw=1.3,
                ls="-" if one["method"] == "SNEP" else "--",
                color=plt.get_cmap("viridis")(sizes.index(one["samples"]) / len(sizes)),
                label=f"{one['method']}, {one['samples']}" if one["repetition"] == 0 else None,
            )  # fmt: skip
        axes.set(xlabel="iterations", ylabel=label, xscale="log", yscale="log")
    panels[0].axhline(0.05, color="0.6", lw=0.8)
    panels[0].legend(title="draws an iteration", fontsize=8)
    return figure


def main(arguments: argparse.Namespace) -> None:
    if arguments.quick:
        problem, chains, draws = Problem(2_000, 5, arguments.seed), 2, 400
        sizes = {"SNEP": {2: 60, 10: 60}, "SMS": {10: 30, 100: 30}}
    else:
        problem, chains, draws = Problem(50_000, 50, arguments.seed), 4, 500
        sizes = {
            "SMS": {2: 5, 10: 5, 50: 5, 60: 20, 100: 30, 400: 20},
            "SNEP": {2: 1000, 10: 400, 50: 120},
        }
    tasks = [
        Task(problem, method, samples, rounds, repetition)
        for repetition in range(arguments.repetitions)
        for method, of_method in sizes.items()
        for samples, rounds in of_method.items()
    ]
    folder = arguments.out / "runs"
    wanted = reference(problem, folder, chains, draws)
    runs = performed(tasks, folder, wanted)
    rows = summary(runs)
    for row in rows:
        print(
            f"{row['method']:>4}, {row['samples']:>3} draws: mean within {row['mean_error']:.1%}, "
            f"covariance within {row['covariance_error']:.1%}, RMSE {row['rmse']:.4f}; "
            f"{row['without_effect']} of {row['answers']} answers without effect, "
            f"{row['seconds']:.0f} s"
        )
    save_figure(curves(runs), arguments.out, "posterior_server.png")
    results = {
        "seed": arguments.seed,
        "reference": {key: wanted[key] for key in ("draws", "r_hat")},
        "summary": rows,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--repetitions", type=int, default=1, help="runs of each kind")
    run(main, options)
