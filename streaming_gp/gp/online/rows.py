"""Covariances of one input with all points that are held, in places of fixed number."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from streaming_gp.gp.online.kernel import Kernel
from streaming_gp.runtime.kernels import Isotropic


class Rows:
    """Points in numbered slots; empty slots have covariance zero with everything.

    :param kernel: The covariance function.
    :param slots: The number of slots.
    :param input_dim: D.
    """

    def __init__(self, kernel: Kernel, slots: int, input_dim: int) -> None:
        self.kernel = kernel
        self.Z = np.zeros((slots, input_dim))
        self.is_used = np.zeros(slots, bool)

    def copy(self) -> Rows:
        """The same points, in arrays of their own; the kernel is shared."""
        clone = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(clone, name, value.copy())
        return clone

    @property
    def free_slot(self) -> int:
        """The first slot that is empty."""
        return int(np.argmin(self.is_used))

    def row_of(self, x: np.ndarray) -> Any:
        """What the rows want to know of x [D]."""
        return x

    def put(self, slot: int, x: np.ndarray, row: Any) -> None:
        """Hold x [D]."""
        self.Z[slot] = x
        self.is_used[slot] = True

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        self.is_used[slot] = False

    def against(self, row: Any) -> np.ndarray:
        """Covariances [slots] of f(x) with f at all points, for the row of x."""
        return self._covariances(row) * self.is_used

    def _covariances(self, row: Any) -> np.ndarray:
        return self.kernel.covariance(self.Z, row[None])[:, 0]


class IsotropicRows(Rows):
    """The same with points that are kept scaled, and their squared norms."""

    kernel: Isotropic

    def __init__(self, kernel: Isotropic, slots: int, input_dim: int) -> None:
        super().__init__(kernel, slots, input_dim)
        self._scaled, self._squares = kernel.prepared(self.Z)

    def row_of(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """x [D] scaled, and its squared norm."""
        scaled, squares = self.kernel.prepared(x[None])
        return scaled[0], squares[0]

    def put(self, slot: int, x: np.ndarray, row: tuple[np.ndarray, float]) -> None:
        super().put(slot, x, row)
        self._scaled[slot], self._squares[slot] = row

    def _covariances(self, row: tuple[np.ndarray, float]) -> np.ndarray:
        scaled, square = row
        r2 = self._scaled @ scaled
        r2 *= -2.0
        r2 += self._squares
        r2 += square
        return self.kernel.of_squared_distance(r2)


def rows_of(kernel: Kernel, slots: int, input_dim: int) -> Rows:
    """Empty slots for points of this kernel."""
    if isinstance(kernel, Isotropic):
        return IsotropicRows(kernel, slots, input_dim)
    return Rows(kernel, slots, input_dim)
