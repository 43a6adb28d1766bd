"""Files of data: looked for, verified, or fetched.

A file is looked for in the folder that is passed, then in ``$STREAMING_GP_DATA``, then among the
files that ship with the package, then in the user's cache; what is found nowhere is downloaded into
the cache. Every file but the user's own is held to a pinned checksum.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch

from streaming_gp.errors import InvalidDataError, StreamingGPError

DATA_VARIABLE = "STREAMING_GP_DATA"
SHIPPED = Path(__file__).resolve().parents[1] / "_data"  # the repository's datasets/


class DataNotFoundError(StreamingGPError, FileNotFoundError):
    """A data file that is nowhere to be found, and was not to be downloaded."""


@dataclass(frozen=True)
class File:
    """A data file: path below a data folder, checksum, and its shipped name or address.

    The checksum is that of the content, unpacked if it is one file in ``.gz``: packers differ. That
    of an archive is its own. It is a sha256, or "md5:..." where nothing better is published.
    """

    path: str
    checksum: str
    shipped: str | None = None
    url: str | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data: X [N, D], Y [N, P] each, float64."""

    X: np.ndarray
    Y: np.ndarray
    X_test: np.ndarray
    Y_test: np.ndarray


def places(folder: str | Path | None = None) -> list[Path]:
    """Where data may be: the folder that is passed, ``$STREAMING_GP_DATA``, the user's cache."""
    given = [Path(place) for place in (folder, os.environ.get(DATA_VARIABLE)) if place]
    return [*given, Path(pooch.os_cache("streaming_gp"))]


def find(file: File, folder: str | Path | None = None, download: bool = True) -> Path:
    """Path of a data file, after its checksum was verified.

    :param folder: The folder to look in first.
    :raises DataNotFoundError: if it is nowhere and cannot or may not be downloaded.
    :raises InvalidDataError: if a file is there but is not the right one.
    """
    *first, cache = places(folder)
    candidates = [place / file.path for place in first]
    if file.shipped is not None:
        candidates.append(SHIPPED / file.shipped)
    candidates.append(cache / file.path)
    for candidate in candidates:
        if candidate.is_file():
            return _verified(candidate, file.checksum)
    if file.url is None or not download:
        looked = ", ".join(str(candidate) for candidate in candidates)
        raise DataNotFoundError(f"no such file: {looked}; set ${DATA_VARIABLE} to its data folder")
    return _downloaded(file, cache)


def _verified(path: Path, checksum: str) -> Path:
    algorithm, _, wanted = checksum.rpartition(":")
    algorithm = algorithm or "sha256"
    digest = hashlib.new(algorithm, content(path), usedforsecurity=False).hexdigest()
    if digest != wanted:
        raise InvalidDataError(f"{path} has {algorithm} {digest}, wanted {wanted}")
    return path


def content(path: Path) -> bytes:
    """Bytes of a file, unpacked if its name ends in ``.gz`` but not ``.tar.gz``."""
    packed = path.suffix == ".gz" and not path.name.endswith(".tar.gz")
    try:
        return gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidDataError(f"{path} cannot be read: {error}") from error


def _downloaded(file: File, cache: Path) -> Path:
    """Fetched under another name, which it keeps until its checksum was verified."""
    target = cache / file.path
    try:
        part = Path(
            pooch.retrieve(
                file.url,
                known_hash=None,
                fname=f"unverified-{target.name}",
                path=target.parent,
                progressbar=True,
            )
        )
    except Exception as error:  # pooch passes on whatever its downloader raised
        raise DataNotFoundError(f"could not download {file.url}: {error}") from error
    try:
        os.replace(_verified(part, file.checksum), target)
    finally:
        part.unlink(missing_ok=True)
    return target
