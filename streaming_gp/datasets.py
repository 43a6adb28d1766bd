"""Data for the examples, found or fetched.

A file is looked for in the folder that is passed, then in ``$STREAMING_GP_DATA``, then among the
files that ship with the package, then in the user's cache; what is found nowhere is downloaded into
the cache. Every file but the user's own is held to a pinned sha256.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import scipy.io

from streaming_gp.errors import InvalidDataError, StreamingGPError

DATA_VARIABLE = "STREAMING_GP_DATA"
_SHIPPED = Path(__file__).resolve().parent / "_data"  # the repository's datasets/


class DataNotFoundError(StreamingGPError, FileNotFoundError):
    """A data file that is nowhere to be found, and was not to be downloaded."""


@dataclass(frozen=True)
class _File:
    """A data file: path below a data folder, checksum, and its shipped name or address."""

    path: str
    sha256: str
    shipped: str | None = None
    url: str | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data: X [N, D], Y [N, P] each, float64."""

    X: np.ndarray
    Y: np.ndarray
    X_test: np.ndarray
    Y_test: np.ndarray


_BANANA = (
    _File(
        "banana/banana.csv",
        "a8956248a344cfdf9cb58b51dd94733446fe378dab9090d26c38ab15f39cfed5",
        shipped="banana.csv",
    ),
    _File(
        "banana/train_rows.txt",
        "9ec3cf700578595e5994ed9b40f5a144950eab5dd741a81e557673a125963860",
        shipped="banana_train_rows.txt",
    ),
    _File(
        "banana/test_rows.txt",
        "258e84f9acd4f8dbf0b7b90a5f91c20c033daea9d7db03bff4d6bada2f99a7e4",
        shipped="banana_test_rows.txt",
    ),
)
_BARRETT = _File(
    "robot_arm/ias_real_barrett_data.mat",
    "b54be76cc0757fa7b4b943ef24fd3f080223037bf3f3527ee5a59f023686a346",
    url="https://github.com/hanyas/mimo/raw/1e1a4e19%5E/datasets/Barrett/ias_real_barrett_data.mat",
)


def find(file: _File, folder: str | Path | None = None, download: bool = True) -> Path:
    """Path of a data file, after its checksum was verified.

    :param folder: looked in first.
    :raises DataNotFoundError: if it is nowhere and cannot or may not be downloaded.
    :raises InvalidDataError: if a file is there but is not the right one.
    """
    cache = Path(pooch.os_cache("streaming_gp"))
    places = [Path(place) for place in (folder, os.environ.get(DATA_VARIABLE)) if place]
    candidates = [place / file.path for place in places]
    if file.shipped is not None:
        candidates.append(_SHIPPED / file.shipped)
    candidates.append(cache / file.path)
    for candidate in candidates:
        if candidate.is_file():
            return _verified(candidate, file.sha256)
    if file.url is None or not download:
        looked = ", ".join(str(candidate) for candidate in candidates)
        raise DataNotFoundError(f"no such file: {looked}; set ${DATA_VARIABLE} to its data folder")
    return _downloaded(file, cache)


def _verified(path: Path, sha256: str) -> Path:
    found = pooch.file_hash(str(path))
    if found != sha256:
        raise InvalidDataError(f"{path} has sha256 {found}, wanted {sha256}")
    return path


def _downloaded(file: _File, cache: Path) -> Path:
    try:
        return Path(
            pooch.retrieve(
                file.url,
                known_hash=f"sha256:{file.sha256}",
                fname=Path(file.path).name,
                path=cache / Path(file.path).parent,
                progressbar=True,
            )
        )
    except Exception as error:  # pooch passes on whatever its downloader raised
        raise DataNotFoundError(f"could not download {file.url}: {error}") from error


def load_banana(folder: str | Path | None = None) -> Split:
    """The banana data: two inputs, one label 0 or 1; 400 training and 4,900 test points.

    Ships with the source; see ``datasets/README.md`` for its provenance.

    :param folder: where to look first.
    """
    table, train, test = (
        np.loadtxt(find(file, folder), delimiter=",", skiprows=skip)
        for file, skip in zip(_BANANA, (1, 0, 0), strict=True)
    )
    X, Y = table[:, :2], table[:, 2:]
    train, test = train.astype(int), test.astype(int)
    return Split(X[train], Y[train], X[test], Y[test])


def load_robot_arm(
    source: str = "barrett", folder: str | Path | None = None, download: bool = True
) -> Split:
    """Inverse dynamics of a robot arm: 21 inputs (positions, velocities, accelerations of seven
    joints), seven torques; raw units.

    :param source: ``"barrett"``, the real Barrett WAM data of Nguyen-Tuong et al. (2009) and of the
        PVI paper (12,000 training and 3,000 test points), or the path of a ``.mat`` file with the
        same four arrays.
    :param folder: where to look first.
    :param download: whether the data may be fetched; their licence is not stated.
    """
    path = find(_BARRETT, folder, download) if source == "barrett" else Path(source)
    if not path.is_file():
        raise DataNotFoundError(f"{source!r} is neither 'barrett' nor a file")
    arrays = scipy.io.loadmat(path)
    names = ("X_train", "Y_train", "X_test", "Y_test")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InvalidDataError(f"{path} lacks the arrays {missing}")
    return Split(*(arrays[name].astype(float) for name in names))
