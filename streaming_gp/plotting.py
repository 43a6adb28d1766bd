"""Figures of models and streams, and as the papers draw them; needs the ``plot`` extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.evaluate import Summary
from streaming_gp.gp import StreamingGP
from streaming_gp.pvi import History

__all__ = [
    "batch_colors",
    "decision_contours",
    "hyperparameter_density",
    "hyperparameter_histogram",
    "hyperparameters",
    "labelled_points",
    "learning_curves",
    "ledger",
    "posterior",
    "prequential",
    "pseudo_points",
    "shared_limits",
]

GRID = 200
"""Inputs along the axis of a posterior."""

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Contours of a probability."""

_PANELS = {  # single batches, and the line through or over them
    "SMSE": ("smse", "running_smse"),
    "error rate": ("error_rate", "running_error_rate"),
    "NLPD in nats": ("nlpd", "running_nlpd"),
    "seconds an update": ("seconds", "seconds"),
    "forgetting": ("forgetting", "forgetting"),
    "forgetting, NLPD in nats": ("forgetting_nlpd", "forgetting_nlpd"),
    "pseudo-points": ("num_pseudo_points", "num_pseudo_points"),
}


# ---- a streaming model, in one call each ----


def posterior(
    model: StreamingGP,
    axes: Any = None,
    *,
    limits: tuple[float, float] | None = None,
    dimension: int = 0,
    output: int = 0,
    data: tuple[Any, Any] | None = None,
) -> Any:
    """Mean of f and two standard deviations on either side, along one input.

    Other inputs are at the medians of the pseudo-inputs. Ticks at the bottom are pseudo-inputs.

    :param model: A model that has learned something.
    :param axes: The matplotlib axes to draw into; new ones if None.
    :param limits: The ends of the input; a tenth beyond the pseudo-inputs if None.
    :param dimension: The number of the input.
    :param output: The number of the output.
    :param data: X [N, D] and Y [N, P] to draw as dots.
    :returns: the axes.
    :raises InvalidDataError: if there are no factors, or no such input or output.
    """
    if not model.factors:
        raise InvalidDataError("wanted a model that has learned something")
    Z = np.concatenate([factor.Z for factor in model.factors.values()])
    _require_number("dimension", dimension, Z.shape[1])
    if limits is None:
        margin = 0.1 * float(np.ptp(Z[:, dimension])) or 1.0
        limits = Z[:, dimension].min() - margin, Z[:, dimension].max() + margin
    X = np.tile(np.median(Z, axis=0), (GRID, 1))
    X[:, dimension] = np.linspace(*limits, GRID)
    mean, variance = map(np.asarray, model.predict_f(X))
    _require_number("output", output, mean.shape[1])
    axes, grid, middle = _axes_or_new(axes), X[:, dimension], mean[:, output]
    width = 2.0 * np.sqrt(variance[:, output])
    axes.fill_between(grid, middle - width, middle + width, color="tab:blue", alpha=0.2, lw=0)
    axes.plot(grid, middle, color="tab:blue")
    if data is not None:
        points, values = map(np.asarray, data)
        axes.plot(points[:, dimension], values[:, output], ".", color="0.4", ms=3)
    bottom = axes.get_xaxis_transform()
    axes.plot(Z[:, dimension], np.zeros(len(Z)), "|", color="0.4", transform=bottom)
    axes.set(xlabel=f"input {dimension}", ylabel=f"f{output}", xlim=limits)
    return axes


def ledger(model: StreamingGP, axes: Any = None) -> Any:
    """A bar for each factor, as long as it has pseudo-points, from the first batch down.

    :param model: The model.
    :param axes: The matplotlib axes to draw into; new ones if None.
    :returns: the axes.
    """
    axes, names = _axes_or_new(axes), [*model.factors]
    sizes = [len(factor.Z) for factor in model.factors.values()]
    axes.barh(range(len(names)), sizes, color=batch_colors(len(names)))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="pseudo-points", title=f"prior × {len(names)} factors, {sum(sizes)} points")
    return axes


