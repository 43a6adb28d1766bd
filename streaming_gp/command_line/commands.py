"""Commands: fit, predict, inspect, demo. Each prints for people, and returns a report for JSON."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
from tqdm import tqdm

from streaming_gp.command_line.folder import Folder, Settings
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import PrivatePseudoPoints, StreamingGP
from streaming_gp.metrics import smse
from streaming_gp.tables import TableGP, read_csv
from streaming_gp.tables.sources import Table, header

NUM_DRAWS = 500
"""Draws that the intervals of hyperparameters are taken from."""

DEMO_BATCHES, DEMO_ROWS = 5, 60


# ---- fit ----


def fit(options: argparse.Namespace) -> dict[str, Any]:
    """Learn all batches of a CSV file that are not learned yet.

    Those that are learned are read again, for what they say of names and scales.

    :raises InvalidDataError: if options are missing or differ from those of the run that goes on.
    """
    start, folder = time.perf_counter(), Folder(options.journal)
    settings = _settings(options, folder)
    model = folder.model(settings)
    table = TableGP(model, settings.target, features=settings.features, classes=settings.classes)
    num_learned, number = model.num_updates, 0
    with tqdm(desc="fit", unit="row", disable=not sys.stderr.isatty()) as bar:
        for chunk in read_csv(options.data, settings.batch_size, text=settings.text):
            name = f"batch-{number}"
            if number < num_learned:
                number += table.recall(chunk)
            else:
                number += _learn(folder, table, chunk, name)
            bar.update(len(chunk[settings.target]))
    if number < num_learned:
        raise InvalidDataError(
            f"{options.data} has {number} batches, but {num_learned} of it were learned: "
            "is it the same?"
        )
    if number:
        folder.write_table(table)
    report = {
        "batches": number,
        "new_batches": number - num_learned,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "pseudo_points": model.posterior_process.num_pseudo_points,
        "seconds": time.perf_counter() - start,
    }
    if not options.json:
        print(
            f"{number} batches, {number - num_learned} of them new; {report['rows']} rows learned, "
            f"{report['skipped']} without a target; {report['pseudo_points']} pseudo-points; "
            f"{report['seconds']:.1f} s"
        )
    return report


def _settings(options: argparse.Namespace, folder: Folder) -> Settings:
    """Those of the run that goes on, or new ones."""
    given = {
        name: value
        for name in Settings.__dataclass_fields__
        if (value := getattr(options, name)) is not None
    }
    if folder.exists:
        settings = folder.settings()
        for name, value in given.items():
            if asdict(settings)[name] != value:
                raise InvalidDataError(
                    f"{folder.path} was begun with {name} {asdict(settings)[name]!r}, got {value!r}"
                )
        return settings
    columns = header(options.data)
    if "target" not in given:
        raise InvalidDataError(f"--target must name one of the columns {list(columns)}")
    given.setdefault("features", [name for name in columns if name != given["target"]])
    missing = [name for name in (given["target"], *given["features"]) if name not in columns]
    if missing:
        raise InvalidDataError(f"there are no columns {missing}; there are {list(columns)}")
    if len(given.get("classes") or (0, 1)) < 2:
        raise InvalidDataError(f"--classes must name at least two labels, got {given['classes']}")
    if not given["features"] or given["target"] in given["features"]:
        raise InvalidDataError("there must be inputs, and the target is none of them")
    settings = Settings(**given)
    folder.begin(settings)
    return settings


def _learn(folder: Folder, table: TableGP, chunk: Table, name: str) -> bool:
    """Learn a batch and note what it said; no batch if there is no target in it."""
    rows, skipped = table.num_rows, table.num_skipped
    info = table.update(chunk, batch_id=name)
    if info is None:
        return False
    record = {
        "batch": name,
        "rows": table.num_rows - rows,
        "skipped": table.num_skipped - skipped,
        "free_energy": info.free_energy,
        "pseudo_points": info.num_pseudo_points,
        "iterations": info.iterations,
        "seconds": info.seconds,
    }
    folder.append_record(record)
    folder.write_table(table)
    if not sys.stderr.isatty():
        print(
            f"{name}: {record['rows']} rows, free energy {info.free_energy:.2f}, "
            f"{info.iterations} iterations, {info.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return True


# ---- predict ----


def predict(options: argparse.Namespace) -> dict[str, Any]:
    """Write one line for each row: mean and deviation, or the label and all probabilities."""
    folder = Folder(options.journal)
    settings, table = folder.settings(), folder.table()
    others = [name for name in header(options.data) if name not in settings.features]
    if options.json and options.out is None:
        raise InvalidDataError("--json wants --out, as both would go to standard output")
    if settings.classes is None:
        titles = [f"{settings.target}_mean", f"{settings.target}_sd"]
    else:
        titles = [settings.target, *(f"p_{label}" for label in settings.classes)]
    rows = 0
    with _csv_writer(options.out) as writer:
        writer.writerow(titles)
        for chunk in read_csv(options.data, text=others):
            writer.writerows(_predictions(table, chunk))
            rows += len(chunk[settings.features[0]])
    return {"rows": rows, "out": None if options.out is None else str(options.out)}


def _predictions(table: TableGP, chunk: Table) -> Iterator[list[Any]]:
    if table.classes is None:
        yield from np.hstack(table.predict(chunk)).tolist()
        return
    for probabilities in table.predict_proba(chunk).tolist():
        yield [table.classes[int(np.argmax(probabilities))], *probabilities]


@contextmanager
def _csv_writer(path: Path | None) -> Iterator[Any]:
    """Lines to standard output, or to a file that appears as a whole."""
    if path is None:
        yield csv.writer(sys.stdout, lineterminator="\n")
        return
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        yield csv.writer(file, lineterminator="\n")
    part.replace(path)


# ---- inspect ----


def inspect(options: argparse.Namespace) -> dict[str, Any]:
    """Print batches, factors and hyperparameters; draw them if asked."""
    folder = Folder(options.journal)
    table, records = folder.table(), folder.records()
    model, is_complete = table.model, len(records) == table.model.num_updates
    report = {
        "inputs": table.feature_names_in_.tolist(),
        "num_updates": model.num_updates,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "free_energy": sum(one["free_energy"] for one in records) if is_complete else None,
        "batches": records,
        "factors": {name: len(factor.Z) for name, factor in model.factors.items()},
        "hyperparameters": _hyperparameters(model),
        "scale": {
            name: one.to_record()
            for name, one in zip(("inputs", "targets"), table.normalisation, strict=True)
        },
    }
    if options.plots is not None:
        report["plots"] = _draw(model, options.plots)
    if not options.json:
        _print(report)
    return report


def _hyperparameters(model: StreamingGP) -> dict[str, Any]:
    """Median and 95 % interval of each, in scaled units."""
    report = {}
    for path, draws in model.hyperparameter_samples(NUM_DRAWS).items():
        median, low, high = np.quantile(draws, [0.5, 0.025, 0.975], axis=0).tolist()
        report[path] = {"median": median, "low": low, "high": high}
    return report


def _draw(model: StreamingGP, folder: Path) -> list[str]:
    """Figures, one call each; the posterior only of a few inputs, one figure for each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from streaming_gp import plotting

    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "ledger": plotting.ledger(model),
        "hyperparameters": plotting.hyperparameters(model)[0],
    }
    for dimension in range(min(4, next(iter(model.factors.values())).Z.shape[1])):
        figures[f"posterior_{dimension}"] = plotting.posterior(model, dimension=dimension)
    for name, axes in figures.items():
        axes.figure.savefig(folder / f"{name}.png", dpi=130)
    return [str(folder / f"{name}.png") for name in figures]


