"""One tree in one file: an npz archive with a header and a checksum, written atomically."""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.serialization.trees import Classes, decode, encode

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


def _unpacked(source: PathLike, data: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays; the version comes first, as a later one may be checked in another way."""
    if not data.startswith(b"PK"):
        what = "is no npz archive" if data else "is empty"
        raise FileFormatError(f"{source} {what}; wanted a file of {FORMAT}")
    try:
        _refuse_swelling(source, data)
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