def hyperparameters(
    model: StreamingGP, figure: Any = None, *, num_samples: int = 1000
) -> np.ndarray:
    """The density of every hyperparameter under q(ε), or a line where it is a point.

    :param model: The model.
    :param figure: A matplotlib figure or subfigure, which gets the axes; a new one if None.
    :param num_samples: The number of draws that a density is smoothed from.
    :returns: the axes, one for each number.
    :raises InvalidDataError: if the model has no trainable parameters.
    """
    draws = {}
    for path, values in model.hyperparameter_samples(num_samples).items():
        columns = values.reshape(len(values), -1).T
        for number, column in enumerate(columns):
            draws[path if len(columns) == 1 else f"{path}[{number}]"] = column
    if not draws:
        raise InvalidDataError("the model has no hyperparameters that are trainable")
    rows = -(-len(draws) // 3)
    figure = _new_figure((9.0, 2.5 * rows)) if figure is None else figure
    cells = figure.subplots(rows, min(3, len(draws)), squeeze=False).ravel()
    for cell, (name, values) in zip(cells, draws.items(), strict=False):
        _density(cell, values)
        cell.set_title(name, fontsize=8)
        cell.set_yticks([])
    for cell in cells[len(draws) :]:
        cell.set_axis_off()
    return np.asarray(cells[: len(draws)])


def _density(axes: Any, values: np.ndarray) -> None:
    if np.ptp(values) == 0.0:
        axes.axvline(values[0], color="tab:blue")
    elif values.min() > 0.0:
        hyperparameter_density(axes, values, "", "tab:blue")
    else:
        from scipy.stats import gaussian_kde

        span = np.linspace(values.min(), values.max(), GRID)
        axes.plot(span, gaussian_kde(values)(span), color="tab:blue")


def _require_number(name: str, number: int, size: int) -> None:
    if not 0 <= number < size:
        raise InvalidDataError(f"{name} must be from 0 to {size - 1}, got {number}")


# ---- the scores of a stream ----


def prequential(evaluation: Summary, figure: Any = None) -> np.ndarray:
    """Scores before learning, seconds, forgetting and pseudo-points against batches seen.

    Dots are single batches, the line of a score is its running mean over points. A quantity that no
    batch has is left out.

    :param evaluation: The ``Summary`` of a whole stream, or of the batches so far.
    :param figure: A matplotlib figure or subfigure, which gets two rows of axes; a new one if None.
    :returns: the axes that hold something.
    """
    figure = _new_figure((9.0, 4.5)) if figure is None else figure
    records = evaluation.to_records()
    panels = {name: keys for name, keys in _PANELS.items() if _series(records, keys[1])[0]}
    axes = figure.subplots(2, -(-len(panels) // 2), squeeze=False).ravel()
    for ax, (name, (dots, line)) in zip(axes, panels.items(), strict=False):
        ax.plot(*_series(records, dots), ".", color="0.6")
        ax.plot(*_series(records, line), color="tab:blue")
        ax.set(xlabel="batches seen", ylabel=name)
        if ax.get_ylim()[0] > 0.0:
            ax.set_ylim(bottom=0.0)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return axes[: len(panels)]


def _series(records: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Batch numbers and values, where there is a value."""
    with_value = [record for record in records if record[key] is not None]
    return [record["batch"] for record in with_value], [record[key] for record in with_value]


# ---- figures as the papers draw them ----


def decision_contours(
    axes: Any,
    probability: Callable[[np.ndarray], np.ndarray],
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
    """Two-dimensional inputs [N, 2], coloured by their labels [N, 1] of 0 and 1.

    :raises InvalidDataError: if another label is among them, whose points would not be there.
    """
    if not np.isin(Y, (0, 1)).all():
        raise InvalidDataError(f"labels must be 0 or 1, got {np.unique(Y)[:10]}")
    for label, color in ((0, "tab:blue"), (1, "tab:orange")):
        rows = Y[:, 0] == label
        alpha = 0.15 if faded else 0.7
        axes.scatter(*X[rows].T, s=8, color=color, alpha=alpha, linewidths=0)


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
    span = np.linspace(logs.min(), logs.max(), GRID)
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


# ---- axes, where none are given ----


def _new_figure(size: tuple[float, float]) -> Any:
    """A figure of pyplot, so that it is shown in a notebook or by ``plt.show()``.

    :param size: Width and height in inches.
    """
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def _axes_or_new(axes: Any) -> Any:
    return _new_figure((6.0, 4.0)).subplots() if axes is None else axes
