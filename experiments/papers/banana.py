"""The banana stream: PVI 2018, sections 7.2.1 and D.1, figures 6, 10, 11 and 12.

400 labelled points, ordered by their first input, arrive in three batches; each batch owns ten
pseudo-points. Two ways of learning the hyperparameters are compared, variational inference (VI)
and maximum likelihood (ML), with NUTS over function and hyperparameters on all points as the
reference. In the failure case only ten points arrive in the second batch.

--quick leaves out NUTS and the batch fits; it takes the recorded NUTS run if the repository has it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from experiments.papers.banana_nuts import effective_sample_size, reference
from streaming_gp import plotting
from streaming_gp.datasets import Split, load_banana
from streaming_gp.metrics import error_rate, mean_negative_log_density
from streaming_gp.progress import progress_bar

STRATEGIES = {"VI": sgp.VariationalHyperparameters(), "ML": sgp.PointHyperparameters()}
NEWEST_ALONE = {"ML newest": sgp.PointHyperparameters(remember=False)}
"""What earlier batches said of the function has no say in these."""
PATHS = {
    "kernel.lengthscales/0": "lengthscale 1",
    "kernel.lengthscales/1": "lengthscale 2",
    "kernel.variance": "kernel variance",
}
Probability = Callable[[np.ndarray], np.ndarray]


@dataclass
class Stage:
    """What is known after a batch."""

    probability: Probability
    draws: dict[str, np.ndarray]
    Z: list[np.ndarray]
    record: Results
    data: tuple[np.ndarray, np.ndarray] = field(repr=False)


def make_model(strategy: Any, points: int, seed: int) -> sgp.StreamingGP:
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints(points),
        hyperparameters=strategy,
        seed=seed,
    )


def flat_draws(samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``{path or path/index: [S]}``."""
    lengthscales = samples["kernel.lengthscales"]
    return {
        "kernel.lengthscales/0": lengthscales[:, 0],
        "kernel.lengthscales/1": lengthscales[:, 1],
        "kernel.variance": samples["kernel.variance"],
    }


def summary(draws: dict[str, np.ndarray]) -> Results:
    return {
        PATHS[path]: {"mean": float(np.mean(values)), "sd": float(np.std(values))}
        for path, values in draws.items()
    }


def frozen_probability(model: sgp.StreamingGP, inputs: np.ndarray) -> Probability:
    """The model's probabilities on a grid now, for a figure that is drawn later."""
    values = np.asarray(model.predict_y(inputs)[0])
    return lambda _: values


def stream(
    name: str, batches: list[np.ndarray], data: Split, points: int, seed: int, grid: np.ndarray
) -> list[Stage]:
    """Stream ``batches`` (rows of the training data) into a model; one stage after each."""
    model, stages = make_model({**STRATEGIES, **NEWEST_ALONE}[name], points, seed), []
    for number, rows in enumerate(batches, start=1):
        batch = data.X[rows], data.Y[rows]
        with progress_bar(f"{name} batch {number} of {len(batches)} ({len(rows)} points)") as bar:
            info = model.update(batch, callback=bar)
        scores = model.predict_y(data.X_test)[0], data.Y_test
        density = model.predict_log_density((data.X_test, data.Y_test))
        record: Results = {
            "method": name,
            "batch": number,
            "points": len(rows),
            "pseudo_points": info.num_pseudo_points,
            "free_energy": info.free_energy,
            "seconds": info.seconds,
            "test_error": error_rate(*scores),
            "test_nlpd": mean_negative_log_density(density),
            "hyperparameters": summary(flat_draws(model.hyperparameter_samples(2000))),
        }
        print(
            f"{name} after batch {number}: test error {100 * record['test_error']:.2f} %, "
            f"mean negative log density {record['test_nlpd']:.3f}, {info.seconds:.1f} s"
        )
        draws = flat_draws(model.hyperparameter_samples(2000))
        Z = [factor.Z for factor in model.factors.values()]
        stages.append(Stage(frozen_probability(model, grid), draws, Z, record, batch))
    return stages


# ---- figures ----


def panel(axes: Any, title: str, probability: Probability, limits: Any) -> None:
    plotting.decision_contours(axes, probability, limits, RESOLUTION)
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_stage(axes: Any, title: str, stage: Stage, seen: list[Stage], limits: Any) -> None:
    for earlier in seen:
        plotting.labelled_points(axes, *earlier.data, faded=True)
    plotting.labelled_points(axes, *stage.data)
    panel(axes, title, stage.probability, limits)
    for Z in stage.Z[:-1]:
        plotting.pseudo_points(axes, Z, newest=False)
    plotting.pseudo_points(axes, stage.Z[-1])


