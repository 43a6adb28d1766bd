"""``streaming-gp predict``: predict the rows of a CSV file."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streaming_gp.command_line.folder import Folder
from streaming_gp.errors import InvalidDataError
from streaming_gp.tables import TableGP, read_csv
from streaming_gp.tables.readers import Table, header


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Write one line for each row: mean and deviation, or the label and all probabilities."""
    folder = Folder(asked.journal)
    settings, table = folder.settings(), folder.learned()
    others = [name for name in header(asked.data) if name not in settings.features]
    rows = 0
    if asked.json and asked.out is None:
        raise InvalidDataError("--json wants --out, as both would go to standard output")
    with _writer(asked.out) as write:
        write(_titles(settings.target, settings.classes))
        for chunk in read_csv(asked.data, text=others):
            write.many(_lines(table, chunk))
            rows += len(chunk[settings.features[0]])
    return {"rows": rows, "out": None if asked.out is None else str(asked.out)}


def _titles(target: str, classes: list[str] | None) -> list[str]:
    if classes is None:
        return [f"{target}_mean", f"{target}_sd"]
    return [target, *(f"p_{label}" for label in classes)]


def _lines(table: TableGP, chunk: Table) -> Iterator[list[Any]]:
    if table.classes is None:
        mean, deviation = table.predict(chunk)
        yield from np.hstack([mean, deviation]).tolist()
        return
    for probabilities in table.predict_proba(chunk).tolist():
        yield [table.classes[int(np.argmax(probabilities))], *probabilities]


class _Lines:
    """Lines of a CSV file."""

    def __init__(self, file: Any) -> None:
        self._writer = csv.writer(file, lineterminator="\n")

    def __call__(self, line: list[Any]) -> None:
        self._writer.writerow(line)

    def many(self, lines: Iterator[list[Any]]) -> None:
        self._writer.writerows(lines)


@contextmanager
def _writer(path: Path | None) -> Iterator[_Lines]:
    """Lines to standard output, or to a file that appears as a whole."""
    if path is None:
        yield _Lines(sys.stdout)
        return
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        yield _Lines(file)
    part.replace(path)
