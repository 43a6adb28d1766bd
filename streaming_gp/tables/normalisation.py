"""The scale of columns: of the first batch, and of all batches by the sums of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.estimators.base import Scaling


@dataclass(frozen=True, eq=False)
class Sums:
    """Number, mean [D] and summed squared deviations [D] of some rows.

    :param number: The number of rows.
    :param mean: Their mean.
    :param squares: The sums of squared deviations from it.
    """

    number: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Sums:
        """The sums of rows [N, D]."""
        mean = values.mean(axis=0)
        return cls(len(values), mean, ((values - mean) ** 2).sum(axis=0))

    @classmethod
    def total(cls, parts: Iterable[Sums]) -> Sums:
        """The sums of all rows of some parts, of which there is one at least (Chan et al. 1983)."""
        first, *others = parts
        number, mean, squares = first.number, first.mean, first.squares
        for one in others:
            shift, together = one.mean - mean, number + one.number
            squares = squares + one.squares + shift**2 * number * one.number / together
            number, mean = together, mean + shift * one.number / together
        return cls(number, mean, squares)


@dataclass(frozen=True, eq=False)
class Normalisation:
    """The scale of columns: that of the first batch, which is applied, and that of all batches.

    The one that is applied never changes, as pseudo-points lie in its units, and hyperparameters
    are learned in them. So a batch that is removed leaves nothing behind, unless it was the first.
    The sums of each batch are kept, so that the scale of all is that which the batches that are
    there would give alone.

    :param applied: The scale that is applied.
    :param batches: The sums of each batch by its name, in order.
    """

    applied: Scaling
    batches: Mapping[str, Sums] = field(default_factory=dict)

    MERGED = "merged"

    @property
    def running(self) -> Scaling:
        """The scale of all batches that are there; the one that is applied if there are none."""
        if not self.batches:
            return self.applied
        total = Sums.total(self.batches.values())
        spread = np.sqrt(total.squares / total.number)
        return Scaling(total.mean, np.where(spread == 0.0, 1.0, spread))

    @property
    def number(self) -> int:
        """The number of rows in all batches that are there."""
        return sum(one.number for one in self.batches.values())

    def with_batch(self, name: str, values: np.ndarray) -> Normalisation:
        """The same after one more batch [N, D] in its own units."""
        return Normalisation(self.applied, {**self.batches, name: Sums.of(values)})

    def without(self, name: str) -> Normalisation:
        """The same without a batch."""
        others = {one: sums for one, sums in self.batches.items() if one != name}
        return Normalisation(self.applied, others)

    def merged(self, removable: Collection[str]) -> Normalisation:
        """The same, with the sums of all batches but these as one, first in order.

        :param removable: The names of the batches that can still be removed.
        """
        permanent = [sums for name, sums in self.batches.items() if name not in removable]
        if len(permanent) < 2:
            return self
        others = {name: sums for name, sums in self.batches.items() if name in removable}
        return Normalisation(self.applied, {self.MERGED: Sums.total(permanent), **others})

    # ---- plain values ----

    def to_record(self) -> dict[str, Any]:
        """As JSON takes it, without loss."""
        return {
            "mean": self.applied.mean.tolist(),
            "unit": self.applied.unit.tolist(),
            "batches": {
                name: [one.number, one.mean.tolist(), one.squares.tolist()]
                for name, one in self.batches.items()
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Normalisation:
        """The one whose :meth:`to_record` this is."""
        batches = {
            name: Sums(number, np.array(mean), np.array(squares))
            for name, (number, mean, squares) in record["batches"].items()
        }
        return cls(Scaling(np.array(record["mean"]), np.array(record["unit"])), batches)