def draw_stream(streams: dict[str, list[Stage]], nuts_run: Results | None, limits: Any) -> Any:
    """Decision contours after each batch, and the hyperparameters beside them (figs. 6, 11, 12)."""
    figure = plt.figure(figsize=(12.5, 8.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[3.1, 1.3])
    columns = max(len(stages) for stages in streams.values())
    axes = left.subplots(len(streams), columns, squeeze=False)
    for row, (name, stages) in zip(axes, streams.items(), strict=True):
        for number, (cell, stage) in enumerate(zip(row, stages, strict=True)):
            error = 100 * stage.record["test_error"]
            title = f"{name}, batch {number + 1}: error {error:.1f} %, "
            title += f"NLPD {stage.record['test_nlpd']:.3f}"
            draw_stage(cell, title, stage, stages[:number], limits)
    draw_hyperparameters(right.subplots(len(PATHS), 1), streams, nuts_run)
    return figure


def draw_hyperparameters(
    axes: Any, streams: dict[str, list[Stage]], nuts_run: Results | None
) -> None:
    reference_draws = flat_draws(nuts_run) if nuts_run is not None else {}
    for cell, (path, label) in zip(axes, PATHS.items(), strict=True):
        if reference_draws:
            plotting.hyperparameter_histogram(cell, reference_draws[path], "NUTS, all points")
        colors = plotting.batch_colors(len(streams["VI"]))
        for number, color in enumerate(colors):
            vi, ml = (streams[name][number].draws[path] for name in ("VI", "ML"))
            plotting.hyperparameter_density(cell, vi, f"VI, batch {number + 1}", color)
            cell.axvline(ml[0], color=color, linestyle="--", label=f"ML, batch {number + 1}")
        cell.set_xlabel(label, fontsize=8)
        cell.set_yticks([])
        cell.tick_params(labelsize=7)
    axes[0].legend(fontsize=6.5)


def draw_all_methods(final: dict[str, Stage | Probability], data: Split, limits: Any) -> Any:
    """All methods once every point was seen (fig. 10)."""
    figure, axes = plt.subplots(
        1, len(final), figsize=(2.9 * len(final), 3.1), layout="constrained", squeeze=False
    )
    for cell, (title, result) in zip(axes[0], final.items(), strict=True):
        plotting.labelled_points(cell, data.X, data.Y)
        panel(cell, title, result.probability if isinstance(result, Stage) else result, limits)
        for Z in result.Z if isinstance(result, Stage) else []:
            plotting.pseudo_points(cell, Z)
    return figure


# ---- the run ----

RESOLUTION = 60


def grid_inputs(limits: tuple[float, float, float, float]) -> np.ndarray:
    left, right, bottom, top = limits
    x, y = np.linspace(left, right, RESOLUTION), np.linspace(bottom, top, RESOLUTION)
    return np.stack([g.ravel() for g in np.meshgrid(x, y)], axis=1)


def ordered(data: Split) -> Split:
    order = np.argsort(data.X[:, 0], kind="stable")
    return Split(data.X[order], data.Y[order], data.X_test, data.Y_test)


def all_streams(
    batches: list[np.ndarray],
    data: Split,
    points: int,
    seed: int,
    grid: np.ndarray,
    names: Iterable[str] = STRATEGIES,
) -> dict[str, list[Stage]]:
    """The same batches under every strategy."""
    return {name: stream(name, batches, data, points, seed, grid) for name in names}


def nuts_record(run: Results) -> Results:
    draws = flat_draws(run)
    return {
        "test_error": float(run["test_error"]),
        "test_nlpd": float(run["test_nlpd"]),
        "samples": len(run["kernel.variance"]),
        "effective_sample_size": {
            PATHS[path]: effective_sample_size(values) for path, values in draws.items()
        },
        "hyperparameters": summary(draws),
    }


def records(streams: dict[str, list[Stage]]) -> list[Results]:
    return [stage.record for stages in streams.values() for stage in stages]


def main(arguments: argparse.Namespace) -> None:
    start, seed = time.perf_counter(), arguments.seed
    data = ordered(load_banana(arguments.data))
    limits = plotting.shared_limits(data.X)
    grid, everything = grid_inputs(limits), np.arange(len(data.X))
    thirds = np.array_split(everything, 3)
    scarce = np.split(everything, [len(thirds[0]), len(thirds[0]) + 10])

    streams = all_streams(thirds, data, 10, seed, grid)
    print("failure case: ten points in the second batch")
    failure = all_streams(scarce, data, 10, seed, grid, [*STRATEGIES, *NEWEST_ALONE])
    prior = make_model(STRATEGIES["VI"], 10, seed).hyperparameter_posterior
    assert prior is not None
    nuts_run = reference(data, prior, grid, arguments)
    save_figure(draw_stream(streams, nuts_run, limits), arguments.out, "banana_stream.png")
    save_figure(draw_stream(failure, nuts_run, limits), arguments.out, "banana_failure.png")

    results: Results = {
        "seed": seed,
        "stream": records(streams),
        "failure_case": records(failure),
    }
    final: dict[str, Any] = {f"{name}, streamed": stages[-1] for name, stages in streams.items()}
    if nuts_run is not None:
        results["nuts"] = nuts_record(nuts_run)
        final = {"NUTS": lambda _: nuts_run["grid"], **final}
    if not arguments.quick:
        print("all points in one batch, 30 pseudo-points")
        batch = all_streams([everything], data, 30, seed, grid)
        results["batch"] = records(batch)
        final.update({f"{name}, one batch": stages[0] for name, stages in batch.items()})
    save_figure(draw_all_methods(final, data, limits), arguments.out, "banana_methods.png")
    results["seconds"] = time.perf_counter() - start
    write_results(arguments.out, results)
    print(f"wrote {arguments.out / 'results.json'}; {results['seconds']:.0f} s in all")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--nuts-samples", type=int, default=1000, help="draws kept of NUTS")
    run(main, options)
