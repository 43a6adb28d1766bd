"""Partitions hold every row once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import datasets
from streaming_gp.errors import InvalidDataError


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_partitions_hold_every_row_once(number, clients, seed):
    X = np.arange(number, dtype=float)[:, None]
    Y = (X % 3).astype(float)
    for part in (datasets.partition_iid, datasets.partition_by_label):
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
