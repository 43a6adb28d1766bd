"""What a streaming model knows, in one call each."""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP
from streaming_gp.plotting.figure import axes_or_new, new_figure
from streaming_gp.plotting.papers import batch_colors, hyperparameter_density

GRID = 200
"""Inputs along the axis of a posterior."""


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
    Z = _pseudo_inputs(model)
    _require_number("dimension", dimension, Z.shape[1])
    ends = _ends(Z[:, dimension]) if limits is None else limits
    X = np.tile(np.median(Z, axis=0), (GRID, 1))
    X[:, dimension] = np.linspace(*ends, GRID)
    mean, variance = map(np.asarray, model.predict_f(X))
    _require_number("output", output, mean.shape[1])
    axes, grid, middle = axes_or_new(axes), X[:, dimension], mean[:, output]
    width = 2.0 * np.sqrt(variance[:, output])
    axes.fill_between(grid, middle - width, middle + width, color="tab:blue", alpha=0.2, lw=0)
    axes.plot(grid, middle, color="tab:blue")
    if data is not None:
        points, values = map(np.asarray, data)
        axes.plot(points[:, dimension], values[:, output], ".", color="0.4", ms=3)
    axes.plot(Z[:, dimension], np.zeros(len(Z)), "|", color="0.4", transform=_at_the_bottom(axes))
    axes.set(xlabel=f"input {dimension}", ylabel=f"f{output}", xlim=ends)
    return axes


def ledger(model: StreamingGP, axes: Any = None) -> Any:
    """A bar for each factor, as long as it has pseudo-points, from the first batch down.

    :param model: The model.
    :param axes: The matplotlib axes to draw into; new ones if None.
    :returns: the axes.
    """
    axes, names = axes_or_new(axes), [*model.factors]
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
    draws = _columns(model.hyperparameter_samples(num_samples))
    if not draws:
        raise InvalidDataError("the model has no hyperparameters that are trainable")
    rows = -(-len(draws) // 3)
    figure = new_figure((9.0, 2.5 * rows)) if figure is None else figure
    cells = figure.subplots(rows, min(3, len(draws)), squeeze=False).ravel()
    for cell, (name, values) in zip(cells, draws.items(), strict=False):
        _density(cell, values)
        cell.set_title(name, fontsize=8)
        cell.set_yticks([])
    for cell in cells[len(draws) :]:
        cell.set_axis_off()
    return np.asarray(cells[: len(draws)])


def _pseudo_inputs(model: StreamingGP) -> np.ndarray:
    if not model.factors:
        raise InvalidDataError("wanted a model that has learned something")
    return np.concatenate([factor.Z for factor in model.factors.values()])


def _require_number(name: str, number: int, size: int) -> None:
    if not 0 <= number < size:
        raise InvalidDataError(f"{name} must be from 0 to {size - 1}, got {number}")


def _ends(values: np.ndarray) -> tuple[float, float]:
    margin = 0.1 * float(np.ptp(values)) or 1.0
    return float(values.min()) - margin, float(values.max()) + margin


def _at_the_bottom(axes: Any) -> Any:
    return axes.get_xaxis_transform()


def _columns(samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws [S] of each number, by path and index."""
    found = {}
    for path, values in samples.items():
        flat = values.reshape(len(values), -1)
        for number in range(flat.shape[1]):
            found[path if flat.shape[1] == 1 else f"{path}[{number}]"] = flat[:, number]
    return found


def _density(axes: Any, values: np.ndarray) -> None:
    if np.ptp(values) == 0.0:
        axes.axvline(values[0], color="tab:blue")
    elif values.min() > 0.0:
        hyperparameter_density(axes, values, "", "tab:blue")
    else:
        from scipy.stats import gaussian_kde

        span = np.linspace(values.min(), values.max(), GRID)
        axes.plot(span, gaussian_kde(values)(span), color="tab:blue")
