"""Tables and figures of federated_sweeps.py."""

from __future__ import annotations

from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from common import Results
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.federated_runs import PARTITIONS
from experiments.means import mean_and_error
from experiments.papers.federated_sweep_methods import METHODS, VISITS, Method

LIMIT = 0.03
"""The error to which the paper counts messages."""
LEAST = 0.015
"""No run has a smaller error."""


def best_of(runs: list[Results]) -> list[Results]:
    """For each partition and method, the run with the least error after its last round."""
    found = []
    for partition, method in product(PARTITIONS, METHODS):
        mine = [one for one in runs if (one["partition"], one["method"]) == (partition, method)]
        if mine:
            best = min(mine, key=lambda one: one["test_error"][-1])
            found.append({**best, "tried": len(mine)})
    return found


def sweep_rows(runs: list[Results]) -> list[Results]:
    """What each setting came to on held-back images."""
    names = ("partition", "method", "learning_rate", "setting")
    return [
        {name: one[name] for name in names}
        | {"error": one["test_error"][-1], "best_error": min(one["test_error"])}
        | {"nll": one["test_nll"][-1], "epochs": one["epochs"][-1]}
        | {"free_energy": one.get("free_energy", [None])[-1]}  # earlier runs lack it
        for one in runs
    ]


def summary(runs: list[Results], chosen: list[Results]) -> list[Results]:
    """The chosen settings that were run on all images, with means over seeds of their scores."""
    rows = []
    for best in chosen:
        names = ("partition", "method", "learning_rate", "setting")
        row = {name: best[name] for name in names} | {"tried": best["tried"]}
        row["held_back_error"] = best["test_error"][-1]
        mine = [one for one in runs if all(one[name] == best[name] for name in names)]
        if mine:
            rows.append(row | means(mine))
    return rows


def means(runs: list[Results]) -> Results:
    """Over runs with several seeds: last scores, and messages to an error of three per cent."""
    last = [
        {name: one[f"test_{name}"][-1] for name in ("error", "nll", "calibration")}
        | {name: one[name][-1] for name in ("messages", "epochs", "seconds")}
        for one in runs
    ]
    found = {name: mean_and_error(last, name) for name in last[0]}
    row: Results = {name: mean for name, (mean, _) in found.items()}
    there = [messages_to(LIMIT, one) for one in runs]
    known = [number for number in there if number is not None]
    row["messages_to_3_percent"] = max(known) if len(known) == len(there) else None
    return row | {"spread": found["error"][1], "seeds": len(runs)}


def messages_to(limit: float, one: Results) -> int | None:
    """How many were sent until a scored round had at most this error."""
    reached = np.flatnonzero(np.array(one["test_error"]) <= limit)
    return int(one["messages"][reached[0]]) if len(reached) else None


def sweep_figure(runs: list[Results], partition: str, names: list[str]) -> plt.Figure:
    """Error on held-back images against epochs, a panel for each method, as appendix E."""
    across = min(4, len(names))
    size = (3.5 * across, 3.2 * -(-len(names) // across))
    canvas, grid = plt.subplots(
        -(-len(names) // across), across, figsize=size, squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(names) :]:
        axes.remove()
    of = {
        name: [one for one in runs if (one["partition"], one["method"]) == (partition, name)]
        for name in names
    }
    largest = max(error for mine in of.values() for one in mine for error in one["test_error"])
    for axes, (name, mine) in zip(grid.flat, of.items(), strict=False):
        sweep_panel(axes, mine, METHODS[name], partition)
        axes.set(title=name, ylabel="error", ylim=(LEAST, 1.1 * largest))
    return canvas


def sweep_panel(axes: plt.Axes, runs: list[Results], method: Method, partition: str) -> None:
    """The runs of one method: a colour for each rate, a style for each damping."""
    settings, rates = (sorted({one[key] for one in runs}) for key in ("setting", "learning_rate"))
    has_one_visit = method.settings[partition] == VISITS
    for one in sorted(runs, key=lambda one: (one["learning_rate"], one["setting"])):
        label = f"{one['learning_rate']:g}"
        if not has_one_visit and len(settings) > 1:
            label += f", ρ = {one['setting']:g}"
        first = not has_one_visit or one["setting"] == settings[0]
        style = ("-", "--", ":")[0 if has_one_visit else settings.index(one["setting"]) % 3]
        axes.loglog(
            one["epochs"], one["test_error"], f"C{rates.index(one['learning_rate'])}{style}",
            marker="o" if has_one_visit else "", label=label if first else None,
        )  # fmt: skip
    axes.set(xlabel="epochs of each visit" if has_one_visit else "epochs")
    plainly_labelled(axes)
    axes.legend(fontsize=6, framealpha=0.5)


def plainly_labelled(axes: plt.Axes) -> None:
    """Numbers on logarithmic axes as they are, and a grid."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")


def best_figure(runs: list[Results], partition: str) -> plt.Figure:
    """Test error and density against seconds and messages, as figures 4 and 5."""
    canvas, panels = plt.subplots(2, 2, figsize=(11, 7), sharex="col", layout="constrained")
    for (row, key), (column, across) in product(
        enumerate(("test_error", "test_nll")), enumerate(("seconds", "messages"))
    ):
        axes = panels[row, column]
        for place, method in enumerate(METHODS):
            mine = [one for one in runs if (one["partition"], one["method"]) == (partition, method)]
            for number, one in enumerate(mine):
                marker = "o" if len(one["epochs"]) == 1 else ""
                label = None if number else method
                axes.loglog(one[across], one[key], marker=marker, color=f"C{place}", label=label)
        plainly_labelled(axes)
    for axes, label in zip(panels[:, 0], ("test error", "negative log likelihood"), strict=True):
        axes.set_ylabel(label)
    for axes, label in zip(panels[1], ("seconds", "messages"), strict=True):
        axes.set_xlabel(label)
    panels[1, 1].xaxis.set_major_locator(LogLocator())  # there are too many for more of them
    canvas.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    return canvas
