"""Columns by name, whatever kind of table they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import LARGEST_EXACT_INTEGER, as_float64


def is_table(batch: Any) -> bool:
    """Whether a batch has named columns: a table of pandas, polars or Arrow, or a mapping."""
    return isinstance(batch, Mapping) or any(hasattr(batch, n) for n in ("columns", "column_names"))


def names_of(batch: Any) -> tuple[str, ...]:
    """The names of the columns.

    :raises InvalidDataError: if the batch has none, or one of them is no string or comes twice.
    """
    if not is_table(batch):
        raise InvalidDataError(
            "wanted a table with named columns (of pandas, polars or Arrow, or a mapping of "
            f"arrays), got a {type(batch).__name__}"
        )
    names = [*_names(batch)]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or len(set(names)) != len(names):
        raise InvalidDataError(f"names of columns must be strings and differ, got {names}")
    return tuple(names)


def _names(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch
    of_arrow = getattr(batch, "column_names", None)  # a frame may have a column of this name
    return of_arrow if isinstance(of_arrow, list) else batch.columns


def labels(batch: Any, name: str) -> np.ndarray:
    """A column [N] as it is, without numbers for its values; None where there is no value."""
    values = np.asarray(_with_none(batch[name]), dtype=object)
    return np.array([None if _is_missing(value) else value for value in values], dtype=object)


def numbers(batch: Any, names: Sequence[str]) -> np.ndarray:
    """Columns [N, D] of these names as numbers, with NaN where there is no value.

    :raises InvalidDataError: if a value is no number; names column and row.
    """
    columns = [_as_numbers(name, batch[name]) for name in names]
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len({*lengths.values()}) > 1:
        raise InvalidDataError(f"columns must be of one length, got {lengths}")
    return np.stack(columns, axis=1)


def _as_numbers(name: str, column: Any) -> np.ndarray:
    values = np.asarray(_with_none(column))
    if values.ndim == 1 and values.dtype.kind in "biuf":
        return as_float64(f"column {name!r}", values)
    if values.ndim != 1 or values.dtype.kind not in "OUT":
        raise InvalidDataError(
            f"column {name!r} must hold numbers, got {values.dtype} of shape {list(values.shape)}"
        )
    return np.array([_as_number(name, row, value) for row, value in enumerate(values)], float)


def _as_number(name: str, row: int, value: Any) -> float:
    if _is_missing(value):
        return float("nan")
    if isinstance(value, (str, bytes)):
        raise _no_number(name, row, value)
    if isinstance(value, Integral) and abs(int(value)) > LARGEST_EXACT_INTEGER:
        raise InvalidDataError(
            f"column {name!r} holds the integer {value} at row {row}, which a float64 cannot "
            "represent; rescale it first"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _no_number(name, row, value) from None


def _no_number(name: str, row: int, value: Any) -> InvalidDataError:
    return InvalidDataError(f"column {name!r} must hold numbers, got {value!r:.100} at row {row}")


def _with_none(column: Any) -> Any:
    """Masked entries as None: NumPy would take what lies under the mask for data."""
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
    except TypeError:
        return True
