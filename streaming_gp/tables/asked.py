"""Checks of what a model of tables is told before there is a table."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gpflow.likelihoods as gl

from streaming_gp.classes import number_of_classes
from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_name


def as_names(what: str, names: Any) -> tuple[str, ...]:
    """Names of columns; a string is one name.

    :param what: What to call them in the error.
    :raises InvalidDataError: if there are none, or one is no string or comes twice.
    """
    try:
        found = (names,) if isinstance(names, str) else tuple(names)
    except TypeError:
        found = ()
    if not found or len({*map(str, found)}) < len(found):
        raise InvalidDataError(f"{what} must be names of columns that differ, got {names!r:.100}")
    return tuple(as_name(what, one) for one in found)


def as_classes(classes: Any, likelihood: gl.Likelihood) -> tuple[Hashable, ...]:
    """The labels of a likelihood that has as many classes.

    :raises InvalidDataError: if there are not at least two that differ, or the likelihood has
        another number of classes, or none.
    """
    try:
        found = tuple(classes)
        number = len({*found})
    except TypeError:
        found, number = (), 0
    if number < max(2, len(found)):
        raise InvalidDataError(f"classes must be two labels or more that differ, got {classes!r}")
    if isinstance(likelihood, gl.Gaussian) or number_of_classes(likelihood) not in (number, None):
        raise InvalidDataError(
            f"{number} classes want a likelihood of {number} classes (Bernoulli for two, Softmax), "
            f"got {type(likelihood).__name__}"
        )
    return found
