"""Error against seconds and against memory, with the methods that no other one beats in both; and
error while a stream goes on.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from common import save_figure
from matplotlib.ticker import NullFormatter

from experiments.benchmarks.summary import Row, means_of_best

MARKS = {"ours": "o", "rival": "s", "limit": "^", "floor": "v"}
COLOURS = {"ours": "C0", "rival": "C3", "limit": "0.55", "floor": "0.2"}
AXES = {
    "learning_cpu_seconds": "CPU seconds of learning",
    "num_bytes": "bytes held",
}


def unbeaten(points: np.ndarray) -> np.ndarray:
    """Which of the points [N, 2] no other one is below in both coordinates."""
    smaller = (points[None] <= points[:, None]).all(axis=2) & (
        (points[None] < points[:, None]).any(axis=2)
    )
    return ~smaller.any(axis=1)


def pareto(axes: plt.Axes, rows: list[Row], cost: str) -> None:
    """One plot; limits, which see what a stream cannot, are drawn but beat no one."""
    streaming = [row for row in rows if row["group"] != "limit"]
    points = np.array([[row[cost], row["error"]] for row in streaming])
    front = [row for row, best in zip(streaming, unbeaten(points), strict=True) if best]
    front.sort(key=lambda row: row[cost])
    x, y = [row[cost] for row in front], [row["error"] for row in front]
    axes.step(x, y, where="post", color="0.7", linewidth=0.8, zorder=0)
    for row in rows:
        colour = COLOURS[row["group"]]
        axes.plot(row[cost], row["error"], MARKS[row["group"]], color=colour, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel=AXES[cost])
    axes.margins(x=0.2, y=0.1)
    name_marks(axes, rows, cost, front)


def name_marks(axes: plt.Axes, rows: list[Row], cost: str, front: list[Row]) -> None:
    """Names beside the marks, those of the front in bold. They give way upwards, with a line to
    their mark.
    """
    places: list[np.ndarray] = []
    for row in sorted(rows, key=lambda row: row["error"]):
        at = (row[cost], row["error"])
        place = axes.transData.transform(at) + np.array([6.0, 3.0])
        while any((np.abs(place - other) < (90.0, 9.0)).all() for other in places):
            place = place + np.array([0.0, 9.0])
        places.append(place)
        axes.annotate(
            row["method"], at, axes.transData.inverted().transform(place), fontsize=5.5,
            color=COLOURS[row["group"]], weight="bold" if row in front else "normal",
            arrowprops={"arrowstyle": "-", "color": COLOURS[row["group"]], "linewidth": 0.3},
        )  # fmt: skip


def draw(rows: list[Row], out: Path) -> None:
    """One figure for each stream that has rows."""
    means = [row for row in means_of_best(rows) if row["error"]]
    for name in dict.fromkeys(row["stream"] for row in means):
        of_stream = [row for row in means if row["stream"] == name]
        if not any(row["group"] != "limit" for row in of_stream):
            continue
        figure, panels = plt.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
        for axes, cost in zip(panels, AXES, strict=True):
            pareto(axes, of_stream, cost)
        panels[0].set_ylabel("test error rate" if "banana" in name else "test SMSE")
        for group, mark in MARKS.items():
            panels[1].plot([], [], mark, color=COLOURS[group], label=group)
        panels[1].legend(fontsize=7)
        figure.suptitle(name, fontsize=10)
        save_figure(figure, out, f"{name}.png")
        plt.close(figure)


LONG = ("barrett3-by1-500", "power-500", "kin8nm-500")
FOLLOWED = (
    *("default", "gpboost-refitted", "gpboost", "vnngp", "block-cholesky"),
    *("features-2000-scaled", "bui2017-240", "sgpr"),
)


def draw_progress(rows: list[Row], out: Path) -> None:
    """Error against data seen and against CPU seconds, of the methods that were followed; those
    that get all data at once are a mark where they end.
    """
    followed = {
        (row["stream"], row["method"]): row["trace"]
        for row in rows
        if row.get("trace") and row["seed"] == 0 and not row["failed"] and not row["quick"]
    }
    streams = [name for name in LONG if (name, "default") in followed]
    if not streams:
        return
    figure, panels = plt.subplots(
        2, len(streams), figsize=(3.6 * len(streams), 6), squeeze=False, layout="constrained"
    )
    for column, stream in zip(panels.T, streams, strict=True):
        for place, method in enumerate(FOLLOWED):
            if all((name, method) not in followed for name in streams):
                continue
            trace = followed.get((stream, method), [])
            for axes, key in zip(column, ("data_seen", "learning_cpu_seconds"), strict=True):
                axes.plot(
                    [at[key] for at in trace], [at["error"] for at in trace],
                    "o-" if len(trace) > 1 else "D", color=f"C{place}", label=method,
                    markersize=4 if len(trace) > 1 else 7, linewidth=2.2 if place == 0 else 1.0,
                )  # fmt: skip
        column[0].set(title=stream, xlabel="data seen", yscale="log")
        column[1].set(xlabel="CPU seconds of learning", xscale="log", yscale="log")
        column[1].xaxis.set_minor_formatter(NullFormatter())
    for axes in panels[:, 0]:
        axes.set_ylabel("test SMSE")
    panels[0, 0].legend(fontsize=7)
    save_figure(figure, out, "progress.png")
    plt.close(figure)
