"""Figures as the papers draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from streaming_gp.pvi import History

Probability = Callable[[np.ndarray], np.ndarray]

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


def decision_contours(
    axes: Any,
    probability: Probability,
    limits: tuple[float, float, float, float],
    resolution: int = 60,
    color: str = "black",
) -> None:
    """Contours of a predicted probability over two inputs; ½ is drawn thick.

    :param axes: The matplotlib axes to draw into.
    :param probability: The function from inputs [N, 2] to probabilities [N] or [N, 1].
    :param limits: The left, right, bottom and top end of the axes.
    :param resolution: The number of grid points along each side.
    """
    left, right, bottom, top = limits
    grid = np.meshgrid(np.linspace(left, right, resolution), np.linspace(bottom, top, resolution))
    inputs = np.stack([g.ravel() for g in grid], axis=1)
    values = np.reshape(probability(inputs), grid[0].shape)
    widths = [1.8 if level == 0.5 else 0.7 for level in LEVELS]
    axes.contour(*grid, values, levels=LEVELS, colors=color, linewidths=widths)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def labelled_points(axes: Any, X: np.ndarray, Y: np.ndarray, faded: bool = False) -> None:
    """Two-dimensional inputs [N, 2], coloured by their labels [N, 1] of 0 and 1."""
    for label, color in ((0, "tab:blue"), (1, "tab:orange")):
        chosen = Y[:, 0] == label
        alpha = 0.15 if faded else 0.7
        axes.scatter(*X[chosen].T, s=8, color=color, alpha=alpha, linewidths=0)


def pseudo_points(axes: Any, Z: np.ndarray, newest: bool = True) -> None:
    """Pseudo-inputs [M, 2]; those of earlier batches are hollow."""
    face = "black" if newest else "white"
    axes.scatter(
        *Z.T, s=26, marker="o", facecolor=face, edgecolor="black", linewidths=0.9, zorder=3
    )


def hyperparameter_density(axes: Any, draws: np.ndarray, label: str, color: Any) -> None:
    """Smoothed density of positive draws [S], over the logarithm of their value."""
    from scipy.stats import gaussian_kde

    logs = np.log(draws)
    span = np.linspace(logs.min(), logs.max(), 200)
    axes.plot(np.exp(span), gaussian_kde(logs)(span), label=label, color=color)
    _plain_log_scale(axes)


def hyperparameter_histogram(axes: Any, draws: np.ndarray, label: str) -> None:
    """Histogram of positive draws [S], over the logarithm of their value."""
    edges = np.linspace(np.log(draws).min(), np.log(draws).max(), 31)
    weights = np.full(len(draws), 1.0 / (len(draws) * (edges[1] - edges[0])))
    axes.hist(draws, bins=np.exp(edges), weights=weights, label=label, color="0.8")
    _plain_log_scale(axes)


def _plain_log_scale(axes: Any) -> None:
    """A logarithmic axis labelled 0.5, 1, 2, ... and nowhere else."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def shared_limits(X: np.ndarray, margin: float = 0.3) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of two-dimensional inputs [N, 2], with a margin."""
    (left, bottom), (right, top) = X.min(axis=0) - margin, X.max(axis=0) + margin
    return left, right, bottom, top


def batch_colors(number: int) -> Sequence[Any]:
    """One colour for each batch, from early (light) to late (dark)."""
    import matplotlib as mpl

    return [mpl.colormaps["viridis_r"](x) for x in np.linspace(0.15, 0.95, number)]


def learning_curves(
    axes: Any, histories: Mapping[str, History], metric: str, against: str = "round"
) -> None:
    """A metric of federated runs against what they cost (PVI 2018, figures 4 and 5).

    :param axes: The matplotlib axes to draw into, both scales of which become logarithmic.
    :param histories: The history of each run, by label.
    :param metric: The name of a metric that ``evaluate`` gave.
    :param against: What the metric is drawn against: "round", "seconds", "simulated_seconds",
        "messages" or "bytes".
    """
    for label, history in histories.items():
        axes.loglog(history.column(against), history.column(metric), ".-", label=label)
    axes.set(xlabel=against.replace("_", " "), ylabel=metric.replace("_", " "))
    axes.legend(fontsize=8)
