"""The scores of a stream, batch by batch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from streaming_gp.plotting.figure import new_figure


class Evaluation(Protocol):
    """A stream that was evaluated, such as a ``streaming_gp.evaluate.Summary``."""

    def to_records(self) -> list[dict[str, Any]]:
        """One dict for each batch."""


_PANELS = {  # single batches, and the line through or over them
    "SMSE": ("smse", "running_smse"),
    "error rate": ("error_rate", "running_error_rate"),
    "NLPD in nats": ("nlpd", "running_nlpd"),
    "seconds an update": ("seconds", "seconds"),
    "forgetting": ("forgetting", "forgetting"),
    "forgetting, NLPD in nats": ("forgetting_nlpd", "forgetting_nlpd"),
    "pseudo-points": ("num_pseudo_points", "num_pseudo_points"),
}


def prequential(evaluation: Evaluation, figure: Any = None) -> np.ndarray:
    """Scores before learning, seconds, forgetting and pseudo-points against batches seen.

    Dots are single batches, the line of a score is its running mean over points. A quantity that no
    batch has is left out.

    :param evaluation: The ``Summary`` of a whole stream, or of the batches so far.
    :param figure: A matplotlib figure or subfigure, which gets two rows of axes; a new one if None.
    :returns: the axes that hold something.
    """
    figure = new_figure((9.0, 4.5)) if figure is None else figure
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
    known = [record for record in records if record[key] is not None]
    return [record["batch"] for record in known], [record[key] for record in known]