def _print(report: dict[str, Any]) -> None:
    energy = report["free_energy"]
    total = "of a batch is not known" if energy is None else f"{energy:.2f} nats in all"
    print(
        f"{report['num_updates']} batches, {report['rows']} rows, {report['skipped']} without a "
        f"target; free energy {total}"
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


# ---- demo ----


def demo(options: argparse.Namespace) -> dict[str, Any]:
    """A made-up sensor in five batches: print how well each was predicted before it was learned."""
    model = StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[0.5]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=PrivatePseudoPoints("all", budget=200),
    )
    table, rng, scores = TableGP(model, "reading"), np.random.default_rng(options.seed), []
    for number in range(DEMO_BATCHES):
        hour = rng.uniform(0.0, 24.0, DEMO_ROWS)
        reading = 20.0 + 5.0 * np.sin(hour / 3.0) + 0.3 * rng.standard_normal(DEMO_ROWS)
        batch = {"hour": hour, "reading": reading}
        if number:
            mean, _ = table.predict(batch)
            scores.append(float(smse(mean, reading[:, None])))
        table.update(batch)
        if not options.json:
            score = f"SMSE {scores[-1]:.4f} before it was learned" if scores else "learned"
            print(f"batch {number + 1} of {DEMO_BATCHES}: {score}", flush=True)
    if not options.json:
        print("prior × factors: it works")
    return {"smse": scores, "rows": table.num_rows}
