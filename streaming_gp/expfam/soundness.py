"""Whether arrays that came from elsewhere are natural parameters at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def objection_to_arrays(
    natural: Any, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[int]
) -> str | None:
    """Why these are no natural parameters, or None.

    :param natural: What came.
    :param shapes: The shape that each should have.
    :param symmetric: Which of them are symmetric matrices.
    """
    if type(natural) is not tuple or not all(_is_array(eta) for eta in natural):
        return "its natural parameters are no tuple of floating-point arrays"
    got = [tuple(np.shape(eta)) for eta in natural]
    if got != list(shapes):
        return f"its natural parameters have shapes {got}, wanted {list(shapes)}"
    arrays = [np.asarray(eta) for eta in natural]
    if any(array.dtype not in _DTYPES for array in arrays):
        return "its natural parameters are not floating-point numbers of 32 or 64 bits"
    if not all(np.isfinite(array).all() for array in arrays):
        return "its natural parameters are not finite"
    if not all(_is_symmetric(arrays[index]) for index in symmetric):
        return "a matrix among its natural parameters is not symmetric"
    return None


def objection_to_scale(log_scale: Any) -> str | None:
    """Why this is no log constant, or None."""
    number = np.asarray(None if isinstance(log_scale, (tuple, list)) else log_scale)
    if number.shape != () or number.dtype not in (*_DTYPES, np.dtype(int)):
        return f"its log constant is {log_scale!r:.100}, wanted a number"
    return None if np.isfinite(number) else f"its log constant is {log_scale}"


def _is_array(eta: Any) -> bool:
    """Of NumPy or TensorFlow, and not of a class that adds to them, such as masks."""
    return type(eta) is np.ndarray or isinstance(eta, np.generic) or tf.is_tensor(eta)


def _is_symmetric(matrices: np.ndarray) -> bool:
    """To rounding; a matrix that is kept as its diagonal has one dimension less."""
    if matrices.ndim < 2:
        return True
    tolerance = np.sqrt(np.finfo(matrices.dtype).eps) * np.max(np.abs(matrices), initial=0.0)
    return bool(np.all(np.abs(matrices - np.swapaxes(matrices, -1, -2)) <= tolerance))
