"""Inputs and targets so large that their covariances are no numbers, or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, isfinite

import numpy as np

from streaming_gp.errors import NumericalError

FURTHEST_BELOW = 0.5
"""Of a variance below zero, as a part of the prior's: rounding alone leaves it nearer to zero."""


def is_sound(value: float, prior: float = inf) -> bool:
    """Whether it is finite, and not far below zero if it is a variance.

    :param value: A log density, or the variance of f at an input before rounding is cut off.
    :param prior: The prior variance there.
    """
    return isfinite(value) and value > -FURTHEST_BELOW * prior


def sound(value: float, prior: float = inf) -> float:
    """The value, which is sound.

    :raises NumericalError: if it is not, saying what is wanted.
    """
    if not is_sound(value, prior):
        raise NumericalError("covariances or densities overflow: wanted smaller inputs and targets")
    return value


@contextmanager
def clear_error() -> Iterator[None]:
    """One error of ours where a covariance cannot be factorised.

    :raises NumericalError: naming what helps.
    """
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "the covariance of the points is not positive, as rounding of distances is larger than "
            "the noise: wanted inputs about zero, such as days since the first one"
        ) from error
