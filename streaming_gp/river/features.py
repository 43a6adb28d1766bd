"""Features by name, as numbers in a fixed order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf, isinf
from numbers import Real
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError

Features = Mapping[Hashable, Any]


def checked(x: Any) -> dict[Hashable, float]:
    """The features that have a value; None and NaN are none.

    :raises InvalidDataError: if x is no mapping, or a value is no finite number; names it.
    """
    if not isinstance(x, Mapping):
        raise InvalidDataError(f"x must map names to numbers, got a {type(x).__name__}")
    known = {name: as_number(f"feature {name!r}", value) for name, value in x.items()}
    return {name: value for name, value in known.items() if not np.isnan(value)}


def as_number(name: str, value: Any) -> float:
    """A number of Python or NumPy as a float; None is NaN, and a flag is 0 or 1.

    :raises InvalidDataError: if it is anything else, or infinite.
    """
    if value is None:
        return float("nan")
    try:
        number = float(value) if isinstance(value, (Real, np.bool_)) else inf
    except OverflowError:  # an integer beyond all floats
        number = inf
    if isinf(number):
        raise InvalidDataError(f"{name} must be a finite number, got {value!r:.100}")
    return number


def names_in(rows: Iterable[Features]) -> tuple[Hashable, ...]:
    """All names in these rows, in an order that does not depend on the order in the rows."""
    return tuple(sorted({name for row in rows for name in row}, key=_by_text))


def _by_text(name: Hashable) -> tuple[str, str]:
    return str(name), type(name).__name__


def matrix(rows: Sequence[Features], names: Sequence[Hashable]) -> np.ndarray:
    """Rows [N, D] of these features, NaN where a row has none; other features are left out."""
    values = [[row.get(name, np.nan) for name in names] for row in rows]
    return np.array(values, dtype=float).reshape(len(rows), len(names))
