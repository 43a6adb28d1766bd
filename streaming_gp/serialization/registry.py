"""Which classes files may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TypeVar

from streaming_gp.errors import InvalidDataError

Classes = Mapping[str, type]
"""Frozen dataclasses by their names in files."""

C = TypeVar("C", bound=type)

_REGISTERED: dict[str, type] = {}
_HOMES: list[str] = []


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


def find_classes_in(*modules: str) -> None:
    """Say which modules hold storable classes; they are imported when the classes are asked for.

    A file may hold classes of modules that its reader has no other need of: the state of a server,
    for instance, those of the models it serves.

    :param modules: Their full names.
    """
    _HOMES.extend(modules)


def registered_classes() -> Classes:
    """All classes that :func:`storable` has been called on, by name (read-only)."""
    for module in _HOMES:
        import_module(module)
    return MappingProxyType(_REGISTERED)
