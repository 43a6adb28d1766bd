"""Axes to draw into, where none are given."""

from __future__ import annotations

from typing import Any


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of pyplot, so that it is shown in a notebook or by ``plt.show()``.

    :param size: Width and height in inches.
    """
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def axes_or_new(axes: Any) -> Any:
    """The axes, or those of a new figure if None."""
    return new_figure((6.0, 4.0)).subplots() if axes is None else axes
