"""Rows, as they are handed around."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_float64, as_real_array


class Dataset(Protocol):
    """Rows as Trieste has them."""

    @property
    def query_points(self) -> Any:
        """Inputs [..., N, D]."""
        ...

    @property
    def observations(self) -> Any:
        """Observations [..., N, P]."""
        ...


def as_pair(dataset: Any) -> tuple[Any, Any]:
    """Inputs and observations, whatever they are.

    :raises InvalidDataError: if there are no two such things.
    """
    if hasattr(dataset, "query_points"):
        return dataset.query_points, dataset.observations
    try:
        X, Y = dataset
    except (TypeError, ValueError):
        raise InvalidDataError(
            "wanted query_points and observations, or a pair (X, Y), got a "
            f"{type(dataset).__name__}"
        ) from None
    return X, Y


def as_arrays(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and observations as arrays of their own.

    :raises InvalidDataError: if they are no real numbers, or some are masked.
    """
    X, Y = as_pair(dataset)
    return as_float64("X", as_real_array("X", X)), as_float64("Y", as_real_array("Y", Y))


def as_rows(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """X [N, D] and Y [N, P].

    :raises InvalidDataError: if they are not of these shapes, or no real numbers.
    """
    X, Y = as_arrays(dataset)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y):
        raise InvalidDataError(
            f"wanted X [N, D] and Y [N, P], got {list(X.shape)} and {list(Y.shape)}"
        )
    return X, Y
