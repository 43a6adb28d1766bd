"""Trees of plain values as JSON and arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.serialization.registry import Classes
from streaming_gp.serialization.schema import annotations_of, fits


def encode(tree: Any, classes: Classes) -> tuple[Any, list[np.ndarray]]:
    """Split a tree into JSON and arrays, from which :func:`decode` restores it bit for bit.

    :param tree: The tree: None, booleans, integers, floats, strings, NumPy numbers and arrays of
        numbers; tuples, dicts with string keys and instances of ``classes`` made of these; and
        ``classes`` themselves.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :returns: what JSON can hold, and the arrays that it refers to by position.
    :raises InvalidDataError: if the tree holds anything else; names what and where.
    """
    encoder = _Encoder(classes)
    return encoder.encoded(tree, "value"), encoder.arrays


def decode(structure: Any, arrays: Sequence[np.ndarray], classes: Classes) -> Any:
    """The tree that :func:`encode` split.

    :param structure: What :func:`encode` gave for JSON.
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
            return _registered(name, classes)
        case {"instance": name, "fields": content}:
            return _instance(name, {key: inner(item) for key, item in content.items()}, classes)
    raise FileFormatError(f"{structure!r} is no encoding of a value")


def _registered(name: str, classes: Classes) -> type:
    if name not in classes:
        raise FileFormatError(f"the type {name!r} is not registered")
    return classes[name]


def _instance(name: str, content: dict[str, Any], classes: Classes) -> Any:
    cls = _registered(name, classes)
    unknown = set(content) - {field.name for field in fields(cls)}
    if unknown:
        raise FileFormatError(f"{name} has no field {', '.join(sorted(unknown))}")
    for field, hint in annotations_of(cls).items():
        if field in content and not fits(content[field], hint):
            raise FileFormatError(
                f"{name}.{field} is {_short(content[field])}, wanted {_words(hint)}"
            )
    return cls(**content)


def _short(value: Any) -> str:
    return f"{value!r:.60}" if np.ndim(value) == 0 else f"an array of shape {np.shape(value)}"


def _words(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


class _Encoder:
    """Collects the arrays of a tree on the way through it."""

    def __init__(self, classes: Classes) -> None:
        self._names = {cls: name for name, cls in classes.items()}
        self.arrays: list[np.ndarray] = []

    def encoded(self, value: Any, place: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"float": struct.pack("<d", value).hex()}
        if kind is np.ndarray or isinstance(value, np.generic):
            return self._numbers(value, place)
        if kind is tuple:
            return [self.encoded(item, f"{place}[{i}]") for i, item in enumerate(value)]
        if kind is dict:
            return {"dict": dict(self._item(k, item, place) for k, item in value.items())}
        if kind in self._names:
            return {"instance": self._names[kind], "fields": self._fields(value, place)}
        if isinstance(value, type) and value in self._names:
            return {"class": self._names[value]}
        raise InvalidDataError(f"{place} is of type {kind.__name__}, which files do not hold")

    def _item(self, key: Any, item: Any, place: str) -> tuple[str, Any]:
        if type(key) is not str:
            raise InvalidDataError(f"{place} has the key {key!r}, wanted strings")
        return key, self.encoded(item, f"{place}[{key!r}]")

    def _fields(self, value: Any, place: str) -> dict[str, Any]:
        names = [field.name for field in fields(value)]
        return {name: self.encoded(getattr(value, name), f"{place}.{name}") for name in names}

    def _numbers(self, value: Any, place: str) -> dict[str, Any]:
        """The order of the axes in memory is kept: matrix products may round by it."""
        if value.dtype.kind not in "biufc":
            raise InvalidDataError(f"{place} holds {value.dtype}, wanted numbers")
        order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        self.arrays.append(np.array(np.transpose(value, order), order="C"))
        index = len(self.arrays) - 1
        if isinstance(value, np.generic):
            return {"scalar": index}
        return {"array": index, "order": order}
