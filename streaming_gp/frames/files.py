"""Files of tables, as people have them: CSV in any dress, Parquet, Feather and Arrow.

What a file is, is told by its content and not by its name. Text is UTF-8, UTF-16 with or without a
byte order mark, or else Windows-1252, of which Latin-1 is a part; it may be packed by gzip, bzip2
or xz. Values are parted by commas, semicolons, tabs or bars, whichever gives every line of the
beginning as many as the header; where it is no comma, decimals may have one.
"""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.frames.columns import MISSING
from streaming_gp.inputs import (
    LARGEST_EXACT_INTEGER,
    missing_extra,
    require_positive_integer,
)
from streaming_gp.serialization import PathLike, as_path

Table = dict[str, np.ndarray]
Kind = Literal["number", "time", "words", "other"]

_SAMPLE = 2**16  # bytes that a file is judged by
_PACKERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NO_TABLE = {
    b"PK": "a workbook or an archive: save the sheet as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "a workbook: save the sheet as CSV",
}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.ASCII | re.I)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_WITH_COMMA, _WITH_POINT = (
    re.compile(rf"[+-]?\d*{mark}\d+(e[+-]?\d+)?", re.I) for mark in (",", r"\.")
)
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\x7f]")


class TableFile(Protocol):
    """A file of rows with named columns."""

    names: tuple[str, ...]

    def kinds(self, columns: Collection[str]) -> dict[str, tuple[Kind, str]]:
        """The kind of each column, of all its rows, and what says that it holds no numbers."""

    def batches(self, size: int, kinds: Mapping[str, Kind]) -> Iterator[Table]:
        """Some rows of these columns at a time, each column of the kind that is said."""


