"""What batches say of the scale of their columns: sums, kept for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.estimators.scaling import Scaling


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

    def __add__(self, other: Sums) -> Sums:
        """The sums of both (Chan, Golub & LeVeque 1983)."""
        number, shift = self.number + other.number, other.mean - self.mean
        squares = self.squares + other.squares + shift**2 * self.number * other.number / number
        return Sums(number, self.mean + shift * other.number / number, squares)


@dataclass(frozen=True, eq=False)
class Normalisation:
    """The scale of columns: that of the first batch, which is applied, and that of all batches.

    What is applied never changes, as pseudo-points lie in its units, and hyperparameters are
    learned in them. So a batch that is removed leaves nothing behind, unless it was the first. The
    sums of each batch are kept, and what is known of all of them is what the batches that are there
    would give alone.

    :param applied: What is applied.
    :param batches: The sums of each batch by its name, in order.
    """

    applied: Scaling
    batches: Mapping[str, Sums] = field(default_factory=dict)

    MERGED = "merged"

    @property
    def running(self) -> Scaling:
        """The scale of all batches that are there; what is applied if there are none."""
        if not self.batches:
            return self.applied
        first, *others = self.batches.values()
        total = first
        for one in others:
            total = total + one
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
        kept = {one: sums for one, sums in self.batches.items() if one != name}
        return Normalisation(self.applied, kept)

    def merged(self, kept: Collection[str]) -> Normalisation:
        """The same, with the sums of all batches but these as one, first in order.

        :param kept: Names of batches that can still be removed.
        """
        gone = [sums for name, sums in self.batches.items() if name not in kept]
        if len(gone) < 2:
            return self
        total = gone[0]
        for one in gone[1:]:
            total = total + one
        alone = {name: sums for name, sums in self.batches.items() if name in kept}
        return Normalisation(self.applied, {self.MERGED: total, **alone})

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
        """What :meth:`to_record` gave."""
        batches = {
            name: Sums(number, np.array(mean), np.array(squares))
            for name, (number, mean, squares) in record["batches"].items()
        }
        return cls(Scaling(np.array(record["mean"]), np.array(record["unit"])), batches)
