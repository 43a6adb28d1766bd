"""GPflow's stationary kernels in NumPy; formulas and their order are those of GPflow."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from streaming_gp.runtime.covariance import Kernel
from streaming_gp.runtime.description import Description


class Isotropic(Kernel):
    """A function of ``r² = ‖(x − x') / ℓ‖²``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.scale = description.parameters["variance"]
        self.lengthscales = description.parameters["lengthscales"]
        self.origin: np.ndarray | float = 0.0

    def centre(self, origin: np.ndarray) -> None:
        self.origin = self.seen(origin[None])[0]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.scale)

    def prepared(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scaled inputs [N, d] and their squared norms [N]."""
        scaled = (self.seen(X) - self.origin) / self.lengthscales
        return scaled, np.add.reduce(scaled * scaled, axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        (A, squares_a), (B, squares_b) = one, other
        r2 = A @ B.T
        r2 *= -2.0
        r2 += squares_a[:, None] + squares_b
        return self.of_squared_distance(r2)

    @abstractmethod
    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        """The covariance at r²; rounding may have left it below zero."""


class OfDistance(Isotropic):
    """A function of r itself."""

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.of_distance(np.sqrt(np.maximum(r2, 1e-36)))

    @abstractmethod
    def of_distance(self, r: np.ndarray) -> np.ndarray:
        """The covariance at r."""


class SquaredExponential(Isotropic):
    """``σ² exp(−r²/2)``."""

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-0.5 * r2)


class RationalQuadratic(Isotropic):
    """``σ² (1 + r² / 2α)^−α``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.alpha = description.parameters["alpha"]

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.scale * (1.0 + 0.5 * r2 / self.alpha) ** -self.alpha


class Exponential(OfDistance):
    """``σ² exp(−r/2)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-0.5 * r)


class Matern12(OfDistance):
    """``σ² exp(−r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-r)


class Matern32(OfDistance):
    """``σ² (1 + √3 r) exp(−√3 r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        scaled = np.sqrt(3.0) * r
        return self.scale * (1.0 + scaled) * np.exp(-scaled)


class Matern52(OfDistance):
    """``σ² (1 + √5 r + 5/3 r²) exp(−√5 r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        scaled = np.sqrt(5.0) * r
        return self.scale * (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)


class Cosine(Kernel):
    """``σ² cos(2π Σ_d (x_d − x'_d) / ℓ_d)``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.scale = description.parameters["variance"]
        self.lengthscales = description.parameters["lengthscales"]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.scale)

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """``Σ_d x_d / ℓ_d`` [N]."""
        return np.add.reduce(self.seen(X) / self.lengthscales, axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self.scale * np.cos(2.0 * np.pi * (one[:, None] - other))
