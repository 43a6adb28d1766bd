"""A location in clutter: PGVI thesis (2024), figures 3.6 to 3.9 and 4.2 to 4.4, and its tables.

Data come from a Gaussian whose location is wanted, mixed with a known Gaussian of clutter. In one
dimension variational inference (VI), PVI with one data point a client, EP and generalised PVI (a
robust loss that knows no clutter, a Renyi divergence) stand beside the exact posterior, found on a
grid. In two dimensions PVI stands beside VI for 2 to 50 clients and for three schedules, under the
KL and Renyi divergences.

--quick takes two numbers of clients, and the KL divergence only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.integrate
import scipy.stats
from common import Results, parser, run, save_figure, write_results
from matplotlib.patches import Ellipse
from tqdm import tqdm

from streaming_gp import losses, mixture, pvi
from streaming_gp.expfam import IsotropicNormal, Normal, Renyi

PRIOR_VARIANCE = 10.0
GRID = np.linspace(-4.0, 8.0, 4001)
CLIENTS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 17, 20, 25, 50)
QUICK_CLIENTS = (2, 10)
SCHEDULE_CLIENTS = 10
PASSES, DAMPING = 8, 0.3
SLOW_PASSES = 25


@dataclass(frozen=True)
class Problem:
    """``(1 − share) N(center, covariance) + share N(clutter_mean, clutter_covariance)``."""

    name: str
    center: Any
    covariance: Any
    share: float
    clutter_mean: Any
    clutter_covariance: Any
    number: int

    @property
    def likelihood(self) -> mixture.Clutter:
        """As it is."""
        return mixture.Clutter(
            self.covariance, self.share, self.clutter_mean, self.clutter_covariance
        )

    def sample(self, seed: int) -> np.ndarray:
        """[N, D]."""
        rng = np.random.default_rng(seed)
        signal = rng.multivariate_normal(self.center, self.covariance, self.number)
        noise = rng.multivariate_normal(self.clutter_mean, self.clutter_covariance, self.number)
        return np.where(rng.uniform(size=(self.number, 1)) < self.share, noise, signal)


ROUND, TALL = np.eye(2), np.array([[3.0, 2.5], [2.5, 3.0]])
ONE_DIMENSIONAL = (
    Problem("unimodal", [2.0], [[1.0]], 0.5, [0.0], [[2.0]], 40),
    Problem("bimodal", [4.0], [[1.0]], 0.5, [0.0], [[0.75]], 40),
)
ISOTROPIC = Problem("isotropic", [1.5, 2.5], 0.8 * ROUND, 0.5, [1.0, 1.0], 1.5 * ROUND, 50)
CORRELATED = Problem(
    "correlated", [2.0, 2.0], TALL, 0.35, [1.0, 1.0], [[2.5, -1.8], [-1.8, 2.0]], 50
)
GENERALISED = Problem(
    "generalised", [2.0, 3.0], [[2.5, 2.0], [2.0, 2.7]], 0.45, [1.0, 1.0],
    [[2.2, -1.5], [-1.5, 2.0]], 50,
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One table of the thesis: PVI against the same thing with one client."""

    table: str
    problem: Problem
    family: Any
    alpha: float

    @property
    def rule(self) -> pvi.VariationalUpdate:
        """Exact local fits."""
        if self.alpha == 1.0:
            return pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
        divergence = Renyi(self.alpha)
        return pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS(), divergence=divergence)

    @property
    def visits(self) -> tuple[pvi.Sequential, int]:
        """One client after another, and how often: damped under a Renyi divergence, for which
        nothing says that undamped passes converge.
        """
        if self.alpha == 1.0:
            return pvi.Sequential(), PASSES
        return pvi.Sequential(damping=DAMPING), SLOW_PASSES


BY_CLIENTS = (
    Comparison("3.1", ISOTROPIC, Normal, 1.0),
    Comparison("4.1", ISOTROPIC, IsotropicNormal, 0.5),
)
BY_SCHEDULE = (
    Comparison("3.2", CORRELATED, Normal, 1.0),
    Comparison("4.2", GENERALISED, Normal, 0.6),
)
SLOW = {f"c{k}": 5.0 if k == 0 else 1.0 for k in range(SCHEDULE_CLIENTS)}
IN_PARALLEL: dict[str, tuple[Any, int]] = {
    "synchronous": (pvi.Synchronous(), 100),
    "asynchronous": (pvi.Asynchronous(durations=SLOW), 120),
}


