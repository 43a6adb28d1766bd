"""LoG-GP: local Gaussian processes in a binary tree that grows (Lederer et al. 2021).

"Gaussian Process-Based Real-Time Learning for Safety Critical Applications", ICML 2021, as a
baseline. A leaf that is full splits along the input of largest range: a row goes to the right with
probability ``clip((x − s) / o + ½, 0, 1)``, for the mean s of the leaf and the width o of the
overlap. Predictions are the generalised product of the leaves, each to the power of the
probability p that x goes there: ``1/v = Σ p / v_leaf``, ``m = v Σ p m_leaf / v_leaf``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cholesky, solve_triangular


@dataclass
class Leaf:
    """Rows of one leaf, and the Cholesky factor of their covariance."""

    X: np.ndarray
    y: np.ndarray
    L: np.ndarray
    white: np.ndarray
    size: int = 0


@dataclass
class Branch:
    """Where rows part."""

    column: int
    at: float
    overlap: float
    children: list[Leaf | Branch] = field(default_factory=list)

    def right(self, x: np.ndarray) -> float:
        share = (x[self.column] - self.at) / self.overlap + 0.5
        return float(min(max(share, 0.0), 1.0))


class LocalGPs:
    """One output, at hyperparameters that are given.

    :param lengthscales: ℓ [D].
    :param variance: σ_f².
    :param noise: σ².
    :param most: The number of rows of a leaf at which it splits.
    :param overlap: o, as a part of a leaf's range.
    """

    def __init__(
        self,
        lengthscales: np.ndarray,
        variance: float,
        noise: float,
        most: int = 100,
        overlap: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._lengthscales, self._variance, self._noise = lengthscales, variance, noise
        self._most, self._overlap = most, overlap
        self._rng = np.random.default_rng(seed)
        self._root: Leaf | Branch = self._leaf(np.zeros((0, len(lengthscales))), np.zeros(0))

    def predict(self, x: np.ndarray) -> tuple[float, float]:
        """Mean and variance of an observation at x [D]."""
        x = x / self._lengthscales
        precision = weighted = 0.0
        for share, leaf in _leaves(self._root, x):
            k = self._covariance(leaf.X[: leaf.size], x[None])[:, 0]
            white = solve_triangular(
                leaf.L[: leaf.size, : leaf.size], k, lower=True, check_finite=False
            )
            variance = max(self._variance + self._noise - float(white @ white), self._noise)
            precision += share / variance
            weighted += share * float(white @ leaf.white[: leaf.size]) / variance
        return weighted / precision, 1.0 / precision

    def update(self, x: np.ndarray, y: float) -> None:
        """Learn from one observation at x [D]."""
        x = x / self._lengthscales
        above, side, node = None, 0, self._root
        while isinstance(node, Branch):
            above, side = node, int(self._rng.random() < node.right(x))
            node = node.children[side]
        self._append(node, x, y)
        if node.size == self._most:
            branch = self._split(node)
            if above is None:
                self._root = branch
            else:
                above.children[side] = branch

    def _covariance(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        gaps = ((A[:, None] - B) ** 2).sum(axis=-1)
        return np.asarray(self._variance * np.exp(-0.5 * gaps))

    def _leaf(self, X: np.ndarray, y: np.ndarray) -> Leaf:
        most, size = self._most, len(X)
        leaf = Leaf(
            np.zeros((most, X.shape[1])), np.zeros(most), np.zeros((most, most)), np.zeros(most)
        )
        leaf.X[:size], leaf.y[:size], leaf.size = X, y, size
        if size:
            K = self._covariance(X, X) + self._noise * np.eye(size)
            leaf.L[:size, :size] = cholesky(K, lower=True)
            leaf.white[:size] = solve_triangular(leaf.L[:size, :size], y, lower=True)
        return leaf

    def _append(self, leaf: Leaf, x: np.ndarray, y: float) -> None:
        n = leaf.size
        k, L = self._covariance(leaf.X[:n], x[None])[:, 0], leaf.L[:n, :n]
        row = solve_triangular(L, k, lower=True, check_finite=False) if n else k
        last = np.sqrt(max(self._variance + self._noise - float(row @ row), self._noise))
        leaf.L[n, :n], leaf.L[n, n] = row, last
        leaf.white[n] = (y - float(row @ leaf.white[:n])) / last
        leaf.X[n], leaf.y[n], leaf.size = x, y, n + 1

    def _split(self, leaf: Leaf) -> Leaf | Branch:
        ranges = np.ptp(leaf.X * self._lengthscales, axis=0)
        column = int(ranges.argmax())
        values = leaf.X[:, column]
        branch = Branch(column, float(values.mean()), float(self._overlap * np.ptp(values)))
        right = np.array([self._rng.random() < branch.right(x) for x in leaf.X])
        branch.children = [self._leaf(leaf.X[some], leaf.y[some]) for some in (~right, right)]
        return branch


def _leaves(node: Leaf | Branch, x: np.ndarray, share: float = 1.0) -> list[tuple[float, Leaf]]:
    if isinstance(node, Leaf):
        return [(share, node)]
    right = share * node.right(x)
    both = zip((share - right, right), node.children, strict=True)
    return [found for part, child in both if part > 0.0 for found in _leaves(child, x, part)]
