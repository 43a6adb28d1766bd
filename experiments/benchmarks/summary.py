"""Rows of single runs as tables: means over seeds, and the better setting of each family."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from experiments.benchmarks.plan import planned

Row = dict[str, Any]
MEANS = (
    *(
        "error",
        "nlpd",
        "calibration",
        "number",
        "num_bytes",
        "peak_megabytes",
        "to_first_prediction_cpu_seconds",
    ),
    *("learning_cpu_seconds", "learning_wall_seconds"),
    *("predicting_cpu_seconds", "predicting_wall_seconds"),
)


def over_seeds(rows: list[Row]) -> list[Row]:
    """One row for each stream, method and version: means over seeds that did not fail.

    Quick runs are apart.
    """
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[_method(row)].append(row)
    return [_mean(group) for group in groups.values()]


def _method(row: Row) -> tuple:
    return row["stream"], row["method"], row["quick"], row["version"]


def _mean(group: list[Row]) -> Row:
    fine = [row for row in group if not row["failed"]]
    first = (fine or group)[0]
    means = {}
    for key in MEANS:
        values = [row[key] for row in fine if key in row]
        means[key] = float(np.mean(values)) if values else None
    return {**first, **means, "seeds": len(group), "failed_seeds": len(group) - len(fine)}


def best_settings(rows: list[Row]) -> list[Row]:
    """Of several settings of one family the one with the smallest test error, then NLPD.

    The first seed decides, so that further seeds need be run of that setting alone.
    """
    best: dict[tuple, Row] = {}
    first = min((row["seed"] for row in rows), default=0)
    for row in (one for one in rows if one["seed"] == first):
        family = row.get("family", row["method"])
        key = row["stream"], family, row.get("tuned"), row["quick"], row["version"]
        if key not in best or _rank(row) < _rank(best[key]):
            best[key] = row
    return list(best.values())


def means_of_best(rows: list[Row]) -> list[Row]:
    """One row for each stream and family: the mean over the seeds of its better setting."""
    better = {_method(row) for row in best_settings(rows)}
    return [row for row in over_seeds(rows) if _method(row) in better]


def _error(row: Row) -> float:
    return float("inf") if row["error"] is None else row["error"]


def _rank(row: Row) -> tuple[float, float]:
    return _error(row), float("inf") if row["nlpd"] is None else row["nlpd"]


def summarised(rows: list[Row]) -> dict[str, Any]:
    """One table for each stream, the failures, and how much of each stream was run."""
    means = means_of_best(rows)
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    tables = {
        name: [
            as_line(row)
            for row in sorted((one for one in means if one["stream"] == name), key=_error)
            if row["error"] is not None
        ]
        for name in streams
    }
    failures = [
        {"stream": row["stream"], "method": row["method"], "failed": row["failed"]}
        for row in rows
        if row["failed"]
    ]
    progress = [
        {
            "stream": name,
            "methods": len({row["method"] for row in rows if row["stream"] == name}),
            "of": len(planned(name)),
            "runs": sum(row["stream"] == name for row in rows),
            "reference": _reference([row for row in rows if row["stream"] == name]),
        }
        for name in streams
    ]
    return {
        **tables, "defaults": defaults(means), "failures": failures, "progress": progress,
    }  # fmt: skip


def defaults(means: list[Row]) -> list[Row]:
    """For each stream the default, and the rival of the least error that takes it as a stream."""
    found = []
    for ours in (row for row in means if row["method"] == "default" and not row["failed"]):
        rivals = [
            row
            for row in means
            if row["stream"] == ours["stream"] and row["group"] == "rival" and not row["failed"]
            and not row["reached_limit"]
        ]  # fmt: skip
        best = min(rivals, key=_rank, default=None)
        found.append(
            {
                "stream": ours["stream"],
                **{key: ours[key] for key in ("error", "nlpd", "learning_cpu_seconds")},
                "rival": best and best["method"],
                "rival_error": best and best["error"],
                "rival_nlpd": best and best["nlpd"],
                "rival_learning_cpu_seconds": best and best["learning_cpu_seconds"],
            }
        )
    return found


def _reference(rows: list[Row]) -> str:
    """The least and the most CPU seconds that the same computation took beside the runs."""
    seconds = [row["reference_cpu_seconds"] for row in rows if "reference_cpu_seconds" in row]
    return f"{min(seconds):.1f} to {max(seconds):.1f}" if seconds else "not measured"


def as_line(row: Row) -> Row:
    """What a reader wants to see of a row."""
    seen = "all" if not row["reached_limit"] else f"{row['data_seen']} points"
    return {
        "method": row["method"],
        "what": row["family"],
        "group": row["group"],
        "tuned": row["tuned"],
        "error": row["error"],
        "nlpd": row["nlpd"],
        "calibration": row["calibration"],
        "learning": row["learning_cpu_seconds"],
        "to_first_prediction": row["to_first_prediction_cpu_seconds"],
        "predicting": 1e3 * row["predicting_cpu_seconds"] / row["test_points"],
        "held": f"{row['number']:.0f} {row['unit']}",
        "megabytes": row["num_bytes"] / 1e6,
        "peak_megabytes": row["peak_megabytes"],
        "seen": seen,
        "seeds": row["seeds"],
    }
