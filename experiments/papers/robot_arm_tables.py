"""Tables and figure 7 of the robot arm example, from the records of its runs."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results

from experiments.means import mean_and_error_of

COLOURS = list(plt.colormaps["tab20"]([1, 0, 8, 5, 4, 2, 18, 14, 15, 7, 6, 16, 12, 10]))
COLOURS.insert(7, plt.colormaps["tab20"](17))
COLOURS[5:5] = plt.colormaps["gray"]([0.0, 0.5])
FORGETTING = " forgetting"
"""Ends the names of methods with a forgetting factor."""


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


RATIOS = {
    "ratio": "private VI",
    "ratio_forgetting": "private VI forgetting",
    "ratio_inputs": "inputs VI",
    "ratio_inputs_forgetting": "inputs VI forgetting",
}
"""Columns of :func:`side_by_side`, and whose SMSE they set over that of batch SGPR."""


def side_by_side(rows: list[Results], methods: list[str]) -> list[Results]:
    """One row for each joint: the SMSE of every method, and that of some over batch SGPR's."""
    table = []
    for joint in sorted({row["joint"] for row in rows}):
        mine = {row["method"]: row for row in rows if row["joint"] == joint}
        line = {
            "joint": joint,
            **{name: mine[name]["smse"] if name in mine else "" for name in methods},
        }
        for key, method in RATIOS.items():
            if {"batch SGPR", method} <= set(mine):
                line[key] = mine[method]["test_smse"] / mine["batch SGPR"]["test_smse"]
        table.append(line)
    return table


def private_and_shared(runs: list[Results]) -> list[Results]:
    """One row for each joint, without and with forgetting, over streams that both have: SMSE, and
    seconds of whole streams.
    """
    last = {
        (r["method"], r["joint"], r["stream"]): (
            r["records"][-1]["test_smse"],
            sum(record["seconds"] for record in r["records"]),
        )
        for r in runs
    }
    joints = sorted({r["joint"] for r in runs})
    rows = [_beside(last, joint, suffix) for suffix in ("", FORGETTING) for joint in joints]
    return [row for row in rows if row is not None]


def _beside(
    last: dict[tuple[str, int, int], tuple[float, float]], joint: int, suffix: str
) -> Results | None:
    """Means over the streams of one joint that private and shared points both have, if any."""
    private, shared = f"private VI{suffix}", f"shared VI{suffix}"
    streams = sorted(
        s for m, j, s in last if (m, j) == (private, joint) and (shared, joint, s) in last
    )
    if not streams:
        return None
    mine, theirs = (np.array([last[m, joint, s] for s in streams]) for m in (private, shared))
    return {
        "joint": joint,
        "forgetting": "yes" if suffix else "no",
        "streams": len(streams),
        "private_ahead": int(np.sum(mine[:, 0] < theirs[:, 0])),
        "private_smse": float(mine[:, 0].mean()),
        "shared_smse": float(theirs[:, 0].mean()),
        "private_seconds": float(mine[:, 1].mean()),
        "shared_seconds": float(theirs[:, 1].mean()),
    }


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


def curve(run: Results) -> Results:
    """One run, its records as one list for each quantity, to six digits."""
    records = run["records"]
    lists = {key: [float(f"{record[key]:.6g}") for record in records] for key in records[0]}
    return {key: run[key] for key in ("method", "joint", "stream", "jobs")} | lists


def curves(runs: list[Results], joint: int, method: str, key: str) -> np.ndarray:
    """[S, batches] of one method on one joint."""
    chosen = [r for r in runs if r["joint"] == joint and r["method"] == method]
    return np.array([[record[key] for record in run["records"]] for run in chosen])
