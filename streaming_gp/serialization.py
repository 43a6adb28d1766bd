"""Trees of plain values in one file: frozen dataclasses, tuples, dicts, arrays and numbers.

A file is an npz archive without pickles. Its entry ``header`` is JSON that says what the file is
and spells out the tree; every array of the tree is an entry of its own. The archive's comment is
the SHA-256 of all bytes before it, so that a file of which one bit has changed is refused. Whenever
the writing process dies, the file is there as a whole or not at all.

An explicit mapping ``{name: class}`` says which classes may occur, so that a new type of value only
needs to be added there. A file cannot make anything else be imported or called.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError

FORMAT, VERSION = "streaming_gp", 1
"""Name and version of the file layout; files of later versions are refused."""

Classes = Mapping[str, type]
PathLike = str | os.PathLike[str]

_DIGEST_SIZE = hashlib.sha256().digest_size


# ---- trees ----


def encode(tree: Any, classes: Classes) -> tuple[Any, list[np.ndarray]]:
    """Split a tree into JSON and arrays, from which :func:`decode` restores it bit for bit.

    :param tree: None, booleans, integers, floats, strings, NumPy numbers and arrays of numbers;
        tuples, dicts with string keys and instances of ``classes`` made of these; and ``classes``
        themselves.
    :param classes: the frozen dataclasses that may occur, by their names in the file.
    :returns: what JSON can hold, and the arrays that it refers to by position.
    :raises InvalidDataError: if the tree holds anything else; names what and where.
    """
    encoder = _Encoder(classes)
    return encoder.encoded(tree, "value"), encoder.arrays


def decode(structure: Any, arrays: Sequence[np.ndarray], classes: Classes) -> Any:
    """The tree that :func:`encode` split.

    :param structure: from :func:`encode`.
    :param arrays: from :func:`encode`.
    :param classes: as in :func:`encode`.
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
    return cls(**content)


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


# ---- files ----


def write(path: PathLike, kind: str, tree: Any, classes: Classes) -> None:
    """Write a tree to a file, atomically; a file that was there is replaced.

    :param path: where.
    :param kind: what the tree is, for :func:`read` to check.
    :param tree: see :func:`encode`.
    :param classes: see :func:`encode`.
    :raises InvalidDataError: as :func:`encode`.
    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    target = Path(path)
    with _written_beside(target, _packed(kind, tree, classes)) as part:
        os.replace(part, target)
        _sync_folder(target.parent)


def write_new(path: PathLike, kind: str, tree: Any, classes: Classes) -> None:
    """As :func:`write`, but a file that was there stays as it is.

    :raises FileExistsError: if there is such a file, however late it was made.
    """
    target = Path(path)
    with _written_beside(target, _packed(kind, tree, classes)) as part:
        os.link(part, target)
        try:
            _sync_folder(target.parent)
        except BaseException:
            target.unlink()
            raise


def read(path: PathLike, kind: str, classes: Classes) -> Any:
    """The tree that a file holds.

    :param path: written by :func:`write` or :func:`write_new`.
    :param kind: what the tree must be.
    :param classes: see :func:`decode`.
    :raises FileFormatError: if there is no such file, or it is empty, truncated, altered, foreign,
        of a later version or of another kind.
    """
    source = Path(path)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise FileFormatError(f"cannot read {source}: {error.strerror}") from error
    header, arrays = _unpacked(source, data)
    if header["kind"] != kind:
        raise FileFormatError(f"{source} holds a {header['kind']}, wanted a {kind}")
    try:
        return decode(header["tree"], arrays, classes)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise FileFormatError(f"{source} holds no valid {kind}: {error}") from error


def leftovers(folder: PathLike) -> list[Path]:
    """What writers that were killed have left in a folder; safe to remove."""
    return sorted(Path(folder).glob(f"*.{'[0-9a-f]' * 32}.part"))


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


def _packed(kind: str, tree: Any, classes: Classes) -> bytes:
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


def _unpacked(source: Path, data: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays; the version comes first, as a later one may be checked in another way."""
    if not data.startswith(b"PK"):
        what = "is no npz archive" if data else "is empty"
        raise FileFormatError(f"{source} {what}; wanted a file of {FORMAT}")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
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


def _header(source: Path, archive: Mapping[str, np.ndarray]) -> dict[str, Any]:
    header = json.loads(archive["header"].tobytes()) if "header" in archive else {}
    if header.get("format") != FORMAT:
        raise FileFormatError(f"{source} is an npz archive, but not one of {FORMAT}")
    if header["version"] > VERSION:
        raise FileFormatError(
            f"{source} has version {header['version']} of the file format, written by {FORMAT} "
            f"{header['package']}; this {FORMAT} reads up to version {VERSION}"
        )
    return header


def _entry(index: int) -> str:
    return f"array_{index}"


def _package_version() -> str:
    try:
        return metadata.version(FORMAT)
    except metadata.PackageNotFoundError:
        return "not installed"
