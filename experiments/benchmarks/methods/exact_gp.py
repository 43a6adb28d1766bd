"""Exact Gaussian processes at given hyperparameters: grown by blocks, or on the newest points."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from experiments.benchmarks.methods.learner import Held, Hyperparameters, Prediction, Setup

MOST_BYTES = 4 * 10**9
"""More than this is not held: a Cholesky factor of some 22,000 points."""


def squared_exponential(of: Hyperparameters, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """k(X, Z) [N, M]."""
    A, B = X / of.lengthscales, Z / of.lengthscales
    squares = np.sum(A**2, axis=1)[:, None] + np.sum(B**2, axis=1) - 2.0 * A @ B.T
    kernel: np.ndarray = of.variance * np.exp(-0.5 * np.maximum(squares, 0.0))
    return kernel


def solve_lower(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution: np.ndarray = scipy.linalg.solve_triangular(
        lower, right, lower=True, check_finite=False
    )
    return solution


class BlockCholesky:
    """All points, by ``L' = [[L, 0], [C, chol(K' + σ² I − C Cᵀ)]]``, ``C = (L⁻¹ K(X, X'))ᵀ``
    (Rasmussen & Williams 2006, sections 2.2 and A.3).
    """

    def __init__(self, hyperparameters: Hyperparameters, num_data: int) -> None:
        if 8 * num_data**2 > MOST_BYTES:
            raise MemoryError(f"the factor of {num_data} points takes {8e-9 * num_data**2:.0f} GB")
        self._of, self._number = hyperparameters, 0
        self._X = np.empty((num_data, len(hyperparameters.lengthscales)))
        self._lower = np.empty((num_data, num_data), order="F")
        self._white = np.empty((num_data, 1))

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        n, end = self._number, self._number + len(X)
        white = self._whitened(X)
        block = squared_exponential(self._of, X, X) + self._of.noise * np.eye(len(X))
        self._lower[n:end, :n] = white.T
        self._lower[n:end, n:end] = np.linalg.cholesky(block - white.T @ white)
        residual = Y - white.T @ self._white[:n]
        self._white[n:end] = solve_lower(self._lower[n:end, n:end], residual)
        self._X[n:end] = X
        self._number = end

    def _whitened(self, X: np.ndarray) -> np.ndarray:
        n = self._number
        cross = squared_exponential(self._of, self._X[:n], X)
        return solve_lower(self._lower[:n, :n], cross) if n else cross

    def predict(self, X: np.ndarray) -> Prediction:
        white = self._whitened(X)
        mean = white.T @ self._white[: self._number]
        variance = self._of.variance + self._of.noise - np.sum(white**2, axis=0)
        return Prediction(mean[:, 0], variance)

    def held(self) -> Held:
        n = self._number
        return Held(n, "points", 8 * (n * (n + 1) // 2 + n * (self._X.shape[1] + 1)))


class Window:
    """The newest points alone."""

    def __init__(self, hyperparameters: Hyperparameters, size: int) -> None:
        self._of, self._size = hyperparameters, size
        self._X = np.empty((0, len(hyperparameters.lengthscales)))
        self._Y = np.empty((0, 1))
        self._gp: BlockCholesky | None = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._X = np.concatenate([self._X, X])[-self._size :]
        self._Y = np.concatenate([self._Y, Y])[-self._size :]
        self._gp = None

    def predict(self, X: np.ndarray) -> Prediction:
        if self._gp is None:
            self._gp = BlockCholesky(self._of, len(self._X))
            self._gp.update(self._X, self._Y)
        return self._gp.predict(X)

    def held(self) -> Held:
        return Held(len(self._X), "points", self._X.nbytes + self._Y.nbytes)


def block_cholesky(setup: Setup) -> BlockCholesky:
    return BlockCholesky(setup.hyperparameters, setup.num_data)


def window(setup: Setup, size: int) -> Window:
    return Window(setup.hyperparameters, size)
