"""Partitions hold every row once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import datasets
from streaming_gp.errors import InvalidDataError


def by_dirichlet(X, Y, clients, seed):
    return datasets.partition_by_dirichlet(X, Y, clients, 0.2, seed)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_partitions_hold_every_row_once(number, clients, seed):
    X = np.arange(number, dtype=float)[:, None]
    Y = (X % 3).astype(float)
    for part in (datasets.partition_iid, datasets.partition_by_label, by_dirichlet):
        if clients > number:
            with pytest.raises(InvalidDataError, match="no more clients than rows"):
                part(X, Y, clients, seed)
            continue
        shards = part(X, Y, clients, seed)
        assert len(shards) == clients
        np.testing.assert_array_equal(
            np.sort(np.concatenate([x for x, _ in shards])[:, 0]), X[:, 0]
        )
        assert all((y == x % 3).all() for x, y in shards)


@pytest.mark.parametrize(("concentration", "low", "high"), [(0.02, 0.8, 1.0), (1e3, 0.1, 0.16)])
def test_labels_are_as_concentrated_as_asked_for(concentration, low, high):
    """The mean, over labels, of the largest share of a label's rows that one client has."""
    Y = np.repeat(np.arange(20.0), 100)[:, None]
    shards = datasets.partition_by_dirichlet(Y, Y, 10, concentration, seed=1)
    counts = np.array([np.bincount(y[:, 0].astype(int), minlength=20) for _, y in shards])
    assert low < np.mean(counts.max(axis=0) / 100.0) < high


def test_a_concentration_that_is_not_positive_is_refused():
    with pytest.raises(InvalidDataError, match="concentration"):
        datasets.partition_by_dirichlet(np.ones((4, 1)), np.ones((4, 1)), 2, 0.0)
