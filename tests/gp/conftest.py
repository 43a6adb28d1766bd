"""Data that the tests of Gaussian processes share."""

import numpy as np
import pytest

from tests.reference import smooth_data


@pytest.fixture
def data(rng):
    return smooth_data(rng, 90)


@pytest.fixture
def new_inputs(rng):
    return rng.uniform(-2.0, 2.0, (40, 2))


FIVE = [f"site-{i}" for i in range(5)]


@pytest.fixture
def five_sites(data):
    X, Y = data
    order = np.argsort(X[:, 0])  # each site sees a slice of its own
    return {name: (X[i], Y[i]) for name, i in zip(FIVE, np.array_split(order, 5), strict=True)}
