"""Trees of plain values in one file: frozen dataclasses, tuples, dicts, arrays and numbers.

A file is an npz archive without pickles. Its entry ``header`` is JSON that says what the file is
and spells out the tree; every array of the tree is an entry of its own. The archive's comment is
the SHA-256 of all bytes before it, so that a file of which one bit has changed is refused. Whenever
the writing process dies, the file is there as a whole or not at all.

An explicit mapping ``{name: class}`` says which classes may occur; :func:`registered_classes` is
the one that models and servers use, and :func:`storable` puts a class of one's own into it. A file
cannot make anything else be imported or called.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import threading
import types
import typing
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module, metadata
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError

__all__ = [
    "FORMAT",
    "VERSION",
    "Classes",
    "PathLike",
    "as_path",
    "decode",
    "digest",
    "encode",
    "file_of",
    "leftovers",
    "packed",
    "read",
    "read_bytes",
    "registered_classes",
    "replacing",
    "storable",
    "unpacked",
    "write",
    "write_bytes",
    "write_new",
]

FORMAT, VERSION = "streaming_gp", 2
"""Name and version of the file layout; files of other versions are refused."""

PathLike = str | os.PathLike[str]

_DIGEST_SIZE = hashlib.sha256().digest_size


def write(path: PathLike, kind: str, tree: Any, classes: Classes) -> None:
    """Write a tree to a file, atomically; a file that was there is replaced.

    :param path: The file's path.
    :param kind: A name for what the tree is, for :func:`read` to check.
    :param tree: The tree, of values that :func:`encode` takes.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :raises InvalidDataError: as :func:`encode`.
    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    write_bytes(path, packed(kind, tree, classes))


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write a file, atomically; one that was there is replaced.

    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    target = as_path(path)
    with _written_beside(target, data) as part:
        os.replace(part, target)
        _sync_folder(target.parent)


