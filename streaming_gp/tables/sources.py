"""Sources of batches: files read in chunks, and a model that learns from a source to its end."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.gp import UpdateInfo
from streaming_gp.inputs import as_real_array, require_positive_integer
from streaming_gp.serialization import PathLike, as_path
from streaming_gp.tables.columns import complete_rows, is_table
from streaming_gp.tables.model import TableGP
from streaming_gp.validation import as_matrix, as_pair

Table = dict[str, np.ndarray]

MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""Words that stand for no value in a CSV file, in any case."""


class Learner(Protocol):
    """A model that learns from pairs of arrays, such as a ``StreamingGP``."""

    def update(self, data: Any, /) -> Any:
        """Learn from one batch."""


@dataclass(frozen=True)
class StreamReport:
    """The numbers of a source that came to its end.

    :param num_batches: The number of batches that were learned.
    :param num_rows: The number of rows in them.
    :param num_skipped: The number of rows that were skipped, as a target was missing.
    :param seconds: The wall time, reading included.
    """

    num_batches: int
    num_rows: int
    num_skipped: int
    seconds: float


def stream(
    source: Iterable[Any],
    model: Learner | TableGP,
    *,
    label: str | None = None,
    report: Callable[[UpdateInfo], None] | None = None,
) -> StreamReport:
    """Learn from every batch of a source, one after another; only one is in memory at a time.

    A source is anything to loop over: a list, a generator, :func:`.read_csv`, the consumer of a
    message queue. It may go on for ever, and be left by an exception or Ctrl-C: the model then
    holds the batches that were learned. Rows without a target are skipped and counted; a batch that
    has nothing else is no batch.

    :param source: Tables for a :class:`TableGP`; pairs of X [N, D] and Y [N, P] for any other
        model, with NaN in Y where a target is missing.
    :param model: The model.
    :param label: The text in front of a progress bar on a terminal, or of a line for each batch
        elsewhere. Without it no progress is shown.
    :param report: Called with what ``update`` returned after every batch.
    :returns: the numbers of batches and rows.
    :raises InvalidDataError: if a batch is refused; says which. Those before it are learned.
    """
    start, batches, rows, skipped = time.perf_counter(), 0, 0, 0
    on_terminal = sys.stderr.isatty()
    with tqdm(source, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, batch in enumerate(bar, start=1):
            try:
                info, size, missing = _learn(batch, model)
            except InvalidDataError as error:
                raise InvalidDataError(f"batch {number}, after {rows} rows: {error}") from error
            rows, skipped, batches = rows + size, skipped + missing, batches + bool(size)
            if size and report is not None:
                report(info)
            if label is not None and not on_terminal:
                print(f"{label}: batch {number}, {rows} rows, {skipped} skipped", flush=True)
    return StreamReport(batches, rows, skipped, time.perf_counter() - start)


def _learn(batch: Any, model: Learner | TableGP) -> tuple[Any, int, int]:
    """The result of ``update``, the number of rows that it saw, and of those that were skipped."""
    if isinstance(model, TableGP):
        rows, skipped = model.num_rows, model.num_skipped
        info = model.update(batch)
        return info, model.num_rows - rows, model.num_skipped - skipped
    if is_table(batch) and not isinstance(batch, tuple):
        raise InvalidDataError(
            f"a {type(model).__name__} takes pairs (X, Y), got a {type(batch).__name__}; "
            "tables are for a TableGP"
        )
    X, Y = as_pair(batch)
    X, Y = as_matrix("X", X, None), as_real_array("Y", Y)
    skipped = 0
    if Y.ndim == 2 and len(X) == len(Y):  # else the model says what it wants
        X, Y, skipped = complete_rows(X, Y)
    return (model.update((X, Y)) if len(X) else None), len(X), skipped


# ---- files ----


def read_csv(
    path: PathLike, batch_size: int = 1000, text: Collection[str] = (), skip: int = 0
) -> Iterator[Table]:
    """The rows of a CSV file with a header, some at a time.

    :param path: The file, in UTF-8.
    :param batch_size: The number of rows at a time.
    :param text: The names of columns that hold words; all others hold numbers.
    :param skip: The number of rows to leave out at the start.
    :returns: an iterator of mappings from names to arrays [N]. A value that is empty, or NA, NaN or
        null, is missing: NaN in numbers, None in words.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer.
    :raises FileFormatError: while iterating, if the file is missing or empty, or a line does not
        have as many values as the header, or one that is no number; names the line.
    """
    require_positive_integer("batch_size", batch_size)
    return _chunks(as_path(path), batch_size, text, skip)


def header(path: PathLike) -> tuple[str, ...]:
    """The names of the columns of a CSV file.

    :raises FileFormatError: if the file is missing or empty.
    """
    with _opened(as_path(path)) as file:
        return _names(as_path(path), csv.reader(file))


def _opened(path: Path) -> Any:
    try:
        return path.open(newline="", encoding="utf-8-sig")
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}") from error


def _names(path: Path, lines: Iterator[list[str]]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in next(lines, ()))
    if not names or len(set(names)) != len(names):
        raise FileFormatError(f"{path} must begin with names that differ, got {list(names)}")
    return names


def _chunks(path: Path, size: int, text: Collection[str], skip: int) -> Iterator[Table]:
    with _opened(path) as file:
        lines = csv.reader(file)
        names = _names(path, lines)
        rows = islice(((lines.line_num, row) for row in lines if row), skip, None)
        while chunk := list(islice(rows, size)):
            for line, row in chunk:
                if len(row) != len(names):
                    raise FileFormatError(
                        f"{path}, line {line}: wanted {len(names)} values, got {len(row)}"
                    )
            yield {
                name: _column(path, name, [(line, row[j].strip()) for line, row in chunk], text)
                for j, name in enumerate(names)
            }


def _column(
    path: Path, name: str, values: list[tuple[int, str]], text: Collection[str]
) -> np.ndarray:
    is_text = name in text
    column: list[str | float | None] = []
    for line, value in values:
        if value.lower() in MISSING:
            column.append(None if is_text else float("nan"))
            continue
        try:
            column.append(value if is_text else float(value))
        except ValueError:
            raise FileFormatError(
                f"{path}, line {line}: column {name!r} must hold numbers, got {value!r:.100}"
            ) from None
    return np.array(column, dtype=object if is_text else float)


def read_arrow(path: PathLike, batch_size: int = 1000) -> Iterator[Any]:
    """The rows of a Parquet, Feather or Arrow file, some at a time; needs the ``tables`` extra.

    :param path: The file; its name ends in ``.parquet``, or it is one of Arrow's own.
    :param batch_size: The number of rows at a time, at most.
    :returns: an iterator of Arrow's record batches.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer, or pyarrow is not
        installed.
    :raises FileFormatError: while iterating, if the file is missing, or none of these.
    """
    require_positive_integer("batch_size", batch_size)
    try:
        import pyarrow
    except ImportError as error:
        raise InvalidDataError(
            'Arrow files need pyarrow: pip install "streaming-gp[tables]"'
        ) from error
    return _record_batches(as_path(path), batch_size, pyarrow)


def _record_batches(path: Path, size: int, pyarrow: Any) -> Iterator[Any]:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=size)
            return
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
