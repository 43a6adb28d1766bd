"""``streaming-gp inspect``: what the ledger holds, and what each batch said."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from streaming_gp.command_line.folder import Folder
from streaming_gp.gp import StreamingGP
from streaming_gp.tables import TableGP

DRAWS = 500


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Print batches, factors and hyperparameters; draw them if asked."""
    folder = Folder(asked.journal)
    table, records = folder.learned(), folder.records()
    model, is_whole = table.model, len(records) == table.model.num_updates
    report = {
        "inputs": table.feature_names_in_.tolist(),
        "num_updates": model.num_updates,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "free_energy": sum(one["free_energy"] for one in records) if is_whole else None,
        "batches": records,
        "factors": {name: len(factor.Z) for name, factor in model.factors.items()},
        "hyperparameters": _hyperparameters(model),
        "scale": _scales(table),
    }
    if asked.plots is not None:
        report["plots"] = _draw(model, asked.plots)
    if not asked.json:
        _print(report)
    return report


def _hyperparameters(model: StreamingGP) -> dict[str, Any]:
    """Median and 95 % interval of each, in scaled units."""
    samples = model.hyperparameter_samples(DRAWS)
    quantiles = {
        path: np.quantile(draws, [0.5, 0.025, 0.975], axis=0) for path, draws in samples.items()
    }
    names = ("median", "low", "high")
    return {
        path: dict(zip(names, values.tolist(), strict=True)) for path, values in quantiles.items()
    }


def _scales(table: TableGP) -> dict[str, Any]:
    """Means and deviations that are applied, and those of all batches."""
    return {
        name: {
            "applied": [one.applied.mean.tolist(), one.applied.unit.tolist()],
            "running": [one.running.mean.tolist(), one.running.unit.tolist()],
        }
        for name, one in zip(("inputs", "targets"), table.normalisation, strict=True)
    }


def _draw(model: StreamingGP, folder: Path) -> list[str]:
    """Figures, one call each; the posterior only of a few inputs, one figure for each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from streaming_gp import plotting

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {
        "ledger": plotting.ledger(model),
        "hyperparameters": plotting.hyperparameters(model)[0],
    }
    for dimension in range(min(4, next(iter(model.factors.values())).Z.shape[1])):
        drawn[f"posterior_{dimension}"] = plotting.posterior(model, dimension=dimension)
    for name, axes in drawn.items():
        axes.figure.savefig(folder / f"{name}.png", dpi=130)
    return [str(folder / f"{name}.png") for name in drawn]


def _print(report: dict[str, Any]) -> None:
    energy = report["free_energy"]
    known = "of a batch is not known" if energy is None else f"{energy:.2f} nats in all"
    print(
        f"{report['num_updates']} batches, {report['rows']} rows, {report['skipped']} without a "
        f"target; free energy {known}"
    )
    print(f"inputs: {', '.join(report['inputs'])}")
    print(f"\n{'batch':<14}{'rows':>8}{'skipped':>9}{'free energy':>14}{'iterations':>12}{'s':>8}")
    for one in report["batches"]:
        print(
            f"{one['batch']:<14}{one['rows']:>8}{one['skipped']:>9}{one['free_energy']:>14.2f}"
            f"{one['iterations']:>12}{one['seconds']:>8.2f}"
        )
    print(f"\n{'factor':<14}{'points':>8}")
    for name, points in report["factors"].items():
        print(f"{name:<14}{points:>8}")
    print("\nhyperparameters in scaled units: median and 95 % interval")
    for path, values in report["hyperparameters"].items():
        triples = np.stack([np.ravel(values[name]) for name in ("median", "low", "high")], axis=1)
        for median, low, high in triples:
            print(f"  {path:<34}{median:>10.4g}  [{low:.4g}, {high:.4g}]")
    for path in report.get("plots", []):
        print(f"wrote {path}")
