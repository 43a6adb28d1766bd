"""Kernels, mean functions and likelihoods as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from streaming_gp.errors import InvalidDataError

T = TypeVar("T")
Parameters = Mapping[str, np.ndarray | float]
"""Parameters by name, constrained."""


@dataclass(frozen=True, eq=False)
class Description:
    """A kernel, mean function or likelihood of GPflow, by its class's name and its values.

    :param name: The name of its class.
    :param parameters: Its parameters by name, constrained.
    :param columns: The columns of X [d] that a kernel sees; all of them if None.
    :param parts: The kernels that a kernel is made of.
    """

    name: str
    parameters: Parameters = field(default_factory=dict)
    columns: np.ndarray | None = None
    parts: tuple[Description, ...] = ()


def of_name(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of a registry.

    :param kind: What the registry holds, for the error.
    :raises InvalidDataError: if it has no such entry; names those that it has.
    """
    if name not in known:
        raise InvalidDataError(
            f"there is no NumPy form of the {kind} {name}; there is one of {', '.join(known)}"
        )
    return known[name]
