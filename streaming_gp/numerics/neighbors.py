"""Which observations are near: an index of rows, which grows and is seldom built anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

BRUTE_ROWS = 10_000
"""Below so many rows every distance is computed: a tree is no faster."""
MOST_TREE_COLUMNS = 15
"""With more columns a tree looks at nearly every row: distances are computed, by FAISS if it is
there."""
BUFFER = 4096
"""So many rows, or a quarter of those in the tree, wait before the tree is built anew."""
AT_ONCE = 2**24
"""The largest number of distances that are held at once."""


@dataclass(frozen=True, eq=False)
class Index:
    """Rows by their coordinates, in which distances are Euclidean.

    :param coordinates: A [n, D].
    :param origin: Distances are taken of what lies about it [D], as they would lose their digits
        far from zero.
    :param in_tree: The first so many rows are in the tree.
    :param tree: A :class:`scipy.spatial.cKDTree`, or a flat index of FAISS; None where there is
        none.
    """

    coordinates: np.ndarray
    origin: np.ndarray
    in_tree: int = 0
    tree: Any = None

    @classmethod
    def of(cls, coordinates: np.ndarray) -> Index:
        """An index of rows [n, D]."""
        (n, D), origin = coordinates.shape, coordinates.mean(axis=0)
        if n < BRUTE_ROWS:
            return cls(coordinates, origin)
        centred = coordinates - origin
        if D <= MOST_TREE_COLUMNS:
            tree = cKDTree(centred, leafsize=32, balanced_tree=False, compact_nodes=False)
            return cls(coordinates, origin, n, tree)
        flat = _faiss(centred)
        return cls(coordinates, origin) if flat is None else cls(coordinates, origin, n, flat)

    def extended(self, coordinates: np.ndarray) -> Index:
        """With further rows, which wait outside the tree while they are few."""
        together = np.concatenate([self.coordinates, coordinates])
        waiting = len(together) - self.in_tree
        if self.tree is None and len(together) < BRUTE_ROWS:
            return Index.of(together)
        if waiting <= max(BUFFER, self.in_tree // 4) and self.tree is not None:
            return Index(together, self.origin, self.in_tree, self.tree)
        return Index.of(together)

    def nearest(self, places: np.ndarray, number: int) -> np.ndarray:
        """The ``number`` nearest rows of each place, nearest or not first: [B, k].

        :param places: Coordinates [B, D].
        :param number: k, at most n.
        """
        waiting, places = self._waiting, places - self.origin
        if self.tree is None:
            return _by_brute_force(waiting, self._norms, places, number)[0]
        inside = min(number, self.in_tree)
        squares, found = _from_tree(self.tree, places, inside)
        if not len(waiting):
            return found
        outside, more = _by_brute_force(waiting, self._norms, places, min(number, len(waiting)))
        found = np.concatenate([found, outside + self.in_tree], axis=1)
        squares = np.concatenate([squares, more], axis=1)
        chosen = np.argpartition(squares, number - 1, axis=1)[:, :number]
        return np.take_along_axis(found, chosen, axis=1)

    @cached_property
    def _waiting(self) -> np.ndarray:
        """Rows outside the tree, about the origin."""
        return self.coordinates[self.in_tree :] - self.origin

    @cached_property
    def _norms(self) -> np.ndarray:
        """``‖a‖²`` of these."""
        return np.einsum("nd,nd->n", self._waiting, self._waiting)


def nearest_earlier(coordinates: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
    """For some rows [S] the nearest among the rows before each of them: [S, k].

    :param coordinates: A [n, D].
    :param rows: Of which at least k others come before each.
    :param number: k.
    """
    coordinates = coordinates - coordinates.mean(axis=0)  # far from zero digits would be lost
    norms = np.einsum("nd,nd->n", coordinates, coordinates)
    found = np.empty((len(rows), number), int)
    for place, row in enumerate(rows):
        squares = norms[:row] - 2.0 * (coordinates[:row] @ coordinates[row])
        if row > number:
            found[place] = np.argpartition(squares, number - 1)[:number]
        else:
            found[place] = np.arange(number)
    return found


def _by_brute_force(
    rows: np.ndarray, norms: np.ndarray, places: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest rows [B, k] and squares of their distances."""
    found, squares = np.empty((len(places), number), int), np.empty((len(places), number))
    step = max(1, AT_ONCE // max(1, len(rows)))
    for start in range(0, len(places), step):
        some = slice(start, start + step)
        place = places[some]
        distance = norms - 2.0 * (place @ rows.T)
        if number < len(rows):
            found[some] = np.argpartition(distance, number - 1, axis=1)[:, :number]
        else:
            found[some] = np.arange(number)
        own = np.einsum("nd,nd->n", place, place)[:, None]
        squares[some] = np.take_along_axis(distance, found[some], axis=1) + own
    return found, squares


def _from_tree(tree: Any, places: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Squares of distances and rows [B, k]."""
    if isinstance(tree, cKDTree):
        distance, found = tree.query(places, number)
        shape = len(places), number
        return np.reshape(distance, shape) ** 2, np.reshape(found, shape)
    squares, found = tree.search(np.ascontiguousarray(places, np.float32), number)
    return squares.astype(np.float64), found


def _faiss(coordinates: np.ndarray) -> Any:
    """A flat index of FAISS, or None where the package is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    index = faiss.IndexFlatL2(coordinates.shape[1])
    index.add(np.ascontiguousarray(coordinates, np.float32))
    return index


# ---- rows that cannot be told apart ----


def cells(coordinates: np.ndarray, side: float) -> np.ndarray:
    """A number for each row [n], the same for rows of one cell of a grid of this side.

    With a side of zero only equal rows share a cell.
    """
    corners = coordinates if side == 0.0 else np.floor(coordinates / side)
    as_integers = np.ascontiguousarray(corners + 0.0).view(np.int64)
    keys = np.random.default_rng(0).integers(2**63, size=coordinates.shape[1], dtype=np.int64) | 1
    hashed = np.zeros(len(coordinates), np.int64)
    with np.errstate(over="ignore"):
        for column, key in zip(as_integers.T, keys, strict=True):
            hashed = (hashed ^ (column * key)) * np.int64(0x9E3779B97F4A7C1 | 1)
            hashed ^= hashed >> 31
    return np.unique(hashed, return_inverse=True)[1]
