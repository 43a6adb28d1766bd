"""Inputs and targets so large that their covariances are no numbers, or wrong."""

from __future__ import annotations

from math import inf, isfinite

from streaming_gp.errors import NumericalError

FURTHEST_BELOW = 0.5
"""Of a variance below zero, as a part of the prior's: rounding alone leaves it nearer to zero."""


def refuse_overflow(value: float, prior: float = inf) -> None:
    """Refuse what is not finite, and variances far below zero.

    :param value: A log density, or the variance of f at an input before rounding is cut off.
    :param prior: The prior variance there.
    :raises NumericalError: saying what is wanted.
    """
    if not (isfinite(value) and value > -FURTHEST_BELOW * prior):
        raise NumericalError("covariances or densities overflow: wanted smaller inputs and targets")
