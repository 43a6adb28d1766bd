"""Rows with something missing: targets are left out and counted, inputs are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streaming_gp.errors import InvalidDataError


def with_targets(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows whose targets are all there, and the number of the others.

    :param X: Inputs [N, D].
    :param Y: Targets [N, P], NaN where one is missing.
    """
    is_there = ~np.isnan(Y).any(axis=1)
    return X[is_there], Y[is_there], int(np.count_nonzero(~is_there))


def refuse_missing(X: np.ndarray, names: Sequence[str]) -> None:
    """Refuse rows with a missing input.

    :param X: Inputs [N, D].
    :param names: Their names [D].
    :raises InvalidDataError: naming the first row and input, counted from 0, and how many there
        are.
    """
    wrong = np.argwhere(np.isnan(X))
    if len(wrong):
        row, column = wrong[0]
        rows = len(np.unique(wrong[:, 0]))
        raise InvalidDataError(
            f"input {names[column]!r} is missing at row {row} ({rows} of {len(X)} rows miss one): "
            "leave such rows out, or fill them in"
        )