def write_new(path: PathLike, data: bytes) -> None:
    """Write the bytes of :func:`packed` to a file that must not be there, atomically.

    :raises FileExistsError: if there is such a file, however late it was made; it stays.
    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    target = as_path(path)
    with _written_beside(target, data) as part:
        try:
            os.link(part, target)
            _sync_folder(target.parent)
        except BaseException:
            if target.exists() and target.samefile(part):
                target.unlink()
            raise


def read(path: PathLike, kind: str, classes: Classes, wanted: type = object) -> Any:
    """The tree that a file holds.

    :param path: A file written by :func:`write` or :func:`write_new`.
    :param kind: The name that the tree was written under.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :param wanted: The class that the tree should be of.
    :raises FileFormatError: if there is no such file, or it is empty, truncated, altered, foreign,
        of a later version or of another kind.
    """
    return unpacked(path, read_bytes(path), kind, classes, wanted)


def read_bytes(path: PathLike) -> bytes:
    """All that a file holds.

    :raises FileFormatError: if there is no such file, or it is none.
    """
    source = as_path(path)
    try:
        if source.exists() and not (source.is_file() or source.is_dir()):
            raise FileFormatError(f"{source} is no regular file")  # a pipe would never end
        return source.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {source}: {error.strerror}") from error


def digest(data: bytes) -> str:
    """A fingerprint of the bytes of :func:`packed`: the SHA-256 that they end with."""
    return data[-_DIGEST_SIZE:].hex()


def unpacked(
    source: PathLike, data: bytes, kind: str, classes: Classes, wanted: type = object
) -> Any:
    """The tree that :func:`packed` made these bytes of.

    :param source: Where they come from, for errors.
    :param data: The bytes.
    :param kind: The name that the tree was packed under.
    :param classes: The frozen dataclasses that may occur, by their names in the file.
    :param wanted: The class that the tree should be of.
    :raises FileFormatError: as :func:`read`.
    """
    header, arrays = _unpacked(source, data)
    if header.get("kind") != kind:
        raise FileFormatError(f"{source} holds a {header.get('kind')}, wanted a {kind}")
    try:
        tree = decode(header.get("tree"), arrays, classes)
    except Exception as error:  # a class may refuse what it is given in any way
        raise FileFormatError(f"{source} holds no valid {kind}: {error}") from error
    if not isinstance(tree, wanted):
        raise FileFormatError(f"{source} holds no valid {kind}, but a {type(tree).__name__}")
    return tree


def as_path(path: Any) -> Path:
    """A path, whatever names it.

    :raises InvalidDataError: if nothing can.
    """
    try:
        if "\0" not in str(Path(path)):
            return Path(path)
    except TypeError:
        pass
    raise InvalidDataError(f"wanted the path of a file or folder, got {path!r:.100}")


def file_of(name: str, folder: PathLike, suffix: str = ".npz") -> Path:
    """The file of a name, of whatever characters, in a folder.

    :raises InvalidDataError: if nothing can be the folder.
    """
    return as_path(folder) / f"{quote(name, safe='')}{suffix}"


def leftovers(folder: PathLike) -> list[Path]:
    """Files that writers who were killed have left in a folder; safe to remove."""
    return sorted(Path(folder).glob(f"*.{'[0-9a-f]' * 32}.part"))


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """A new file next to a path, which takes its place if the block ends well and is gone if not.

    :raises OSError: if it cannot; the file that was there is as it was then.
    """
    target = as_path(path)
    part = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _written_beside(target: Path, data: bytes) -> Iterator[Path]:
    """A file next to ``target`` that is on disk with all its bytes, and gone afterwards."""
    part = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Until then a new name may be lost in a power cut; only POSIX systems can be told."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- the archive ----


def packed(kind: str, tree: Any, classes: Classes) -> bytes:
    """The bytes of the file that :func:`write` writes; the same for the same tree."""
    structure, arrays = encode(tree, classes)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "package": _package_version(),
        "kind": kind,
        "tree": structure,
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, header=text, **{_entry(i): array for i, array in enumerate(arrays)})
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(_DIGEST_SIZE)
    content = buffer.getvalue()[:-_DIGEST_SIZE]
    return content + hashlib.sha256(content).digest()


@cache
def _package_version() -> str:
    try:
        return metadata.version(FORMAT)
    except metadata.PackageNotFoundError:
        return "not installed"


_ONE_AT_A_TIME = threading.Lock()
"""NumPy parses headers of arrays as Python, which fails now and then where two threads of Python
3.11 do so at once (CPython's issue 106905)."""


def _unpacked(source: PathLike, data: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays; the version comes first, as a later one may be checked in another way."""
    if not data.startswith(b"PK"):
        what = "is no npz archive" if data else "is empty"
        raise FileFormatError(f"{source} {what}; wanted a file of {FORMAT}")
    try:
        _refuse_swelling(source, data)
        with _ONE_AT_A_TIME, np.load(io.BytesIO(data), allow_pickle=False) as archive:
            header = _header(source, archive)
            intact = hashlib.sha256(data[:-_DIGEST_SIZE]).digest() == data[-_DIGEST_SIZE:]
            arrays = [archive[_entry(i)] for i in range(len(archive.files) - 1)] if intact else []
    except FileFormatError:
        raise
    except Exception as error:  # a damaged archive can fail anywhere
        raise FileFormatError(f"{source} is truncated or was altered") from error
    if not intact:
        raise FileFormatError(f"{source} is truncated or was altered: its checksum does not match")
    return header, arrays


def _refuse_swelling(source: PathLike, data: bytes) -> None:
    """Members are stored as they are: what they say they unpack to is not more than the file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    size = sum(member.file_size for member in members)
    if size > len(data) or any(one.compress_type != zipfile.ZIP_STORED for one in members):
        raise FileFormatError(
            f"{source} is truncated or was altered: its {len(data)} bytes say that they unpack to "
            f"{size}, and {FORMAT} packs nothing"
        )


def _header(source: PathLike, archive: Mapping[str, np.ndarray]) -> dict[str, Any]:
    header = json.loads(archive["header"].tobytes()) if "header" in archive else {}
    if header.get("format") != FORMAT:
        raise FileFormatError(f"{source} is an npz archive, but not one of {FORMAT}")
    if header["version"] != VERSION:
        raise FileFormatError(
            f"{source} has version {header['version']} of the file format, written by {FORMAT} "
            f"{header['package']}; this {FORMAT} reads version {VERSION}"
        )
    return header


def _entry(index: int) -> str:
    return f"array_{index}"


Classes = Mapping[str, type]
"""Frozen dataclasses by their names in files."""

# ---- the classes that may occur ----

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
