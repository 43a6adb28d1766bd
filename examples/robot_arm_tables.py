"""Tables and figure 7 of the robot arm example, from the records of its runs."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, mean_and_error_of

COLOURS = [plt.colormaps["tab20"](number) for number in (0, 1, 9, 8, 4, 2, 18, 6, 16, 12, 10, 14)]


def summary(runs: list[Results]) -> list[Results]:
    """One row for each joint and method."""
    rows = []
    for joint, method in sorted({(r["joint"], r["method"]) for r in runs}):
        smse, nlpd = (curves(runs, joint, method, f"test_{key}")[:, -1] for key in ("smse", "nlpd"))
        seconds = curves(runs, joint, method, "seconds")
        rows.append(
            {
                "joint": joint,
                "method": method,
                "streams": len(seconds),
                "smse": in_words(smse, 4),
                "nlpd": in_words(nlpd, 3),
                "test_smse": float(smse.mean()),
                "test_nlpd": float(nlpd.mean()),
                "seconds_per_update": float(seconds.mean()),
            }
        )
    return rows


def side_by_side(rows: list[Results], methods: list[str]) -> list[Results]:
    """One row for each joint: the SMSE of every method, and private over batch SGPR."""
    table = []
    for joint in sorted({row["joint"] for row in rows}):
        mine = {row["method"]: row for row in rows if row["joint"] == joint}
        line = {
            "joint": joint,
            **{name: mine[name]["smse"] if name in mine else "" for name in methods},
        }
        if "batch SGPR" in mine and "private VI" in mine:
            line["ratio"] = mine["private VI"]["test_smse"] / mine["batch SGPR"]["test_smse"]
        table.append(line)
    return table


def private_and_shared(runs: list[Results]) -> list[Results]:
    """One row for each joint, over streams that both have: SMSE, and seconds of whole streams."""
    last = {
        (r["joint"], r["stream"], r["method"]): (
            r["records"][-1]["test_smse"],
            sum(record["seconds"] for record in r["records"]),
        )
        for r in runs
    }
    table = []
    for joint in sorted({r["joint"] for r in runs}):
        streams = [
            stream
            for stream in sorted({r["stream"] for r in runs})
            if {(joint, stream, "private VI"), (joint, stream, "shared VI")} <= set(last)
        ]
        if not streams:
            continue
        private, shared = (
            np.array([last[joint, stream, method] for stream in streams])
            for method in ("private VI", "shared VI")
        )
        table.append(
            {
                "joint": joint,
                "streams": len(streams),
                "private_ahead": int(np.sum(private[:, 0] < shared[:, 0])),
                "private_smse": float(private[:, 0].mean()),
                "shared_smse": float(shared[:, 0].mean()),
                "private_seconds": float(private[:, 1].mean()),
                "shared_seconds": float(shared[:, 1].mean()),
            }
        )
    return table


def figure_7(
    runs: list[Results], key: str, label: str, streams: list[str], limits: list[str]
) -> plt.Figure:
    """One panel for each joint: mean and standard error over streams, against batches seen."""
    joints = sorted({r["joint"] for r in runs})
    columns = min(4, len(joints))
    figure, panels = plt.subplots(
        -(-len(joints) // columns),
        columns,
        figsize=(2.6 * columns + 1.5, 2.8 * -(-len(joints) // columns) + 0.8),
        squeeze=False,
        layout="constrained",
    )
    for axes in panels.flat[len(joints) :]:
        axes.remove()
    for axes, joint in zip(panels.flat, joints, strict=False):
        for number, method in enumerate([*streams, *limits]):
            values = curves(runs, joint, method, key)
            if len(values) > 0:
                _draw(axes, values, method, COLOURS[number], method in limits)
        axes.set(title=f"joint {joint}", xlabel="batches seen")
        if key == "test_smse":
            axes.set_yscale("log")
    panels[0, 0].set_ylabel(label)
    labelled: dict[str, Any] = {}
    for axes in panels.flat[: len(joints)]:
        labelled |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw(axes: plt.Axes, values: np.ndarray, method: str, colour: Any, is_limit: bool) -> None:
    """Curves [S, batches] of one method; what saw all data at once is a level."""
    if is_limit:
        axes.axhline(values[0, -1], color=colour, linestyle="--", linewidth=1, label=method)
        return
    mean, error = mean_and_error_of(values)
    batches = np.arange(1, len(mean) + 1)
    axes.plot(batches, mean, color=colour, label=method)
    axes.fill_between(batches, mean - error, mean + error, color=colour, alpha=0.25)


def in_words(values: np.ndarray, digits: int) -> str:
    """Mean over streams [S] and its standard error, if there are several."""
    mean, error = mean_and_error_of(values)
    several = f" ± {error:.{digits}f}" if len(values) > 1 else ""
    return (f"{mean:.{digits}f}" if abs(mean) >= 10.0**-digits else f"{mean:.1e}") + several


def curves(runs: list[Results], joint: int, method: str, key: str) -> np.ndarray:
    """[S, batches] of one method on one joint."""
    chosen = [r for r in runs if r["joint"] == joint and r["method"] == method]
    return np.array([[record[key] for record in run["records"]] for run in chosen])
