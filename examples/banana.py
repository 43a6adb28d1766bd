"""The banana stream: a classifier learns from three batches (PVI 2018, figures 6, 11 and 12).

400 labelled points, ordered by their first input, arrive in three batches; each batch owns ten
pseudo-points. Hyperparameters have a distribution that is learned (VI), or one value (ML). The
figure shows both beside NUTS on all points at once, from a run that is kept with the documentation.
More methods are in ``python -m experiments.papers.banana``.

--quick is the same: this takes seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from streaming_gp import plotting
from streaming_gp.datasets import load_banana
from streaming_gp.metrics import error_rate, mean_negative_log_density
from streaming_gp.progress import progress_bar

STRATEGIES: dict[str, Any] = {
    "VI": sgp.VariationalHyperparameters(),
    "ML": sgp.PointHyperparameters(),
}
NUTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "banana_nuts.npz"
RESOLUTION = 60


def columns_of(samples: Any) -> dict[str, np.ndarray]:
    """Draws of each hyperparameter [S]."""
    lengthscales = samples["kernel.lengthscales"]
    return {
        "lengthscale 1": lengthscales[:, 0],
        "lengthscale 2": lengthscales[:, 1],
        "kernel variance": samples["kernel.variance"],
    }


def draw_batch(axes: Any, model: sgp.StreamingGP, seen: list[Any], limits: Any, title: str) -> None:
    """Contours of the probability, all data so far, and every batch's pseudo-points."""
    for X, Y in seen[:-1]:
        plotting.labelled_points(axes, X, Y, faded=True)
    plotting.labelled_points(axes, *seen[-1])
    plotting.decision_contours(axes, lambda X: model.predict_y(X)[0], limits, RESOLUTION)
    for factor in model.factors.values():
        plotting.pseudo_points(axes, factor.Z, newest=factor is list(model.factors.values())[-1])
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_hyperparameters(panels: Any, draws: dict[str, list[dict[str, np.ndarray]]]) -> None:
    """What is known of each hyperparameter after each batch, beside NUTS on all points."""
    nuts = columns_of(np.load(NUTS)) if NUTS.exists() else {}
    for axes, name in zip(panels, draws["VI"][0], strict=True):
        if nuts:
            plotting.hyperparameter_histogram(axes, nuts[name], "NUTS, all points")
        for number, color in enumerate(plotting.batch_colors(3)):
            values = draws["VI"][number][name]
            plotting.hyperparameter_density(axes, values, f"VI, batch {number + 1}", color)
            point = draws["ML"][number][name][0]
            axes.axvline(point, color=color, linestyle="--", label=f"ML, batch {number + 1}")
        axes.set_xlabel(name, fontsize=8)
        axes.set_yticks([])
        axes.tick_params(labelsize=7)
    panels[0].legend(fontsize=6.5)


def main(arguments: argparse.Namespace) -> None:
    data = load_banana(arguments.data)
    order = np.argsort(data.X[:, 0], kind="stable")
    batches = [(data.X[rows], data.Y[rows]) for rows in np.array_split(order, 3)]
    limits = plotting.shared_limits(data.X)
    figure = plt.figure(figsize=(12.5, 8.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[3.1, 1.3])
    panels = left.subplots(2, 3)
    draws: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in STRATEGIES}
    records: list[Results] = []
    for row, (name, strategy) in zip(panels, STRATEGIES.items(), strict=True):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
            gpflow.likelihoods.Bernoulli(),
            pseudo_points=sgp.PrivatePseudoPoints(10),
            hyperparameters=strategy,
            seed=arguments.seed,
        )
        for number, batch in enumerate(batches):
            with progress_bar(f"{name} batch {number + 1}") as bar:
                info = model.update(batch, callback=bar)
            error = error_rate(model.predict_y(data.X_test)[0], data.Y_test)
            density = model.predict_log_density((data.X_test, data.Y_test))
            nlpd = mean_negative_log_density(density)
            draws[name].append(columns_of(model.hyperparameter_samples(2000)))
            records.append(
                {"method": name, "batch": number + 1, "pseudo_points": info.num_pseudo_points,
                 "free_energy": info.free_energy, "seconds": info.seconds, "test_error": error,
                 "test_nlpd": nlpd}
            )  # fmt: skip
            print(
                f"{name} after batch {number + 1}: test error {100 * error:.2f} %, "
                f"mean negative log density {nlpd:.3f}, {info.seconds:.1f} s"
            )
            title = f"{name}, batch {number + 1}: error {100 * error:.1f} %, NLPD {nlpd:.3f}"
            draw_batch(row[number], model, batches[: number + 1], limits, title)
    draw_hyperparameters(right.subplots(3, 1), draws)
    save_figure(figure, arguments.out, "banana_stream.png")
    write_results(arguments.out, {"seed": arguments.seed, "stream": records})


if __name__ == "__main__":
    run(main, parser(__doc__))
