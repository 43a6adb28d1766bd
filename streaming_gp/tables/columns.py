"""The columns of a table that a model looks at: inputs, targets, labels and categories."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gpflow.likelihoods as gl
import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.frames.columns import MISSING, as_names, names_of, numbers, words
from streaming_gp.validation import number_of_classes

Categories = Mapping[str, tuple[Hashable, ...]]
"""The words of each column of categories."""


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model looks at.

    :param features: The names of the inputs.
    :param targets: The names of the targets.
    :param classes: The labels of the one target, if it holds labels.
    :param is_strict: Whether other columns are refused; else they are left out.
    :param categories: The words of the inputs that hold words; each word is one input of the model.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[Hashable, ...] | None = None
    is_strict: bool = False
    categories: Categories = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        batch: Any,
        targets: tuple[str, ...],
        features: tuple[str, ...] | None,
        classes: tuple[Hashable, ...] | None,
        categories: Mapping[str, tuple[Hashable, ...] | None],
    ) -> Schema:
        """The named columns; without names for the inputs, all that are no targets.

        :param categories: The words of columns of categories; those of the batch where None.
        :raises InvalidDataError: if there are no inputs, or no such column of categories.
        """
        inputs = features or tuple(name for name in names_of(batch) if name not in targets)
        if not inputs:
            raise InvalidDataError(f"there are no inputs beside the targets {list(targets)}")
        if unknown := [name for name in categories if name not in inputs]:
            raise InvalidDataError(f"categories {unknown} are none of the inputs {list(inputs)}")
        all_words = {
            name: tuple(dict.fromkeys(one for one in words(name, batch[name]) if one is not None))
            if some is None
            else some
            for name, some in categories.items()
        }
        return cls(inputs, targets, classes, features is None, all_words)

    def inputs(self, batch: Any, missing: str = "refuse") -> np.ndarray:
        """The inputs [N, D] of a table, which may have targets.

        :param missing: Whether missing inputs are refused; otherwise they are NaN.
        :raises InvalidDataError: if columns differ from those of the first batch, or a value is
            neither a number nor one of the column's categories, or is missing; names the first
            such row, counted from 0.
        """
        self._check(batch, ())
        columns = {name: self._column(name, batch[name]) for name in self.features}
        X = _stack(columns)
        is_missing = np.isnan(X)
        if missing == "refuse" and is_missing.any():
            row = int(np.argmax(is_missing.any(axis=1)))
            name = next(name for name, values in columns.items() if np.isnan(values[row]).any())
            raise InvalidDataError(
                f"input {name!r} is missing at row {row} ({int(is_missing.any(axis=1).sum())} of "
                f"{len(X)} rows miss one): leave such rows out, or fill them in"
            )
        return X

    def _column(self, name: str, column: Any) -> np.ndarray:
        """The inputs [N, K] of a column: one, or one for each category."""
        known = self.categories.get(name)
        if known is None:
            return numbers(name, column, times=True)[:, None]
        places, rows = {word: place for place, word in enumerate(known)}, words(name, column)
        block = np.zeros((len(rows), len(known)))
        for row, word in enumerate(rows):
            if word is None:
                block[row] = np.nan
            elif word in places:
                block[row, places[word]] = 1.0
            else:
                raise InvalidDataError(
                    f"{name!r} is {word!r} at row {row}, a category that the first batch did not "
                    f"have: it had {list(known)}"
                )
        return block

    def observations(self, batch: Any) -> np.ndarray:
        """The targets [N, P] of a table, NaN where one is missing; labels by their number.

        :raises InvalidDataError: as :meth:`inputs`, or if a label is none of the classes.
        """
        self._check(batch, self.targets)
        if self.classes is None:
            return _stack({name: numbers(name, batch[name])[:, None] for name in self.targets})
        (target,) = self.targets
        number_of = {label: float(place) for place, label in enumerate(self.classes)}
        found = []
        for row, label in enumerate(words(target, batch[target])):
            if label in number_of:
                found.append(number_of[label])
            elif label is None or (isinstance(label, str) and label.lower() in MISSING):
                found.append(float("nan"))
            else:
                raise InvalidDataError(
                    f"{target!r} is {label!r} at row {row}, which is none of the classes "
                    f"{list(self.classes)}"
                )
        return np.array(found, float)[:, None]

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


def _stack(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Columns [N, K] beside one another."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len({*lengths.values()}) > 1:
        raise InvalidDataError(f"columns must be of one length, got {lengths}")
    return np.concatenate([*columns.values()], axis=1)


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


def as_categories(categories: Any) -> dict[str, tuple[Hashable, ...] | None]:
    """The words of each column of categories, or None where the first batch says them.

    :raises InvalidDataError: if there are no names, or no words for one of them.
    """
    if not isinstance(categories, Mapping):
        return dict.fromkeys(as_names("categories", categories) if categories else ())
    found: dict[str, tuple[Hashable, ...] | None] = {
        name: tuple(some) for name, some in categories.items()
    }
    if empty := [name for name, some in found.items() if not some]:
        raise InvalidDataError(f"categories must name words, got none for {empty}")
    return found


def complete_rows(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows that are all there, and the number of the others.

    :param X: Inputs [N, D], NaN where one is missing.
    :param Y: Targets [N, P], NaN where one is missing.
    """
    is_complete = ~(np.isnan(Y).any(axis=1) | np.isnan(X).any(axis=1))
    return X[is_complete], Y[is_complete], int(np.count_nonzero(~is_complete))
