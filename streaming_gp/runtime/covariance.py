"""What every kernel in NumPy can do.

Each says what it wants of inputs (:meth:`Kernel.prepared`, such as lengthscales divided out) and
the covariance between two sets of inputs prepared in this way, so that one of the sets can be
prepared once for all: :meth:`Kernel.bind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from streaming_gp.runtime.description import Description


class Kernel(ABC):
    """A covariance function.

    :param description: Its class, parameters and columns.
    """

    def __init__(self, description: Description) -> None:
        self.columns = description.columns

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariance [N, N2] between two sets of inputs [N, D] and [N2, D].

        White noise has none between them, even where they are equal.
        """
        return self.between(self.prepared(X), self.prepared(X2))

    def bind(self, Z: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """A function from X [N, D] to the covariance [R, N] between Z [R, D] and X.

        What depends on Z alone is computed here, once.
        """
        known = self.prepared(Z)
        return lambda X: self.between(known, self.prepared(X))

    @abstractmethod
    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variance [N] at inputs [N, D]."""

    @abstractmethod
    def prepared(self, X: np.ndarray) -> Any:
        """What :meth:`between` wants to know of inputs [N, D]."""

    @abstractmethod
    def between(self, one: Any, other: Any) -> np.ndarray:
        """Covariance [N, N2] between two sets of prepared inputs."""

    def centre(self, origin: np.ndarray) -> None:  # noqa: B027 — most kernels have no centre
        """Count inputs from this point [D] on, if nothing but differences matters.

        Where inputs lie far from zero in lengthscales, squares of distances would lose digits.
        """

    def seen(self, X: np.ndarray) -> np.ndarray:
        """The columns of X that the kernel sees."""
        return X if self.columns is None else X[:, self.columns]
