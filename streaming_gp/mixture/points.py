"""Data without inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.validation import as_matrix


def as_points(X: Any, Y: Any, num_dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """An X without columns [N, 0], and Y [N, D], float64.

    :param X: None, or an array without columns.
    :param Y: The data points [N, D].
    :param num_dimensions: The wanted D.
    :raises InvalidDataError: if there are inputs, or Y is not finite or of another shape.
    """
    Y = as_matrix("Y", Y, num_dimensions)
    if X is not None and np.shape(X) != (len(Y), 0):
        raise InvalidDataError(
            f"a mixture has no inputs: X must be None or [{len(Y)}, 0], got {list(np.shape(X))}"
        )
    return np.empty((len(Y), 0)), Y
