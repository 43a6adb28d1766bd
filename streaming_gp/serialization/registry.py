"""Which classes files may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import TypeVar

from streaming_gp.errors import InvalidDataError

Classes = Mapping[str, type]
"""Frozen dataclasses by their names in files."""

C = TypeVar("C", bound=type)

_REGISTERED: dict[str, type] = {}


def storable(cls: C) -> C:
    """Class decorator: files of models and servers may hold instances of this frozen dataclass.

    A strategy of your own needs it before a model with it can be saved. Whoever loads the file must
    have imported the class as well.

    :raises InvalidDataError: if it is no frozen dataclass, or another class has its name.
    """
    if not (is_dataclass(cls) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise InvalidDataError(f"{cls.__name__} is no frozen dataclass, which files want")
    known = _REGISTERED.setdefault(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidDataError(
            f"there is a storable {cls.__name__} already, in {known.__module__}; files go by name"
        )
    _REGISTERED[cls.__name__] = cls
    return cls


def registered_classes() -> Classes:
    """All classes that :func:`storable` has been called on, by name (read-only)."""
    return MappingProxyType(_REGISTERED)
