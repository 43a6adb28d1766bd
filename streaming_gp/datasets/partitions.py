"""Data divided among clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import (
    as_real_array,
    require_count,
    require_integer,
    require_positive_finite,
)

Shards = list[tuple[np.ndarray, np.ndarray]]


def partition_iid(X: np.ndarray, Y: np.ndarray, num_clients: int, seed: int = 0) -> Shards:
    """Rows dealt out at random, in equal parts.

    :param X: The inputs [N, D].
    :param Y: The targets [N, P].
    :param num_clients: The number of clients K, at most N.
    :param seed: The seed of the order of rows.
    :returns: (X, Y) of each client.
    :raises InvalidDataError: if there are fewer rows than clients, or X and Y differ in number.

    >>> [len(x) for x, y in sgp.datasets.partition_iid(X, Y, num_clients=3)]
    [7, 7, 6]
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
    :raises InvalidDataError: if there are fewer rows than clients, X and Y differ in number, or Y
        is not one label for each row.
    """
    X, Y = _labelled(*_checked(X, Y, num_clients, seed))
    shuffled = np.random.default_rng(seed).permutation(len(X))
    order = shuffled[np.argsort(Y[shuffled, 0], kind="stable")]
    labels, counts = np.unique(Y[:, 0], return_counts=True)
    alone = len(labels) == num_clients
    parts = np.split(order, np.cumsum(counts)[:-1]) if alone else np.array_split(order, num_clients)
    return [(X[rows], Y[rows]) for rows in parts]


def partition_by_dirichlet(
    X: np.ndarray, Y: np.ndarray, num_clients: int, concentration: float, seed: int = 0
) -> Shards:
    """The rows of each label divided among clients by shares drawn from a Dirichlet distribution.

    With a concentration of 0.1 most of a label's rows go to one or two clients; the larger it is,
    the more alike clients are (Hsu, Qi & Brown 2019; label by label as Yurochkin et al. 2019). A
    client that would have no row gets one of whoever has most.

    :param X: The inputs [N, D].
    :param Y: The labels [N, 1].
    :param num_clients: The number of clients K, at most N.
    :param concentration: The concentration α > 0, the same for all clients.
    :param seed: The seed of shares, and of the order of rows.
    :returns: (X, Y) of each client.
    :raises InvalidDataError: if there are fewer rows than clients, X and Y differ in number, Y is
        not one label for each row, or the concentration is not positive.
    """
    X, Y = _labelled(*_checked(X, Y, num_clients, seed))
    require_positive_finite("concentration", concentration)
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(X), int)
    for label in np.unique(Y[:, 0]):
        rows = rng.permutation(np.flatnonzero(Y[:, 0] == label))
        shares = rng.dirichlet(np.full(num_clients, concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for client, part in enumerate(np.split(rows, cuts)):
            owner[part] = client
    counts = np.bincount(owner, minlength=num_clients)
    for client in np.flatnonzero(counts == 0):
        largest = counts.argmax()
        owner[np.flatnonzero(owner == largest)[0]] = client
        counts[largest], counts[client] = counts[largest] - 1, 1
    return [(X[owner == client], Y[owner == client]) for client in range(num_clients)]


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


def _labelled(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Refuse labels that are spread over columns, or missing."""
    if Y.ndim != 2 or Y.shape[1] != 1:
        raise InvalidDataError(f"Y must be labels [N, 1], got {list(Y.shape)}")
    if np.isnan(Y).any():
        raise InvalidDataError(f"Y misses {np.isnan(Y).sum()} of {len(Y)} labels (NaN)")
    return X, Y
