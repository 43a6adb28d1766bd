"""Which observations are near: an index of rows, which grows and is seldom built anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

BRUTE_ROWS = 10_000
"""Below so many rows every distance is computed: a tree is no faster."""
MOST_TREE_COLUMNS = 15
"""With more columns a tree looks at nearly every row: distances are computed, by FAISS if it is
there."""
BUFFER = 4096
"""So many rows wait before they are in a tree."""
GROWTH = 4
"""A tree takes over those before it that are not larger by this factor, so that there are few."""
AT_ONCE = 2**20
"""The largest number of distances that are held at once."""
FAR = 1e8
"""Where a square of a distance from the origin is larger, ``‖a‖² + ‖b‖² − 2 aᵀb`` has too few
digits for what is near in units of one."""
FAR_IN_SINGLE = 1e4
"""The same of single precision, which FAISS has: beyond, squares are off by a thousandth."""


@dataclass(frozen=True, eq=False)
class Index:
    """Rows by their coordinates, in which distances are Euclidean.

    :param coordinates: A [n, D].
    :param origin: Distances are taken of what lies about it [D], as they would lose their digits
        far from zero.
    :param trees: The row at which each begins, and a :class:`scipy.spatial.cKDTree` or a flat index
        of FAISS; none where all distances are computed.
    :param in_trees: The first so many rows are in trees; the others wait.
    """

    coordinates: np.ndarray
    origin: np.ndarray
    trees: tuple[tuple[int, Any], ...] = ()
    in_trees: int = 0

    @classmethod
    def of(cls, coordinates: np.ndarray) -> Index:
        """An index of rows [n, D]."""
        origin = coordinates.mean(axis=0)
        tree = None if len(coordinates) < BRUTE_ROWS else _tree(coordinates - origin)
        if tree is None:
            return cls(coordinates, origin)
        return cls(coordinates, origin, ((0, tree),), len(coordinates))

    def extended(self, coordinates: np.ndarray) -> Index:
        """With further rows, which wait outside the trees while they are few."""
        together = np.concatenate([self.coordinates, coordinates])
        if not self.trees:
            return Index.of(together)
        n, start, trees = len(together), self.in_trees, list(self.trees)
        if n - start <= BUFFER:
            return Index(together, self.origin, self.trees, start)
        while trees and start - trees[-1][0] <= GROWTH * (n - start):
            start = trees.pop()[0]
        added = _tree(together[start:] - self.origin)
        if added is None:
            return Index(together, self.origin)
        return Index(together, self.origin, (*trees, (start, added)), n)

    def nearest(self, places: np.ndarray, number: int) -> np.ndarray:
        """The ``number`` nearest rows of each place, nearest or not first: [B, k].

        :param places: Coordinates [B, D].
        :param number: k, at most n.
        """
        places = places - self.origin
        ends = [*(start for start, _ in self.trees[1:]), self.in_trees]
        found, squares = [], []
        for (start, tree), end in zip(self.trees, ends, strict=False):
            distance, rows = _from_tree(tree, places, min(number, end - start))
            found.append(rows + start)
            squares.append(distance)
        if len(self._waiting):
            most = min(number, len(self._waiting))
            rows, distance = _by_brute_force(self._waiting, self._norms, places, most)
            found.append(rows + self.in_trees)
            squares.append(distance)
        if len(found) == 1:
            return found[0]
        rows, distance = np.concatenate(found, axis=1), np.concatenate(squares, axis=1)
        chosen = np.argpartition(distance, number - 1, axis=1)[:, :number]
        return np.take_along_axis(rows, chosen, axis=1)

    @cached_property
    def _waiting(self) -> np.ndarray:
        """Rows outside the trees, about the origin."""
        return self.coordinates[self.in_trees :] - self.origin

    @cached_property
    def _norms(self) -> np.ndarray:
        """``‖a‖²`` of these."""
        return np.einsum("nd,nd->n", self._waiting, self._waiting)


def nearest_earlier(
    coordinates: np.ndarray, rows: np.ndarray, number: int, is_last: np.ndarray
) -> np.ndarray:
    """For some rows [S] the nearest among the rows before each of them: [S, k].

    :param coordinates: A [n, D].
    :param rows: Of which fewer than k come before, the first k rows are given.
    :param number: k.
    :param is_last: Which rows [n] come after all others, however near they are.
    """
    coordinates = coordinates - coordinates.mean(axis=0)  # far from zero digits would be lost
    norms = np.einsum("nd,nd->n", coordinates, coordinates)
    found = np.empty((len(rows), number), int)
    for place, row in enumerate(rows):
        if row > number:
            (squares,) = _squares(coordinates[:row], norms[:row], coordinates[row : row + 1])
            squares[is_last[:row]] = np.inf
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
        distance = _squares(rows, norms, places[some])
        if number < len(rows):
            found[some] = np.argpartition(distance, number - 1, axis=1)[:, :number]
        else:
            found[some] = np.arange(number)
        squares[some] = np.take_along_axis(distance, found[some], axis=1)
    return found, squares


def _squares(rows: np.ndarray, norms: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Squares of distances [B, n]."""
    if norms.max() > FAR:
        return np.asarray(cdist(places, rows, "sqeuclidean"))
    own = np.einsum("bd,bd->b", places, places)
    return norms + own[:, None] - 2.0 * (places @ rows.T)


def _from_tree(tree: Any, places: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Squares of distances and rows [B, k]."""
    if isinstance(tree, _Flat):
        return tree.query(places, number)
    distance, found = tree.query(places, number)
    shape = len(places), number
    return np.reshape(distance, shape) ** 2, np.reshape(found, shape)


def _tree(coordinates: np.ndarray) -> Any:
    """A tree of rows, or for many columns a flat index of FAISS; None where that is not there, or
    rows are too far from the origin for its precision.
    """
    if coordinates.shape[1] <= MOST_TREE_COLUMNS:
        return cKDTree(coordinates, leafsize=32, balanced_tree=False, compact_nodes=False)
    norms = np.einsum("nd,nd->n", coordinates, coordinates)
    if norms.max() > FAR_IN_SINGLE:
        return None
    try:
        import faiss
    except ImportError:
        return None
    index = faiss.IndexFlatL2(coordinates.shape[1])
    index.add(np.ascontiguousarray(coordinates, np.float32))
    return _Flat(index, coordinates, norms)


@dataclass(frozen=True, eq=False)
class _Flat:
    """A flat index of FAISS, its rows [n, D] and their ``‖a‖²``."""

    index: Any
    rows: np.ndarray
    norms: np.ndarray

    def query(self, places: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Squares of distances and rows [B, k]."""
        single = np.ascontiguousarray(places, np.float32)
        squares, found = self.index.search(single, number)
        squares = squares.astype(np.float64)
        far = np.einsum("bd,bd->b", places, places) > FAR_IN_SINGLE
        if far.any():
            found[far], squares[far] = _by_brute_force(self.rows, self.norms, places[far], number)
        return squares, found


# ---- rows that cannot be told apart ----


def cells(coordinates: np.ndarray, side: float) -> np.ndarray:
    """A number for each row [n], the same for rows of one cell of a grid of this side; cells count
    in the order in which rows first lie in them.

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
    _, first, cell = np.unique(hashed, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[cell]
