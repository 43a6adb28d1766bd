"""Whether values fit the annotations of the dataclasses that they are to be fields of."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np


@cache
def annotations_of(cls: type) -> Mapping[str, Any]:
    """The annotation of each field; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether a decoded value is what an annotation says; what it cannot say fits."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is tuple:
        return type(value) is tuple and _fits_tuple(value, arguments)
    if origin is type:
        return isinstance(value, type)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _fits_mapping(value, arguments)
    return _fits_class(value, hint)


def _fits_tuple(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(fits(one, arguments[0]) for one in value)
    return len(value) == len(arguments) and all(map(fits, value, arguments))


def _fits_mapping(value: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, Mapping):
        return False
    return not arguments or all(fits(one, arguments[1]) for one in value.values())


def _fits_class(value: Any, hint: Any) -> bool:
    if hint in (None, type(None)):
        return value is None
    if hint in (bool, int, float):
        return _fits_number(value, hint)
    if hint in (Any, object) or not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        can_be_asked = getattr(hint, "_is_runtime_protocol", False)
        return not can_be_asked or (isinstance(value, hint) and not isinstance(value, type))
    return isinstance(value, hint)


def _fits_number(value: Any, hint: type) -> bool:
    is_flag = isinstance(value, (bool, np.bool_))
    if hint is bool or is_flag:
        return hint is bool and is_flag
    return isinstance(value, Integral if hint is int else Real)
