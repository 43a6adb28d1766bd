"""LoG-GP: a tree of local exact GPs that divides where data are (Lederer et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from experiments.benchmarks.methods.exact_gp import BlockCholesky
from experiments.benchmarks.methods.learner import Held, Hyperparameters, Prediction, Setup

OVERLAP = 0.05
"""The share of a node's width over which the probability of going right rises from 0 to 1."""
NEGLIGIBLE = 1e-3


@dataclass(eq=False)
class Node:
    """A leaf with data, or a division of the inputs along one of them."""

    X: np.ndarray
    Y: np.ndarray
    along: int = 0
    centre: float = 0.0
    width: float = 0.0
    children: tuple[Node, ...] = ()
    gp: BlockCholesky | None = field(default=None, repr=False)

    def probability_right(self, X: np.ndarray) -> np.ndarray:
        """Of the right child, [N]: the paper's equation 9."""
        distance = X[:, self.along] - self.centre
        if not self.width:
            return (distance > 0.0).astype(float)
        return np.clip(distance / self.width + 0.5, 0.0, 1.0)

    def add(self, X: np.ndarray, Y: np.ndarray, most: int, rng: np.random.Generator) -> None:
        """Every point goes to one leaf, at random where leaves overlap; full leaves divide."""
        if not len(X):
            return
        if self.children:
            right = rng.uniform(size=len(X)) < self.probability_right(X)
            for child, chosen in zip(self.children, (~right, right), strict=True):
                child.add(X[chosen], Y[chosen], most, rng)
            return
        self.X, self.Y = np.concatenate([self.X, X]), np.concatenate([self.Y, Y])
        self.gp = None
        if len(self.X) > most:
            self._divide(most, rng)

    def _divide(self, most: int, rng: np.random.Generator) -> None:
        spread = np.ptp(self.X, axis=0)
        if not spread.any():
            return  # nothing tells these points apart
        self.along = int(np.argmax(spread))
        self.centre = float(np.mean(self.X[:, self.along]))
        self.width = OVERLAP * float(spread[self.along])
        X, Y, self.X, self.Y = self.X, self.Y, self.X[:0], self.Y[:0]
        self.children = (Node(self.X, self.Y), Node(self.X, self.Y))
        self.add(X, Y, most, rng)

    def moments(
        self, X: np.ndarray, weights: np.ndarray, of: Hyperparameters, sums: np.ndarray
    ) -> None:
        """Add each leaf's weighted mean and second moment of y to ``sums`` [2, N]."""
        near = np.flatnonzero(weights > NEGLIGIBLE)
        if not len(near):
            return
        if self.children:
            right = self.probability_right(X)
            for child, share in zip(self.children, (1.0 - right, right), strict=True):
                child.moments(X, weights * share, of, sums)
            return
        if self.gp is None:
            self.gp = BlockCholesky(of, len(self.X))
            self.gp.update(self.X, self.Y)
        local = self.gp.predict(X[near])
        sums[0, near] += weights[near] * local.mean
        sums[1, near] += weights[near] * (local.variance + local.mean**2)
        sums[2, near] += weights[near]

    def leaves(self) -> list[Node]:
        return [leaf for child in self.children for leaf in child.leaves()] or [self]


class LocalGPs:
    """A mixture of local GPs, whose mean and variance are predicted."""

    def __init__(self, hyperparameters: Hyperparameters, most: int, seed: int) -> None:
        dimension = len(hyperparameters.lengthscales)
        self._of, self._most = hyperparameters, most
        self._rng = np.random.default_rng(seed)
        self._root = Node(np.empty((0, dimension)), np.empty((0, 1)))

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._root.add(X, Y, self._most, self._rng)

    def predict(self, X: np.ndarray) -> Prediction:
        sums = np.zeros((3, len(X)))
        self._root.moments(X, np.ones(len(X)), self._of, sums)
        mean, second = sums[:2] / sums[2]
        return Prediction(mean, second - mean**2)

    def held(self) -> Held:
        sizes = [len(leaf.X) for leaf in self._root.leaves()]
        numbers = sum(n * (n + 1) // 2 + n * (self._root.X.shape[1] + 2) for n in sizes)
        return Held(sum(sizes), "points", 8 * numbers)


def local_gps(setup: Setup, most: int) -> LocalGPs:
    return LocalGPs(setup.hyperparameters, most, setup.seed)