def posterior(
    model: mixture.ClutterModel, Y: np.ndarray, number: int, rule: Any, schedule: Any, rounds: int
) -> Any:
    """Of so many clients with equal shares of the data."""
    shards = [(None, part) for part in np.array_split(Y, number)]
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    history = pvi.fit(server, schedule, rounds)
    if history[-1].failed or history[-1].refused:
        raise RuntimeError(f"clients failed: {history[-1].failed} {history[-1].refused}")
    return server.posterior


# ---- one dimension ----


def one_dimensional(problem: Problem, seed: int) -> Results:
    """Mean and sd of every method."""
    Y = problem.sample(seed)
    known = mixture.ClutterModel(problem.likelihood, PRIOR_VARIANCE)
    unknown = mixture.ClutterModel(mixture.Clutter(problem.covariance), PRIOR_VARIANCE)
    local = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
    robust = pvi.VariationalUpdate(
        batch_size=None, optimiser=pvi.LBFGS(), loss=losses.BetaLoss(1.5), divergence=Renyi(0.75)
    )
    number, visits = problem.number, pvi.Sequential()
    methods = {
        "VI": (known, 1, local, 1),
        "PVI": (known, number, local, PASSES),
        "EP": (known, number, pvi.PowerEPUpdate.one_step(), 20),
        "PGVI": (unknown, number, robust, PASSES),
    }
    found = {
        name: posterior(model, Y, clients, rule, visits, rounds)
        for name, (model, clients, rule, rounds) in tqdm(methods.items(), desc=problem.name)
    }
    density = exact(problem, Y)
    mean = integral(GRID * density)
    sd = np.sqrt(integral((GRID - mean) ** 2 * density))
    moments = {"exact": {"mean": mean, "sd": float(sd)}} | {
        name: {"mean": float(q.mean[0]), "sd": float(np.sqrt(q.variance[0]))}
        for name, q in found.items()
    }
    return {"data": Y[:, 0], "density": density, "moments": moments}


def exact(problem: Problem, Y: np.ndarray) -> np.ndarray:
    """The posterior's density on the grid."""
    F = GRID[:, None]
    log_p = scipy.stats.norm(0.0, np.sqrt(PRIOR_VARIANCE)).logpdf(GRID)
    for y in Y:
        many = np.tile(y, (len(GRID), 1))
        log_p += np.asarray(problem.likelihood.log_prob(many[:, :0], F, many))
    density = np.exp(log_p - log_p.max())
    found: np.ndarray = density / integral(density)
    return found


def integral(values: np.ndarray) -> float:
    return float(scipy.integrate.simpson(values, x=GRID))


