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
from streaming_gp.simulated_arm import EPISODE, simulate

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
# Checksums: the record of github.com/kaiwen123-yang/CERTO-FDI at 9526e7b, whose sizes and shapes
# are those of the published files; see datasets/README.md.
_SARCOS = (
    _File(
        "robot_arm/sarcos_inv.mat",
        "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97",
        url="http://www.gaussianprocess.org/gpml/data/sarcos_inv.mat",
    ),
    _File(
        "robot_arm/sarcos_inv_test.mat",
        "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",
        url="http://www.gaussianprocess.org/gpml/data/sarcos_inv_test.mat",
    ),
)
_BARRETT_ARRAYS = ("X_train", "Y_train", "X_test", "Y_test")


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
    source: str | Path = "barrett",
    folder: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
) -> Split:
    """Inverse dynamics of a robot arm: 21 inputs (positions, velocities, accelerations of seven
    joints), seven torques; raw units.

    ``"barrett"``
        The real Barrett WAM data of Nguyen-Tuong et al. (2009) and of the PVI paper: 12,000
        training and 3,000 test points.
    ``"sarcos"``
        The real SARCOS data of Vijayakumar and Schaal (2000) as published with Rasmussen and
        Williams (2006). Nearly every row of the published test set is a training row as well.
        Those rows are taken out of the training set, which leaves the test set the published
        4,449 points; errors that others measured on it without doing so are too small.
    ``"simulated"``
        Not a real robot: 12,000 training and 3,000 test points of
        :func:`streaming_gp.simulated_arm.simulate`, 80 movements to learn and 20 others to test.
    a path
        A ``.mat`` file of your own with the four Barrett arrays, or ``sarcos_inv.mat`` with
        ``sarcos_inv_test.mat`` beside it; shapes are checked, checksums are not.

    :param source: one of the above.
    :param folder: where to look first.
    :param download: whether the data may be fetched; their licences are not stated.
    :param seed: of the simulated movements and noise.
    :raises DataNotFoundError: if the data are nowhere.
    :raises InvalidDataError: if a file holds something else.
    :raises SimulationMissingError: if the simulation's library is not installed.
    """
    if source == "simulated":
        return _simulated(seed)
    if source == "sarcos":
        train, test = (find(file, folder, download) for file in _SARCOS)
        return _sarcos(train, test)
    path = find(_BARRETT, folder, download) if source == "barrett" else Path(source)
    if not path.is_file():
        raise DataNotFoundError(
            f"{str(source)!r} is none of 'barrett', 'sarcos' and 'simulated', and no file"
        )
    arrays = _arrays(path)
    if "sarcos_inv" in arrays:
        return _sarcos(path, path.with_name("sarcos_inv_test.mat"))
    missing = [name for name in _BARRETT_ARRAYS if name not in arrays]
    if missing:
        raise InvalidDataError(f"{path} lacks the arrays {missing}")
    return Split(*(arrays[name].astype(float) for name in _BARRETT_ARRAYS))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataNotFoundError(f"no such file: {path}")
    try:
        return scipy.io.loadmat(path)
    except Exception as error:  # loadmat passes on whatever its parsers raised
        raise InvalidDataError(f"{path} is not a .mat file that can be read: {error}") from error


def _simulated(seed: int) -> Split:
    X, Y = simulate(15_000 // EPISODE, seed)
    return Split(X[:12_000], Y[:12_000], X[12_000:], Y[12_000:])


def _sarcos(train: Path, test: Path) -> Split:
    kept, tested = _sarcos_rows(train, "sarcos_inv"), _sarcos_rows(test, "sarcos_inv_test")
    kept = _without(kept, tested)
    return Split(kept[:, :21], kept[:, 21:], tested[:, :21], tested[:, 21:])


def _sarcos_rows(path: Path, name: str) -> np.ndarray:
    rows = _arrays(path).get(name)
    if rows is None or rows.ndim != 2 or rows.shape[1] != 28:
        found = "nothing" if rows is None else list(rows.shape)
        raise InvalidDataError(f"{path} must hold {name} of shape [N, 28], got {found}")
    return rows.astype(float)


def _without(rows: np.ndarray, excluded: np.ndarray) -> np.ndarray:
    """The rows in their order, each once, but those that occur in ``excluded``.

    Rows are the same if they agree in six decimals, which is what SARCOS was published with.
    """
    together = np.concatenate([excluded, rows])
    first = np.unique(np.round(together, 6), axis=0, return_index=True)[1]
    return together[np.sort(first[first >= len(excluded)])]
