"""Data divided among clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.arguments import require_count, require_integer
from streaming_gp.conversion import as_real_array
from streaming_gp.errors import InvalidDataError

Shards = list[tuple[np.ndarray, np.ndarray]]


def partition_iid(X: np.ndarray, Y: np.ndarray, num_clients: int, seed: int = 0) -> Shards:
    """Rows dealt out at random, in equal parts.

    :param X: The inputs [N, D].
    :param Y: The targets [N, P].
    :param num_clients: The number of clients K, at most N.
    :param seed: The seed of the order of rows.
    :returns: (X, Y) of each client.
    :raises InvalidDataError: if there are fewer rows than clients, or X and Y differ in number.
    """
    X, Y = _checked(X, Y, num_clients, seed)
    order = np.random.default_rng(seed).permutation(len(X))
    return [(X[rows], Y[rows]) for rows in np.array_split(order, num_clients)]


def partition_by_label(X: np.ndarray, Y: np.ndarray, num_clients: int, seed: int = 0) -> Shards:
    """Rows sorted by label and cut into equal parts or, with as many clients as labels, one label
    for each client.

    :param X: The inputs [N, D].
    :param Y: The labels [N, 1].
    :param num_clients: The number of clients K, at most N.
    :param seed: The seed of the order of rows within a label.
    :returns: (X, Y) of each client.
    :raises InvalidDataError: if there are fewer rows than clients, or X and Y differ in number.
    """
    X, Y = _checked(X, Y, num_clients, seed)
    shuffled = np.random.default_rng(seed).permutation(len(X))
    order = shuffled[np.argsort(Y[shuffled, 0], kind="stable")]
    labels, counts = np.unique(Y[:, 0], return_counts=True)
    alone = len(labels) == num_clients
    parts = np.split(order, np.cumsum(counts)[:-1]) if alone else np.array_split(order, num_clients)
    return [(X[rows], Y[rows]) for rows in parts]


def _checked(X: Any, Y: Any, num_clients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    require_integer("num_clients", num_clients)
    require_count("seed", seed)
    X, Y = as_real_array("X", X), as_real_array("Y", Y)
    if len(X) != len(Y) or not 1 <= num_clients <= len(X):
        raise InvalidDataError(
            f"wanted as many rows in X as in Y, and no more clients than rows; got {len(X)} and "
            f"{len(Y)} rows for {num_clients} clients"
        )
    return X, Y
