"""Which columns are inputs and which are targets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.tables.columns import labels, names_of, numbers


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

        :raises InvalidDataError: if a named column is not there, or there are no inputs.
        """
        names = names_of(batch)
        inputs = features or tuple(name for name in names if name not in targets)
        if not inputs:
            raise InvalidDataError(f"there are no inputs beside the targets {list(targets)}")
        found = cls(inputs, targets, classes, features is None)
        found._check(batch, targets)
        return found

    def inputs(self, batch: Any) -> np.ndarray:
        """The inputs [N, D] of a table, which may have targets.

        :raises InvalidDataError: if columns differ from those of the first batch, or a value is no
            number.
        """
        self._check(batch, ())
        return numbers(batch, self.features)

    def observed(self, batch: Any) -> np.ndarray:
        """The targets [N, P] of a table, NaN where one is missing; labels by their number.

        :raises InvalidDataError: as :meth:`inputs`, or if a label is none of the classes.
        """
        self._check(batch, self.targets)
        if self.classes is None:
            return numbers(batch, self.targets)
        number_of: dict[Any, float] = {label: float(n) for n, label in enumerate(self.classes)}
        number_of[None] = float("nan")
        found = labels(batch, self.targets[0]).tolist()
        for row, label in enumerate(found):
            if label not in number_of:
                raise InvalidDataError(
                    f"{self.targets[0]!r} is {label!r} at row {row}, which is none of the classes "
                    f"{list(self.classes)}"
                )
        return np.array([[number_of[label]] for label in found], float)

    def _check(self, batch: Any, targets: tuple[str, ...]) -> None:
        names = names_of(batch)
        wanted = (*self.features, *targets)
        missing = [name for name in wanted if name not in names]
        known = {*self.features, *self.targets}
        unknown = [name for name in names if name not in known] if self.is_strict else []
        if missing or unknown:
            raise InvalidDataError(
                f"wanted the columns {list(wanted)}, got {list(names)}"
                + (f"; missing are {missing}" if missing else "")
                + (f"; not known are {unknown}" if unknown else "")
            )
