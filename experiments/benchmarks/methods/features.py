"""Bayesian linear regression on random Fourier features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from experiments.benchmarks.methods.learner import Held, Hyperparameters, Prediction, Setup

Features = Callable[[np.ndarray], np.ndarray]


class FeatureRegression:
    """``y = φ(x)ᵀ w + noise``, ``w ~ N(0, S)``, from ``Σ φ φᵀ`` and ``Σ φ y`` alone.

    :param features: Gives φ(X) [N, F].
    :param prior: The prior covariance S [F, F] of the weights.
    :param noise: The variance of the noise.
    :param learns_scale: Whether one factor of all variances is learned, by the inverse-gamma prior
        that is conjugate to it and counts as one datum
        (Bishop 2006, exercise 3.12): it mends a noise that two batches had too small or too large.
    """

    def __init__(
        self, features: Features, prior: np.ndarray, noise: float, learns_scale: bool = False
    ) -> None:
        self._features, self._noise, self._learns_scale = features, noise, learns_scale
        self._number, self._squares = 0, 0.0
        self._root = np.linalg.cholesky(prior)
        self._products = np.zeros_like(prior)
        self._targets = np.zeros((len(prior), 1))
        self._posterior: tuple[np.ndarray, np.ndarray] | None = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        phi = self._features(X)
        self._products += phi.T @ phi
        self._targets += phi.T @ Y
        self._number += len(Y)
        self._squares += float(np.sum(Y**2))
        self._posterior = None

    def _solved(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower factor of ``I + Rᵀ A R / σ²``, with ``S = R Rᵀ``, and the whitened mean."""
        if self._posterior is None:
            R = self._root
            B = R.T @ self._products @ R / self._noise + np.eye(len(R))
            lower = scipy.linalg.cholesky(B, lower=True, check_finite=False)
            mean = scipy.linalg.cho_solve((lower, True), R.T @ self._targets) / self._noise
            self._posterior = lower, mean
        return self._posterior

    def predict(self, X: np.ndarray) -> Prediction:
        lower, mean = self._solved()
        phi = self._features(X) @ self._root
        white = scipy.linalg.solve_triangular(lower, phi.T, lower=True, check_finite=False)
        variance = np.sum(white**2, axis=0) + self._noise
        return Prediction((phi @ mean)[:, 0], self._scale(lower, mean) * variance)

    def _scale(self, lower: np.ndarray, mean: np.ndarray) -> float:
        """The mean of squared standardised residuals, and of a prior one of 1."""
        if not self._learns_scale:
            return 1.0
        explained = np.sum((lower.T @ mean) ** 2)
        return float((1.0 + self._squares / self._noise - explained) / (1.0 + self._number))

    def held(self) -> Held:
        number = len(self._targets)
        return Held(number, "features", 8 * (number * (number + 1) // 2 + number))


def fourier(of: Hyperparameters, number: int, seed: int) -> Features:
    """Sines and cosines of ``number / 2`` random frequencies (Rahimi & Recht 2007)."""
    normals = np.random.default_rng(seed).standard_normal((len(of.lengthscales), number // 2))
    frequencies = normals / of.lengthscales[:, None]
    scale = np.sqrt(2.0 * of.variance / number)

    def features(X: np.ndarray) -> np.ndarray:
        phase = X @ frequencies
        return scale * np.concatenate([np.cos(phase), np.sin(phase)], axis=1)

    return features


def random_features(setup: Setup, number: int, learns_scale: int = 0) -> FeatureRegression:
    """Recursive Bayesian regression on random features (Gijsberts & Metta 2013)."""
    features = fourier(setup.hyperparameters, number, setup.seed)
    noise = setup.hyperparameters.noise
    return FeatureRegression(features, np.eye(number), noise, bool(learns_scale))
