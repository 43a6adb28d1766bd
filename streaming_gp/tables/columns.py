"""Columns by name, whatever kind of table they come in: inputs, targets and labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import gpflow.likelihoods as gl
import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import LARGEST_EXACT_INTEGER, as_float64, as_name
from streaming_gp.validation import number_of_classes


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model looks at.

    :param features: The names of the inputs.
    :param targets: The names of the targets.
    :param classes: The labels of the one target, if it holds labels.
    :param is_strict: Whether other columns are refused; else they are left out.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[Hashable, ...] | None = None
    is_strict: bool = False

    @classmethod
    def of(
        cls,
        batch: Any,
        targets: tuple[str, ...],
        features: tuple[str, ...] | None,
        classes: tuple[Hashable, ...] | None,
    ) -> Schema:
        """The named columns; without names for the inputs, all that are no targets.

        :raises InvalidDataError: if there are no inputs.
        """
        inputs = features or tuple(name for name in names_of(batch) if name not in targets)
        if not inputs:
            raise InvalidDataError(f"there are no inputs beside the targets {list(targets)}")
        return cls(inputs, targets, classes, features is None)

    def inputs(self, batch: Any) -> np.ndarray:
        """The inputs [N, D] of a table, which may have targets.

        :raises InvalidDataError: if columns differ from those of the first batch, or a value is no
            number or is missing; names the first such row, counted from 0.
        """
        self._check(batch, ())
        X = _numbers(batch, self.features)
        missing = np.argwhere(np.isnan(X))
        if len(missing):
            row, column = missing[0]
            rows = len(np.unique(missing[:, 0]))
            raise InvalidDataError(
                f"input {self.features[column]!r} is missing at row {row} ({rows} of {len(X)} rows "
                "miss one): leave such rows out, or fill them in"
            )
        return X

    def observations(self, batch: Any) -> np.ndarray:
        """The targets [N, P] of a table, NaN where one is missing; labels by their number.

        :raises InvalidDataError: as :meth:`inputs`, or if a label is none of the classes.
        """
        self._check(batch, self.targets)
        if self.classes is None:
            return _numbers(batch, self.targets)
        number_of: dict[Any, float] = {label: float(n) for n, label in enumerate(self.classes)}
        number_of[None] = float("nan")
        numbers = []
        labels = np.asarray(_with_none(batch[self.targets[0]]), dtype=object)
        for row, label in enumerate(None if _is_missing(one) else one for one in labels):
            if label not in number_of:
                raise InvalidDataError(
                    f"{self.targets[0]!r} is {label!r} at row {row}, which is none of the classes "
                    f"{list(self.classes)}"
                )
            numbers.append([number_of[label]])
        return np.array(numbers, float).reshape(-1, 1)

    def _check(self, batch: Any, targets: tuple[str, ...]) -> None:
        names = names_of(batch)
        wanted = (*self.features, *targets)
        missing = [name for name in wanted if name not in names]
        allowed = {*self.features, *self.targets}
        unknown = [name for name in names if name not in allowed] if self.is_strict else []
        if missing or unknown:
            raise InvalidDataError(
                f"wanted the columns {list(wanted)}, got {list(names)}"
                + (f"; missing are {missing}" if missing else "")
                + (f"; not known are {unknown}" if unknown else "")
            )


# ---- arguments ----


def as_names(what: str, names: Any) -> tuple[str, ...]:
    """Names of columns; a string is one name.

    :param what: What to call them in the error.
    :raises InvalidDataError: if there are none, or one is no string or comes twice.
    """
    try:
        several = (names,) if isinstance(names, str) else tuple(names)
    except TypeError:
        several = ()
    if not several or len({*map(str, several)}) < len(several):
        raise InvalidDataError(f"{what} must be names of columns that differ, got {names!r:.100}")
    return tuple(as_name(what, one) for one in several)


def as_classes(classes: Any, likelihood: gl.Likelihood) -> tuple[Hashable, ...]:
    """The labels of a likelihood that has as many classes.

    :raises InvalidDataError: if there are not at least two that differ, or the likelihood has
        another number of classes, or none.
    """
    try:
        labels = tuple(classes)
        number = len({*labels})
    except TypeError:
        labels, number = (), 0
    if number < max(2, len(labels)):
        raise InvalidDataError(f"classes must be two labels or more that differ, got {classes!r}")
    if isinstance(likelihood, gl.Gaussian) or number_of_classes(likelihood) not in (number, None):
        raise InvalidDataError(
            f"{number} classes want a likelihood of {number} classes (Bernoulli for two, Softmax), "
            f"got {type(likelihood).__name__}"
        )
    return labels


# ---- tables ----


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
    if isinstance(batch, Mapping):
        names = [*batch]
    else:
        of_arrow = getattr(batch, "column_names", None)  # a frame may have a column of this name
        names = [*(of_arrow if isinstance(of_arrow, list) else batch.columns)]
    if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise InvalidDataError(f"names of columns must be strings and differ, got {names}")
    return tuple(names)


def complete_rows(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows whose targets are all there, and the number of the others.

    :param X: Inputs [N, D].
    :param Y: Targets [N, P], NaN where one is missing.
    """
    is_complete = ~np.isnan(Y).any(axis=1)
    return X[is_complete], Y[is_complete], int(np.count_nonzero(~is_complete))


# ---- values ----


def _numbers(batch: Any, names: Sequence[str]) -> np.ndarray:
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
    if isinstance(value, Integral) and abs(int(value)) > LARGEST_EXACT_INTEGER:
        raise InvalidDataError(
            f"column {name!r} holds the integer {value} at row {row}, which a float64 cannot "
            "represent; rescale it first"
        )
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidDataError(
            f"column {name!r} must hold numbers, got {value!r:.100} at row {row}"
        ) from None


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
