"""Columns in units of their own spread, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.errors import InvalidDataError


@dataclass(frozen=True, eq=False)
class Scaling:
    """An affine map of each column, to mean 0 and standard deviation 1 of the rows it was made of.

    :param mean: The value that becomes 0, [D].
    :param unit: The distance from it that becomes 1, [D].
    """

    mean: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, scale: bool = True) -> Scaling:
        """The map that standardises these columns.

        NaN counts as no value. A column without values, or with one value only, keeps its unit.

        :param values: Columns [N, D].
        :param scale: Whether to scale; if not, the map changes nothing.
        :raises InvalidDataError: if their squares overflow.
        """
        if not scale:
            return cls(np.zeros(values.shape[1]), np.ones(values.shape[1]))
        has_value = np.isfinite(values)
        number = np.maximum(has_value.sum(axis=0), 1)
        mean = np.where(has_value, values, 0.0).sum(axis=0) / number
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.where(has_value, values - mean, 0.0) ** 2
        if not np.isfinite(squares.sum()):
            raise InvalidDataError("columns are too large for a scale: their squares overflow")
        spread = np.sqrt(squares.sum(axis=0) / number)
        is_constant = spread <= 1e-12 * np.abs(mean)
        return cls(mean, np.where(is_constant | (spread == 0.0), 1.0, spread))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Columns [..., D] in these units."""
        return (values - self.mean) / self.unit

    def original(self, values: np.ndarray) -> np.ndarray:
        """Scaled columns [..., D] in their own units again."""
        return self.mean + self.unit * values
