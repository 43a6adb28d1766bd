"""Trees of plain values as JSON and arrays, and the classes that may occur in them."""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError

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
    namesake = _REGISTERED.setdefault(cls.__name__, cls)
    if (namesake.__module__, namesake.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidDataError(
            f"there is a storable {cls.__name__} already, in {namesake.__module__}; files go by "
            "name"
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
    return types.MappingProxyType(_REGISTERED)


# ---- to JSON and arrays ----


def encode(tree: Any, classes: Classes) -> tuple[Any, list[np.ndarray]]:
    """Split a tree into JSON and arrays, from which :func:`decode` restores it bit for bit.

    :param tree: The tree: None, booleans, integers, floats, strings, NumPy numbers and arrays of
        numbers; tuples, dicts with string keys and instances of ``classes`` made of these; and
        ``classes`` themselves.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :returns: what JSON can hold, and the arrays that it refers to by position.
    :raises InvalidDataError: if the tree holds anything else; names what and where.
    """
    names = {cls: name for name, cls in classes.items()}
    arrays: list[np.ndarray] = []
    return _encode(tree, "value", names, arrays), arrays


def _encode(value: Any, place: str, names: Mapping[type, str], arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": struct.pack("<d", value).hex()}
    if kind is np.ndarray or isinstance(value, np.generic):
        return _encode_numbers(value, place, arrays)
    if kind is tuple:
        return [_encode(item, f"{place}[{i}]", names, arrays) for i, item in enumerate(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise InvalidDataError(f"{place} has the key {key!r}, wanted strings")
        return {
            "dict": {
                key: _encode(item, f"{place}[{key!r}]", names, arrays)
                for key, item in value.items()
            }
        }
    if kind in names:
        content = {
            field.name: _encode(getattr(value, field.name), f"{place}.{field.name}", names, arrays)
            for field in fields(value)
        }
        return {"instance": names[kind], "fields": content}
    if isinstance(value, type) and value in names:
        return {"class": names[value]}
    raise InvalidDataError(f"{place} is of type {kind.__name__}, which files do not hold")


def _encode_numbers(value: Any, place: str, arrays: list[np.ndarray]) -> dict[str, Any]:
    """The order of the axes in memory is kept: matrix products may round by it."""
    if value.dtype.kind not in "biufc":
        raise InvalidDataError(f"{place} holds {value.dtype}, wanted numbers")
    order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    arrays.append(np.array(np.transpose(value, order), order="C"))
    index = len(arrays) - 1
    if isinstance(value, np.generic):
        return {"scalar": index}
    return {"array": index, "order": order}


# ---- and back ----


def decode(structure: Any, arrays: Sequence[np.ndarray], classes: Classes) -> Any:
    """The tree that :func:`encode` split.

    :param structure: The JSON that :func:`encode` gave.
    :param arrays: The arrays that it refers to by position.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :raises FileFormatError: if a name is not in ``classes``, or a class takes other fields.
    """
    inner = partial(decode, arrays=arrays, classes=classes)
    match structure:
        case None | bool() | int() | str():
            return structure
        case list():
            return tuple(inner(item) for item in structure)
        case {"float": digits}:
            return struct.unpack("<d", bytes.fromhex(digits))[0]
        case {"scalar": index}:
            return arrays[index][()]
        case {"array": index, "order": order}:
            return arrays[index].transpose(np.argsort(order))
        case {"dict": items}:
            return {key: inner(item) for key, item in items.items()}
        case {"class": name}:
            return _class_of(name, classes)
        case {"instance": name, "fields": content}:
            return _instance(name, {key: inner(item) for key, item in content.items()}, classes)
    raise FileFormatError(f"{structure!r} is no encoding of a value")


def _class_of(name: str, classes: Classes) -> type:
    if name not in classes:
        raise FileFormatError(f"the type {name!r} is not registered")
    return classes[name]


def _instance(name: str, content: dict[str, Any], classes: Classes) -> Any:
    cls = _class_of(name, classes)
    unknown = set(content) - {field.name for field in fields(cls)}
    if unknown:
        raise FileFormatError(f"{name} has no field {', '.join(sorted(unknown))}")
    for field, hint in _annotations_of(cls).items():
        if field in content and not fits(content[field], hint):
            value = content[field]
            came = f"an array of shape {np.shape(value)}" if np.ndim(value) else f"{value!r:.60}"
            wanted = hint.__name__ if isinstance(hint, type) else str(hint)
            raise FileFormatError(f"{name}.{field} is {came}, wanted {wanted}")
    return cls(**content)


@cache
def _annotations_of(cls: type) -> Mapping[str, Any]:
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
        if type(value) is not tuple:
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(one, arguments[0]) for one in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is type:
        return isinstance(value, type)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return False
        return not arguments or all(fits(one, arguments[1]) for one in value.values())
    if hint in (None, type(None)):
        return value is None
    if hint in (bool, int, float):
        is_flag = isinstance(value, (bool, np.bool_))
        if hint is bool or is_flag:
            return hint is bool and is_flag
        return isinstance(value, Integral if hint is int else Real)
    if hint in (Any, object) or not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        can_be_asked = getattr(hint, "_is_runtime_protocol", False)
        return not can_be_asked or (isinstance(value, hint) and not isinstance(value, type))
    return isinstance(value, hint)
