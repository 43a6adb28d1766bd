"""``streaming-gp fit``: learn a CSV file in batches, or go on where a run stopped."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from streaming_gp.command_line.folder import Folder, Settings
from streaming_gp.errors import InvalidDataError
from streaming_gp.tables import TableGP, read_csv
from streaming_gp.tables.readers import Table, header


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Learn all batches of the file that are not learned yet.

    Those that are learned are read again, for what they say of names and scales.

    :raises InvalidDataError: if options are missing or differ from those of the run that goes on.
    """
    start, folder = time.perf_counter(), Folder(asked.journal)
    settings = _settings(asked, folder)
    model = folder.model(settings)
    table = TableGP(model, settings.target, features=settings.features, classes=settings.classes)
    known = model.num_updates
    chunks = read_csv(asked.data, settings.batch_size, text=settings.text)
    number = 0
    with tqdm(desc="fit", unit="row", disable=not sys.stderr.isatty()) as bar:
        for chunk in chunks:
            name = f"batch-{number}"
            is_known = number < known
            learned = table.recall(chunk, name) if is_known else _learn(folder, table, chunk, name)
            number += learned
            bar.update(len(chunk[settings.target]))
    if number < known:
        raise InvalidDataError(
            f"{asked.data} has {number} batches, but {known} of it were learned: is it the same?"
        )
    if number:
        folder.keep(table)
    report = {
        "batches": number,
        "new_batches": number - known,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "pseudo_points": model.posterior_process.num_pseudo_points,
        "seconds": time.perf_counter() - start,
    }
    if not asked.json:
        print(
            f"{number} batches, {number - known} of them new; {report['rows']} rows learned, "
            f"{report['skipped']} without a target; {report['pseudo_points']} pseudo-points; "
            f"{report['seconds']:.1f} s"
        )
    return report


def _settings(asked: argparse.Namespace, folder: Folder) -> Settings:
    """Those of the run that goes on, or new ones."""
    given = {
        name: value
        for name in Settings.__dataclass_fields__
        if (value := getattr(asked, name)) is not None
    }
    if folder.exists:
        found = folder.settings()
        for name, value in given.items():
            if asdict(found)[name] != value:
                raise InvalidDataError(
                    f"{folder.path} was begun with {name} {asdict(found)[name]!r}, got {value!r}"
                )
        return found
    columns = header(asked.data)
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
    folder.note(record)
    folder.keep(table)
    if not sys.stderr.isatty():
        print(
            f"{name}: {record['rows']} rows, free energy {info.free_energy:.2f}, "
            f"{info.iterations} iterations, {info.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return True
