"""Columns by name, whatever table they come in, and what their values are as numbers.

Frames of pandas, polars and Arrow, mappings of arrays and rows of named values are read alike:

- booleans are 0 and 1, decimals and categories of numbers are numbers;
- None, NaN, NaT, pandas' NA and masked entries are missing;
- dates and times are days since 1970-01-01 00:00 UTC, where they are taken at all;
- a column holds either numbers or times, and these with a zone or all without;
- words are categories or labels, where they are taken at all;
- durations, lists, complex numbers and everything else are refused, by column and row.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import LARGEST_EXACT_INTEGER, as_float64, as_name

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Words that stand for no number in a file, in lower case."""

_EPOCH, _DAY = np.datetime64("1970-01-01", "us"), np.timedelta64(1, "D")

# ---- tables ----


def is_table(batch: Any) -> bool:
    """Whether a batch has named columns: a table of pandas, polars or Arrow, or a mapping."""
    if isinstance(batch, Mapping) or hasattr(batch, "collect_schema"):  # no warning of polars
        return True
    return any(hasattr(batch, name) for name in ("columns", "column_names"))


def as_table(batch: Any) -> Any:
    """A table whose columns can be looked up; a lazy frame is collected."""
    if hasattr(batch, "collect") and hasattr(batch, "collect_schema"):
        batch = batch.collect()
    names_of(batch)
    return batch


def names_of(batch: Any) -> tuple[str, ...]:
    """The names of the columns."""
    if not is_table(batch):
        raise InvalidDataError(
            "wanted a table with named columns (of pandas, polars or Arrow, or a mapping of "
            f"arrays), got a {type(batch).__name__}"
        )
    if isinstance(batch, Mapping):
        names = [*batch]
    else:
        of_arrow = getattr(batch, "column_names", None)  # a frame may have a column of this name
        names = [*(of_arrow if isinstance(of_arrow, list) else batch.columns)]
    if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise InvalidDataError(f"names of columns must be strings and differ, got {names}")
    return tuple(names)


def as_names(what: str, names: Any) -> tuple[str, ...]:
    """Names of columns; a string is one name."""
    try:
        several = (names,) if isinstance(names, str) else tuple(names)
    except TypeError:
        several = ()
    if not several or len({*map(str, several)}) < len(several):
        raise InvalidDataError(f"{what} must be names of columns that differ, got {names!r:.100}")
    return tuple(as_name(what, one) for one in several)


# ---- values ----


def numbers(name: object, column: Any, times: bool = False) -> np.ndarray:
    """A column as float64 [N], with NaN where there is no value.

    :param name: Its name, for the error.
    :param times: Whether dates and times are taken.
    """
    values = np.asarray(_with_none(column))
    kind = values.dtype.kind
    as_list = getattr(column, "to_pylist", getattr(column, "to_list", None))
    if kind == "f" and as_list is not None and (np.abs(values) >= LARGEST_EXACT_INTEGER).any():
        values, kind = np.array(as_list(), object), "O"  # which may have been integers
    if values.ndim == 1 and kind in "biuf":
        return as_float64(f"column {name!r}", values)
    if values.ndim == 1 and kind == "M" and times:
        return _days(values)
    if values.ndim != 1 or kind not in "OUT":
        raise InvalidDataError(
            f"column {name!r} must hold numbers, got {values.dtype} of shape {list(values.shape)}"
        )
    what = f"column {name!r}"
    found = [number(what, value, times, f" at row {row}") for row, value in enumerate(values)]
    return np.array(found, np.float64)


def holds_times(name: object, column: Any) -> bool | None:
    """Whether a column holds dates or times, and not numbers; None where all are missing.

    :raises InvalidDataError: if it holds both, or times with a zone beside others without.
    """
    values = np.asarray(_with_none(column))
    if values.dtype.kind == "M":
        return True
    if values.dtype.kind != "O":
        return None if values.dtype.kind == "f" and np.isnan(values).all() else False
    kinds = {_kind(value) for value in values.ravel() if not _is_missing(value)}
    if len(kinds) > 1 and kinds & {*_TIMES}:
        raise InvalidDataError(
            f"column {name!r} must hold values of one kind, got {' and '.join(sorted(kinds))}"
        )
    return bool(kinds & {*_TIMES}) if kinds else None


_TIMES = "times with a zone", "times without a zone"


def _kind(value: Any) -> str:
    if not isinstance(value, (datetime.date, np.datetime64)):
        return "other values"
    return _TIMES[getattr(value, "tzinfo", None) is None]


def words(name: str, column: Any) -> list[Any]:
    """The values of a column of labels or categories, with None where there is none."""
    values = np.asarray(_with_none(column), dtype=object)
    if values.ndim != 1:
        raise InvalidDataError(f"column {name!r} must be [N], got {list(values.shape)}")
    return [None if _is_missing(value) else value for value in values]


def number(what: str, value: Any, times: bool = False, where: str = "") -> float:
    """One value as a float; NaN if it is missing.

    :param what: What to call it in the error.
    :param times: Whether dates and times are taken.
    :param where: The place of the value, for the error.
    """
    if _is_missing(value):
        return float("nan")
    if times and isinstance(value, (datetime.date, np.datetime64)):
        return float(_days(np.array([_utc(value)]))[0])
    is_number = isinstance(value, (Real, Decimal, np.bool_))
    if not is_number or isinstance(value, np.timedelta64):  # NumPy's durations are integers to it
        raise InvalidDataError(f"{what} must hold numbers, got {value!r:.100}{where}")
    if isinstance(value, Integral) and abs(int(value)) > LARGEST_EXACT_INTEGER:
        raise InvalidDataError(
            f"{what} holds the integer {value!r:.100}{where}, which a float64 cannot represent; "
            "rescale it first"
        )
    return float(value)


def _utc(value: Any) -> Any:
    """A date or time without a zone, in UTC; one that has none is taken as it stands."""
    zone = getattr(value, "tzinfo", None)
    return value if zone is None else value.astimezone(datetime.timezone.utc).replace(tzinfo=None)


def _days(times: np.ndarray) -> np.ndarray:
    return (times.astype("datetime64[us]") - _EPOCH) / _DAY


def _with_none(column: Any) -> Any:
    """Masked entries as None: NumPy would take what lies under the mask for data."""
    if getattr(getattr(column, "dt", None), "tz", None) is not None:  # a column of pandas
        return column.dt.tz_convert(None)
    if not isinstance(column, np.ma.MaskedArray):
        return column
    values = np.array(column.data, dtype=object)
    values[np.ma.getmaskarray(column)] = None  # type: ignore[no-untyped-call]
    return values


def _is_missing(value: Any) -> bool:
    """None, NaN, pandas' NA and NaT; NA is neither equal to itself nor different."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return not hasattr(value, "__len__")  # an array is no missing value
