"""Figures of a fit: error over the stream, calibration, the effect of each input, the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from streaming_gp import plotting
from streaming_gp.command_line.learned import Learned
from streaming_gp.command_line.scores import BINS

MOST_PANELS = 9


def of(learned: Learned) -> dict[str, Any]:
    """Figures by name; those of scores only where a batch was predicted before it was learned."""
    figures = {"inputs": _inputs(learned), "ledger": Figure(layout="constrained")}
    plotting.ledger(learned.table.model, figures["ledger"].subplots())
    if any("bins" in one for one in learned.records):
        figures |= {"error": _error(learned), "calibration": _calibration(learned)}
    figures["hyperparameters"] = Figure((9.0, 6.0), layout="constrained")
    plotting.hyperparameters(learned.table.model, figures["hyperparameters"])
    return figures


def _error(learned: Learned) -> Figure:
    """Each batch before it was learned, against the rows seen until then."""
    scored = [one for one in learned.records if "bins" in one]
    seen = np.cumsum([one["rows"] for one in learned.records])[-len(scored) :]
    is_classifier = learned.table.classes is not None
    errors = [
        one["error_rate"] if is_classifier else np.sqrt(one["squared_error"]) for one in scored
    ]
    figure = Figure((8.0, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(seen, errors, ".-")
    left.set(xlabel="rows seen", ylabel="error rate" if is_classifier else "root mean square error")
    left.set_ylim(bottom=0.0)
    right.plot(seen, [one["nlpd"] for one in scored], ".-")
    right.set(xlabel="rows seen", ylabel="NLPD in nats")
    return figure


def _calibration(learned: Learned) -> Figure:
    """Shares of targets below each predicted quantile, or of labels that were right."""
    bins = np.sum([one["bins"] for one in learned.records if "bins" in one], axis=0)
    axes = Figure((4.5, 4.5), layout="constrained").subplots()
    axes.plot([0.0, 1.0], [0.0, 1.0], color="0.7")
    if learned.table.classes is None:
        quantiles = np.arange(BINS + 1) / BINS
        axes.plot(quantiles, np.append(0.0, np.cumsum(bins[0])) / bins[0].sum(), ".-")
        axes.set(xlabel="predicted quantile", ylabel="share of targets below it")
    else:
        counts, right = bins
        some = counts > 0
        axes.plot((np.arange(BINS)[some] + 0.5) / BINS, right[some] / counts[some], ".-")
        axes.set(xlabel="predicted probability of the label", ylabel="share that was right")
    return axes.figure


def _inputs(learned: Learned) -> Figure:
    """The prediction along each of the inputs that change it most, others at their medians."""
    names = [*learned.effects()][:MOST_PANELS]
    rows = -(-len(names) // 3)
    figure = Figure((9.0, 2.6 * rows), layout="constrained")
    cells = figure.subplots(rows, min(3, len(names)), squeeze=False, sharey=True).ravel()
    for axes, name in zip(cells, names, strict=False):
        x, mean, deviation = learned.along(learned.inputs.index(name))
        axes.plot(x, mean)
        if learned.table.classes is None:
            low, high = mean[:, 0] - 2.0 * deviation[:, 0], mean[:, 0] + 2.0 * deviation[:, 0]
            axes.fill_between(x, low, high, alpha=0.2, lw=0)
        axes.set_xlabel(name)
    for axes in cells[len(names) :]:
        axes.set_axis_off()
    if learned.table.classes is not None:
        cells[0].legend([str(label) for label in learned.table.classes], fontsize=8)
    cells[0].set_ylabel("probability" if learned.table.classes else learned.table.target_names[0])
    return figure