def open_table(path: PathLike, encoding: str | None = None) -> TableFile:
    """The file of a table, by what is in it.

    :param path: The file.
    :param encoding: The encoding of text, as Python names it; found if None.
    """
    source = as_path(path)
    with _reading(source), source.open("rb") as file:
        head = file.read(8)
    for mark, what in _NO_TABLE.items():
        if head.startswith(mark):
            raise FileFormatError(f"{source} is {what}")
    if head.startswith((b"PAR1", b"ARROW1")):
        return ArrowFile(source)
    return TextFile(source, encoding)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What can go wrong while a file is read, as one error."""
    try:
        if path.exists() and not path.is_file():
            raise FileFormatError(f"{path} is no file")
        yield
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise FileFormatError(f"{path} cannot be unpacked: {error}") from error
    except UnicodeError as error:
        raise FileFormatError(f"{path} is no text in this encoding: {error}") from error


def _unreadable(path: Path, why: object) -> FileFormatError:
    """In one line, as what libraries say may have several."""
    return FileFormatError(f"{path} cannot be read: {' '.join(str(why).split())}")


# ---- text ----


class TextFile:
    """A CSV file with a header.

    :param path: The file.
    :param encoding: As in :func:`open_table`.
    """

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        self.path = path
        with _reading(path):
            self.encoding = encoding or self._encoding()
            with self._text() as file:
                sample = file.read(_SAMPLE)
        if not sample:
            raise FileFormatError(f"{path} is empty")
        if _CONTROL.search(sample):
            raise FileFormatError(f"{path} is no text: wanted a table as CSV, Parquet or Arrow")
        lines = [*islice(io.StringIO(sample, newline=""), 100)]  # words may hold other separators
        lines = lines if len(sample) < _SAMPLE or len(lines) == 100 else lines[:-1]
        self.delimiter, values = _dialect(lines)
        has_comma, has_point = (
            any(pattern.fullmatch(value.strip()) for value in values)
            for pattern in (_WITH_COMMA, _WITH_POINT)
        )
        self.decimal = "," if self.delimiter != "," and has_comma and not has_point else "."
        with self._lines() as lines_of_file:
            _, header = next(lines_of_file, (0, []))
        self.names = tuple(name.strip() for name in header)
        if not any(self.names) or len(set(self.names)) != len(self.names):
            raise FileFormatError(
                f"{path} must begin with names that differ, got {list(self.names)}"
            )

    def _encoding(self) -> str:
        with self._bytes() as file:
            head = file.read(_SAMPLE)
            for mark, encoding in _MARKS.items():
                if head.startswith(mark):
                    return encoding
            odd, even = head[1::2].count(0), head[::2].count(0)
            if max(odd, even) > 0.4 * len(head) / 2 and min(odd, even) < 0.1 * len(head) / 2:
                return "utf-16-le" if odd > even else "utf-16-be"
        with self._bytes() as file:
            text = io.TextIOWrapper(file, "utf-8")
            try:
                while text.read(2**20):
                    pass
            except UnicodeDecodeError:
                return "cp1252"
        return "utf-8"

    def _bytes(self) -> IO[bytes]:
        with self.path.open("rb") as file:
            head = file.read(8)
        for mark, unpack in _PACKERS.items():
            if head.startswith(mark):
                unpacked: IO[bytes] = unpack(self.path, "rb")
                return unpacked
        return self.path.open("rb")

    def _text(self) -> IO[str]:
        try:
            return io.TextIOWrapper(self._bytes(), self.encoding, newline="")
        except LookupError:
            raise InvalidDataError(f"there is no encoding {self.encoding!r}") from None

    @contextmanager
    def _lines(self) -> Iterator[Iterator[tuple[int, list[str]]]]:
        """The number of each line that is not empty, and its values; the header is the first."""
        with _reading(self.path), self._text() as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            try:
                yield ((reader.line_num, row) for row in reader if row)
            except csv.Error as error:
                raise FileFormatError(
                    f"{self.path}, line {reader.line_num}: {error}: is a quotation mark missing?"
                ) from error

    def _chunks(self, size: int, skip: int = 0) -> Iterator[list[tuple[int, list[str]]]]:
        with self._lines() as lines:
            rows = islice(lines, 1 + skip, None)
            while chunk := list(islice(rows, size)):
                for line, row in chunk:
                    if len(row) != len(self.names):
                        raise FileFormatError(
                            f"{self.path}, line {line}: wanted {len(self.names)} values, "
                            f"got {len(row)}"
                        )
                yield chunk

    def kinds(self, columns: Collection[str]) -> dict[str, tuple[Kind, str]]:
        places = {name: self.names.index(name) for name in columns}
        found: dict[str, tuple[Kind, str]] = dict.fromkeys(columns, ("number", ""))
        left = {name: {**_READERS} for name in columns}  # kinds that a column may still be of
        for chunk in self._chunks(1000):
            for name, j in places.items():
                for kind, read in tuple(left[name].items()):
                    for line, row in chunk:
                        if read(row[j].strip(), self.decimal) is None:
                            del left[name][kind]
                            why = f"{row[j].strip()!r:.60} in line {line}"
                            why = why if kind == "number" else found[name][1]
                            found[name] = next(iter(left[name]), "words"), why
                            break
        return found

    def batches(self, size: int, kinds: Mapping[str, Kind], skip: int = 0) -> Iterator[Table]:
        for chunk in self._chunks(size, skip):
            yield {
                name: self._column(name, chunk, self.names.index(name), kind)
                for name, kind in kinds.items()
            }

    def _column(
        self, name: str, chunk: list[tuple[int, list[str]]], j: int, kind: Kind
    ) -> np.ndarray:
        if kind == "words":
            return np.array([row[j].strip() or None for _, row in chunk], dtype=object)
        read, column = _READERS[kind], []
        for line, row in chunk:
            text = row[j].strip()
            value = read(text, self.decimal)
            if value is None:
                raise FileFormatError(
                    f"{self.path}, line {line}: column {name!r} must hold {kind}s, "
                    f"got {text!r:.100}"
                )
            is_large = kind == "number" and abs(value) >= LARGEST_EXACT_INTEGER
            if is_large and _INTEGER.fullmatch(text) and Decimal(text) != Decimal(value):
                raise FileFormatError(
                    f"{self.path}, line {line}: column {name!r} holds the integer {text:.100}, "
                    "which a float64 cannot represent: rescale it, or read it as words"
                )
            column.append(value)
        return np.array(column)


def _dialect(lines: list[str]) -> tuple[str, list[str]]:
    """The delimiter, and all values, of the first lines of a file."""
    best, width, values = ",", 1, []
    for delimiter in ",;\t|":
        try:
            rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            continue
        widths = {len(row) for row in rows}
        if delimiter == "," or (len(widths) == 1 and max(widths) > width):
            best, values = delimiter, [value for row in rows[1:] for value in row]
            width = max(widths) if len(widths) == 1 else 1
    return best, values


def _read_number(text: str, decimal: str) -> float | None:
    """A number, NaN where there is none, or None if the text is another word."""
    plain = text if decimal == "." else text.replace(".", "_").replace(decimal, ".")
    if _NUMBER.fullmatch(plain):
        return float(plain)
    return float("nan") if text.lower() in MISSING else None


def _read_time(text: str, decimal: str) -> np.datetime64 | None:
    """A date or time of ISO 8601 in UTC, or not a time where there is none."""
    if text.lower() in MISSING:
        return np.datetime64("NaT", "us")
    try:
        time = datetime.datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    if time.tzinfo is not None:
        time = time.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return np.datetime64(time, "us")


_READERS: dict[Kind, Any] = {"number": _read_number, "time": _read_time}


def read_csv(
    path: PathLike,
    batch_size: int = 1000,
    text: Collection[str] = (),
    skip: int = 0,
    encoding: str | None = None,
) -> Iterator[Table]:
    r"""The rows of a CSV file with a header, some at a time.

    :param path: The file, packed or not, in any of the dialects that ``frames.files`` tells apart.
    :param batch_size: The number of rows at a time.
    :param text: The names of columns that hold words; all others hold numbers.
    :param skip: The number of rows to leave out at the start.
    :param encoding: The encoding, as Python names it; found if None.
    :returns: an iterator of mappings from names to arrays [N]. In columns of numbers a value that
        is empty, or NA, NaN, null or none, is missing (NaN); in columns of words an empty one
        (None).
    :raises InvalidDataError: if ``batch_size`` is not a positive integer.
    :raises FileFormatError: while iterating, if the file is missing or empty, or a line does not
        have as many values as the header, or one that is no number, or an integer that a float64
        cannot represent; names the line.

    >>> with open("data.csv", "w") as file:
    ...     _ = file.write("wind;power\n3,5;1,25\n4;NA\n")
    >>> [batch["power"].tolist() for batch in sgp.tables.read_csv("data.csv", batch_size=1)]
    [[1.25], [nan]]
    """
    require_positive_integer("batch_size", batch_size)
    source = as_path(path)

    def rows() -> Iterator[Table]:
        file = TextFile(source, encoding)
        kinds: dict[str, Kind] = {
            name: "words" if name in text else "number" for name in file.names
        }
        yield from file.batches(batch_size, kinds, skip)

    return rows()


# ---- Arrow ----


class ArrowFile:
    """A file of Parquet, Feather or Arrow, of which only columns that are asked for are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._types = {field.name: field.type for field in file.schema}
        self.names = tuple(self._types)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            from pyarrow import ArrowException, dataset
        except ImportError as error:
            raise missing_extra("an Arrow file", "pyarrow", "tables") from error
        try:
            with _reading(self.path):
                kind: Any = "ipc"
                if self.path.open("rb").read(4) == b"PAR1":
                    checked = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
                    kind = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
                yield dataset.dataset(self.path, format=kind)
        except ArrowException as error:
            raise _unreadable(self.path, error) from error

    def record_batches(self, size: int, columns: list[str] | None = None) -> Iterator[Any]:
        """Some rows at a time, as Arrow's record batches of at most so many rows."""
        with self._opened() as file:
            for batch in file.to_batches(columns=columns, batch_size=size):
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)

    def kinds(self, columns: Collection[str]) -> dict[str, tuple[Kind, str]]:
        return {name: (self._kind(self._types[name]), str(self._types[name])) for name in columns}

    def _kind(self, of: Any) -> Kind:
        from pyarrow import types

        of = of.value_type if types.is_dictionary(of) else of
        for kind, tests in _OF_ARROW.items():
            if any(getattr(types, f"is_{test}")(of) for test in tests):
                return kind
        return "other"

    def batches(self, size: int, kinds: Mapping[str, Kind]) -> Iterator[Table]:
        from pyarrow import Table as ArrowTable

        waiting: list[Any] = []
        for batch in self.record_batches(size, [*kinds]):
            waiting.append(batch)
            while sum(one.num_rows for one in waiting) >= size:
                rows = ArrowTable.from_batches(waiting)
                yield self._as_table(rows.slice(0, size), kinds)
                waiting = rows.slice(size).to_batches()
        if waiting:
            yield self._as_table(ArrowTable.from_batches(waiting), kinds)

    def _as_table(self, rows: Any, kinds: Mapping[str, Kind]) -> Table:
        from pyarrow import types

        table = {}
        for name, kind in kinds.items():
            column = rows[name].combine_chunks()
            found = self._kind(column.type)
            if {kind, found} == {"number", "time"}:
                raise FileFormatError(
                    f"{self.path}: column {name!r} must hold {kind}s, got {column.type}"
                )
            if kind == "words" and found != "words":
                column = column.cast("string")  # labels that are numbers, as a text file has them
            if column.null_count and types.is_integer(column.type):  # floats would be rounded
                table[name] = np.array(column.to_pylist(), object)
            else:
                table[name] = np.asarray(column.to_numpy(zero_copy_only=False))
        return table


_OF_ARROW: dict[Kind, tuple[str, ...]] = {
    "number": ("boolean", "integer", "floating", "decimal"),
    "time": ("timestamp", "date"),
    "words": ("string", "large_string", "string_view"),
}


def read_arrow(path: PathLike, batch_size: int = 1000) -> Iterator[Any]:
    """The rows of a Parquet, Feather or Arrow file, some at a time; needs the ``tables`` extra.

    :param path: The file.
    :param batch_size: The number of rows at a time, at most.
    :returns: an iterator of Arrow's record batches.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer, or pyarrow is not
        installed.
    :raises FileFormatError: while iterating, if the file is missing, or none of these.
    """
    require_positive_integer("batch_size", batch_size)
    source = as_path(path)

    def rows() -> Iterator[Any]:
        yield from ArrowFile(source).record_batches(batch_size)

    return rows()
