"""The streams: what arrives, in which order, and what it is tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from streaming_gp.datasets import Split, load_banana, load_robot_arm, load_uci
from streaming_gp.errors import InvalidDataError

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches in the order in which they arrive, and test data.

    :param batches: Pairs of X [N, D] and Y [N, 1], standardised; labels are 0 or 1.
    :param X_test: The test inputs [T, D].
    :param Y_test: The test targets [T, 1].
    :param classes: Whether Y is a label.
    :param points: The number of private pseudo-points of a batch.
    """

    batches: tuple[Batch, ...]
    X_test: np.ndarray
    Y_test: np.ndarray
    classes: bool
    points: int

    @property
    def num_data(self) -> int:
        return sum(len(X) for X, _ in self.batches)

    def first(self) -> Batch:
        """What hyperparameters may be learned from beforehand.

        The first two batches; where these are small, 200 points or a quarter of the stream.
        """
        wanted = max(sum(len(X) for X, _ in self.batches[:2]), min(200, self.num_data // 4))
        X, Y = self.joined()
        return X[:wanted], Y[:wanted]

    def joined(self) -> Batch:
        """All batches as one."""
        X, Y = zip(*self.batches, strict=True)
        return np.concatenate(X), np.concatenate(Y)

    def shortened(self, num_batches: int) -> Stream:
        """The first batches and the first 200 test points."""
        return replace(
            self,
            batches=self.batches[:num_batches],
            X_test=self.X_test[:200],
            Y_test=self.Y_test[:200],
        )


def standardised(data: Split, classes: bool = False) -> Split:
    """Inputs, and targets that are no labels, at mean 0 and variance 1 of the training set."""

    def scaled(values: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (values - by.mean(axis=0)) / by.std(axis=0)

    Y, Y_test = data.Y, data.Y_test
    if not classes:
        Y, Y_test = scaled(data.Y, data.Y), scaled(data.Y_test, data.Y)
    return Split(scaled(data.X, data.X), Y, scaled(data.X_test, data.X), Y_test)


def cut(data: Split, order: np.ndarray, size: int, classes: bool, points: int) -> Stream:
    """Batches of ``size`` points, or somewhat fewer where they do not come out even."""
    number = -(-len(order) // size)
    batches = tuple((data.X[rows], data.Y[rows]) for rows in np.array_split(order, number))
    return Stream(batches, data.X_test, data.Y_test, classes, points)


def points_of(size: int) -> int:
    """Ten private points for 500 data, as in PVI 2018, and as many in proportion."""
    return max(1, round(size / 50))


# ---- each stream ----


def barrett(joint: int, by: int, size: int, folder: Path | None) -> Stream:
    """The torque of one joint of the Barrett WAM, sorted by the position of joint ``by``."""
    arm = load_robot_arm("barrett", folder)
    torque = slice(joint - 1, joint)
    data = standardised(Split(arm.X, arm.Y[:, torque], arm.X_test, arm.Y_test[:, torque]))
    order = np.argsort(data.X[:, by - 1], kind="stable")
    return cut(data, order, size, False, points_of(size))


def shuffled(name: str, size: int, folder: Path | None, most: int | None = None) -> Stream:
    """The published split 0, in random order."""
    data = standardised(load_uci(name, 0, folder))
    order = np.random.default_rng(0).permutation(len(data.X))[:most]
    return cut(data, order, size, False, points_of(size))


def protein(size: int, folder: Path | None) -> Stream:
    """Sorted by the first input, the total surface area."""
    data = standardised(load_uci("protein-tertiary-structure", 0, folder))
    return cut(data, np.argsort(data.X[:, 0], kind="stable"), size, False, points_of(size))


def banana(size: int, points: int, folder: Path | None) -> Stream:
    """Ordered by the first input, as in PVI 2018."""
    data = standardised(load_banana(folder), classes=True)
    return cut(data, np.argsort(data.X[:, 0], kind="stable"), size, True, points)


def drift(size: int, number: int, folder: Path | None) -> Stream:
    """Two inputs, and a wave that moves on by one radian while the stream lasts.

    ``y = sin(2 x₁ + τ) + cos(x₁ x₂ + τ) / 2 + 0.1 ε`` at time τ from 0 to 1; tested at τ = 1.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (number + 1000, 2))
    time = np.concatenate([np.linspace(0.0, 1.0, number), np.ones(1000)])
    wave = np.sin(2.0 * X[:, 0] + time) + 0.5 * np.cos(X[:, 0] * X[:, 1] + time)
    Y = (wave + 0.1 * rng.standard_normal(len(X)))[:, None]
    data = standardised(Split(X[:number], Y[:number], X[number:], Y[number:]))
    return cut(data, np.arange(number), size, False, points_of(size))


SINGLES = 1000
"""Streams of single points end after so many."""

ARM = {
    f"barrett{joint}-by{by}-500": partial(barrett, joint, by, 500)
    for joint in (3, 2, 6)
    for by in (1, 3)
}
FIRST = ("barrett3-by1-500", "kin8nm-500", "banana-133", "banana-10", "power-500", "drift-500")
_ALL: dict[str, Callable[[Path | None], Stream]] = {
    **ARM,
    "barrett3-by1-100": partial(barrett, 3, 1, 100),
    **{f"kin8nm-{size}": partial(shuffled, "kin8nm", size) for size in (500, 100)},
    "kin8nm-1": partial(shuffled, "kin8nm", 1, most=SINGLES),
    "power-500": partial(shuffled, "power-plant", 500),
    "protein-500": partial(protein, 500),
    "banana-133": partial(banana, 134, 10),
    "banana-10": partial(banana, 10, 2),
    "banana-1": partial(banana, 1, 1),
    "drift-500": partial(drift, 500, 5000),
}
STREAMS = {name: _ALL[name] for name in (*FIRST, *(one for one in _ALL if one not in FIRST))}
"""How each stream is made from a data folder; the most telling come first."""


def load(name: str, folder: Path | None = None) -> Stream:
    """A stream by its name.

    :param name: What it is and the size of its batches, such as ``"kin8nm-500"``.
    :param folder: The folder in which data are looked for first.
    :raises InvalidDataError: if there is no such stream.
    :raises DataNotFoundError: if its data are nowhere.
    """
    if name not in STREAMS:
        raise InvalidDataError(f"no stream {name!r}; there are {', '.join(STREAMS)}")
    return STREAMS[name](folder)