def draw_one_dimensional(results: dict[str, Results], out: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for ax, (name, one) in zip(axes, results.items(), strict=True):
        ax.hist(one["data"], 25, density=True, color="0.85", label="data")
        ax.plot(GRID, one["density"], "k", lw=3, alpha=0.4, label="exact posterior")
        styles = {"VI": "-", "PVI": "--", "EP": "-.", "PGVI": ":"}
        for method, style in styles.items():
            moments = one["moments"][method]
            q = scipy.stats.norm(moments["mean"], moments["sd"])
            ax.plot(GRID, q.pdf(GRID), style, label=method)
        ax.set(title=name, xlabel="location", xlim=(-3.5, 7.0))
    axes[0].set_ylabel("density")
    axes[0].legend()
    save_figure(figure, out, "clutter_1d.png")


# ---- two dimensions ----


def difference(q: Any, reference: Any) -> Results:
    """As the thesis's tables have them."""
    (mean, covariance), (wanted, other) = (moments(one) for one in (q, reference))
    determinants = (np.linalg.slogdet(one)[1] for one in (covariance, other))
    return {
        "mean": float(np.linalg.norm(mean - wanted)),
        "covariance": float(np.linalg.norm(covariance - other)),
        "log_sgv": float(abs(np.subtract(*determinants))),
    }


def moments(q: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean [D] and covariance [D, D]."""
    return np.asarray(q.mean), np.asarray(q.scale @ np.transpose(q.scale))


def as_lists(q: Any) -> Results:
    mean, covariance = moments(q)
    return {"mean": mean.tolist(), "covariance": covariance.tolist()}


def by_clients(comparison: Comparison, numbers: tuple[int, ...], seed: int) -> list[Results]:
    """A row for one client, the reference, and for each number of clients."""
    problem = comparison.problem
    Y = problem.sample(seed)
    model = mixture.ClutterModel(problem.likelihood, PRIOR_VARIANCE, comparison.family)
    rows, reference = [], None
    for number in tqdm((1, *numbers), desc=f"table {comparison.table}"):
        visits = (pvi.Sequential(), 1) if number == 1 else comparison.visits
        q = posterior(model, Y, number, comparison.rule, *visits)
        reference = q if reference is None else reference
        rows.append({"label": number, **difference(q, reference), "posterior": as_lists(q)})
    return rows


def by_schedule(comparison: Comparison, seed: int) -> list[Results]:
    """A row for one client, the reference, and for each schedule with ten."""
    problem = comparison.problem
    Y = problem.sample(seed)
    model = mixture.ClutterModel(problem.likelihood, PRIOR_VARIANCE, comparison.family)
    reference = posterior(model, Y, 1, comparison.rule, pvi.Sequential(), 1)
    rows = [{"label": "one client", **difference(reference, reference)}]
    rows[0]["posterior"] = as_lists(reference)
    schedules = {"sequential": comparison.visits, **IN_PARALLEL}
    for name, (schedule, rounds) in tqdm(schedules.items(), desc=f"table {comparison.table}"):
        q = posterior(model, Y, SCHEDULE_CLIENTS, comparison.rule, schedule, rounds)
        rows.append({"label": name, **difference(q, reference), "posterior": as_lists(q)})
    return rows


def draw_posteriors(tables: dict[str, list[Results]], out: Path) -> None:
    """Two standard deviations of every posterior, the reference below."""
    height = len(tables) // 2
    figure, axes = plt.subplots(
        height, 2, figsize=(9, 4 * height), squeeze=False, constrained_layout=True
    )
    for ax, (table, rows) in zip(axes.flat, tables.items(), strict=True):
        for number, row in enumerate(rows):
            reference = number == 0
            label = str(row["label"])
            style = {"lw": 5, "ec": "0.8"} if reference else {"lw": 1, "ec": f"C{number % 10}"}
            ax.add_patch(_ellipse(row["posterior"], style, label))
        mean, spread = rows[0]["posterior"]["mean"], rows[0]["posterior"]["covariance"]
        reach = [3.0 * np.sqrt(spread[d][d]) for d in range(2)]
        ax.set(xlim=(mean[0] - reach[0], mean[0] + reach[0]), title=f"table {table}")
        ax.set(ylim=(mean[1] - reach[1], mean[1] + reach[1]))
        ax.legend(fontsize=7, ncols=2)
    save_figure(figure, out, "clutter_2d.png")


def _ellipse(q: Results, style: Results, label: str) -> Ellipse:
    values, vectors = np.linalg.eigh(q["covariance"])
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    wide, narrow = 4.0 * np.sqrt(values[1]), 4.0 * np.sqrt(values[0])
    return Ellipse(q["mean"], wide, narrow, angle=angle, fill=False, label=label, **style)


def main(arguments: argparse.Namespace) -> None:
    numbers = QUICK_CLIENTS if arguments.quick else CLIENTS
    one = {problem.name: one_dimensional(problem, arguments.seed) for problem in ONE_DIMENSIONAL}
    for name, found in one.items():
        for method, moments_ in found["moments"].items():
            print(f"{name:9s} {method:6s} mean {moments_['mean']:7.4f} sd {moments_['sd']:.4f}")
    size = 1 if arguments.quick else 2
    tables = {c.table: by_clients(c, numbers, arguments.seed) for c in BY_CLIENTS[:size]}
    tables |= {c.table: by_schedule(c, arguments.seed) for c in BY_SCHEDULE[:size]}
    for table, rows in tables.items():
        for row in rows[1:]:
            print(
                f"table {table} {row['label']!s:>12}: mean {row['mean']:.2e} covariance "
                f"{row['covariance']:.2e} log SGV {row['log_sgv']:.2e}"
            )
    draw_one_dimensional(one, arguments.out)
    draw_posteriors(tables, arguments.out)
    kept = [
        {"problem": name, "method": method, **of_one}
        for name, found in one.items()
        for method, of_one in found["moments"].items()
    ]
    write_results(arguments.out, {"seed": arguments.seed, "one_dimensional": kept, **tables})


if __name__ == "__main__":
    run(main, parser(__doc__))
