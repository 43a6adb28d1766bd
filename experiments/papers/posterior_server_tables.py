"""Table, figures and command of posterior_server_networks.py."""

from __future__ import annotations

import argparse
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
from common import Results
from matplotlib.ticker import LogLocator

from experiments.means import mean_and_error


def summary(runs: dict[str, list[Results]]) -> list[Results]:
    """A row for each setting of each study."""
    return [
        {"study": study, "label": label, **over_seeds([r for r in records if r["label"] == label])}
        for study, records in runs.items()
        for label in labels_of(records)
    ]


def labels_of(records: list[Results]) -> list[str]:
    """In the order of the study."""
    return list(dict.fromkeys(one["label"] for one in records))


def over_seeds(runs: list[Results]) -> Results:
    """Means over the seeds of one setting, with their standard errors."""
    reached = [at for at in (epoch_to(one, 0.018) for one in runs) if at is not None]
    all_did = len(reached) == len(runs)
    row = {
        "seeds": len(runs),
        "epochs": runs[0]["epochs"],
        "messages": runs[0]["messages"],
        "refused": sum(one["refused"] for one in runs),
        "epoch_to_1.8_percent": float(np.mean(reached)) if all_did else None,
        "seconds": float(np.mean([one["seconds"][-1] for one in runs])),
    }
    for name in ("mean_error", "mean_nll", "drawn_error", "drawn_nll"):
        there = runs[0][name] is not None
        row[name], row[f"{name}_spread"] = mean_and_error(runs, name) if there else (None, None)
    return row


def epoch_to(one: Results, error: float) -> float | None:
    """The first epoch at which a run had this test error or less; None if it never had."""
    there = np.flatnonzero(np.array(one["test_error"]) <= error)
    return float(one["epoch"][there[0]]) if len(there) else None


def figure(title: str, runs: list[Results]) -> plt.Figure:
    """Test error against epochs and seconds."""
    canvas, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    labels = labels_of(runs)
    for axes, key in zip(panels, ("epoch", "seconds"), strict=True):
        for one in runs:
            error = 100.0 * np.array(one["test_error"])
            colour = f"C{labels.index(one['label'])}"
            label = one["label"] if one["seed"] == runs[0]["seed"] else None
            axes.plot(one[key], error, color=colour, label=label)
        axes.set(xlabel={"epoch": "epochs for each worker"}.get(key, key), yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(LogLocator(subs=(1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3, which="both")
    panels[0].set(ylabel="test error in %", title=title)
    panels[1].legend(fontsize=8)
    return canvas


def command(arguments: argparse.Namespace, runs: dict[str, list[Results]]) -> str:
    """What to type for the same runs, a command or two for each study; some of its runs may be
    longer.
    """
    flags = " --quick" * arguments.quick + " --full" * arguments.full
    script = (
        f"python -m experiments.papers.posterior_server_networks{flags} --seed {arguments.seed}"
    )
    return "; ".join(
        f"{script} --epochs {min(one['epochs'] for one in records):g} {often} --studies {name}"
        for name, records in runs.items()
        for often in repetitions(arguments, records)
    )


def repetitions(arguments: argparse.Namespace, records: list[Results]) -> list[str]:
    """Options for the seeds of all settings, and for those of the fast ones if they have more."""
    seeds = Counter(one["label"] for one in records).values()
    fewest, most = min(seeds), max(seeds)
    fast = [f"--repetitions {most} --under {arguments.under:g}"] if most > fewest else []
    return [f"--repetitions {fewest}", *fast]
