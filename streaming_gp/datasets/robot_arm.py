"""Inverse dynamics of robot arms: real ones, a simulated one, and files of your own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

from streaming_gp.datasets.files import DataNotFoundError, File, Split, find
from streaming_gp.datasets.simulated_arm import EPISODE, simulate
from streaming_gp.errors import InvalidDataError

_BARRETT = File(
    "robot_arm/ias_real_barrett_data.mat",
    "b54be76cc0757fa7b4b943ef24fd3f080223037bf3f3527ee5a59f023686a346",
    url="https://github.com/hanyas/mimo/raw/1e1a4e19%5E/datasets/Barrett/ias_real_barrett_data.mat",
)
# Checksums: the record of github.com/kaiwen123-yang/CERTO-FDI at 9526e7b, whose sizes and shapes
# are those of the published files; see datasets/README.md.
_SARCOS = (
    File(
        "robot_arm/sarcos_inv.mat",
        "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97",
        url="http://www.gaussianprocess.org/gpml/data/sarcos_inv.mat",
    ),
    File(
        "robot_arm/sarcos_inv_test.mat",
        "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",
        url="http://www.gaussianprocess.org/gpml/data/sarcos_inv_test.mat",
    ),
)
_BARRETT_ARRAYS = ("X_train", "Y_train", "X_test", "Y_test")


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
        Not a real robot: 12,000 training and 3,000 test points, 80 movements to learn and 20 others
        to test, of :func:`streaming_gp.datasets.simulated_arm.simulate`.
    a path
        A ``.mat`` file of your own with the four Barrett arrays, or ``sarcos_inv.mat`` with
        ``sarcos_inv_test.mat`` beside it; shapes are checked, checksums are not.

    :param source: The name of one of the above, or a path.
    :param folder: The folder to look in first.
    :param download: Whether the data may be fetched; their licences are not stated.
    :param seed: The seed of the simulated movements and noise.
    :raises DataNotFoundError: if the data are nowhere.
    :raises InvalidDataError: if a file holds something else, or the simulation's library is not
        installed.
    """
    if source == "simulated":
        X, Y = simulate(15_000 // EPISODE, seed)
        return Split(X[:12_000], Y[:12_000], X[12_000:], Y[12_000:])
    if source == "sarcos":
        train, test = (find(file, folder, download) for file in _SARCOS)
        return _sarcos(train, test)
    if source == "barrett":
        return _from_file(find(_BARRETT, folder, download))
    if not Path(source).is_file():
        raise DataNotFoundError(
            f"{str(source)!r} is none of 'barrett', 'sarcos' and 'simulated', and no file"
        )
    return _from_file(Path(source))


def _from_file(path: Path) -> Split:
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


def _sarcos(train: Path, test: Path) -> Split:
    """Training rows in their order, each once, but those that are test rows too.

    Rows are the same if they agree in six decimals, which is what SARCOS was published with.
    """
    tests = _sarcos_rows(test, "sarcos_inv_test")
    together = np.concatenate([tests, _sarcos_rows(train, "sarcos_inv")])
    first = np.unique(np.round(together, 6), axis=0, return_index=True)[1]
    rows = together[np.sort(first[first >= len(tests)])]
    return Split(rows[:, :21], rows[:, 21:], tests[:, :21], tests[:, 21:])


def _sarcos_rows(path: Path, name: str) -> np.ndarray:
    rows = _arrays(path).get(name)
    if rows is None or rows.ndim != 2 or rows.shape[1] != 28:
        shape = "nothing" if rows is None else list(rows.shape)
        raise InvalidDataError(f"{path} must hold {name} of shape [N, 28], got {shape}")
    return rows.astype(float)
