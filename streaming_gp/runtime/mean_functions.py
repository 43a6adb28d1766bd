"""GPflow's common mean functions in NumPy: from inputs [N, D] to what broadcasts to [N, L]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streaming_gp.runtime.description import Description, Parameters, of_name


def zero(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    """``0``."""
    return np.zeros((len(X), 1))


def constant(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    """``c``."""
    return np.reshape(parameters["c"], (1, -1))


def linear(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    """``Aᵀ x + b``."""
    return X @ parameters["A"] + parameters["b"]


MEAN_FUNCTIONS: dict[str, Callable[[Parameters, np.ndarray], np.ndarray]] = {
    "Zero": zero,
    "Constant": constant,
    "Linear": linear,
}
"""The mean functions that there is a NumPy form of, by the names of their classes in GPflow."""


def mean_function_of(description: Description) -> Callable[[np.ndarray], np.ndarray]:
    """The mean function that is described.

    :raises InvalidDataError: if there is no NumPy form of it.
    """
    function = of_name("mean function", description.name, MEAN_FUNCTIONS)
    return lambda X: function(description.parameters, X)
