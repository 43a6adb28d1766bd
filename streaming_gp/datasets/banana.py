"""The banana data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streaming_gp.datasets.files import File, Split, find

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
