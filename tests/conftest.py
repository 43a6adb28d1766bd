"""Shared fixtures, and the three tolerances that tests compare at."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from streaming_gp.errors import StreamingGPError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ALGEBRA = 1e-9
THROUGH_CHOLESKY = 1e-6
STANDARD_ERRORS = 4.0

_NEIGHBOUR = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure(config):
    if "STREAMING_GP_DATA" not in os.environ and _NEIGHBOUR.is_dir():
        os.environ["STREAMING_GP_DATA"] = str(_NEIGHBOUR)


@pytest.fixture
def rng():
    return np.random.default_rng(20181127)


@pytest.fixture(scope="session")
def barrett():
    from streaming_gp import datasets

    try:
        return datasets.load_robot_arm("barrett", download=False)
    except StreamingGPError as error:
        pytest.skip(f"Barrett WAM data are not here: {error}")


@pytest.fixture(scope="session")
def mnist():
    from streaming_gp import datasets

    try:
        return datasets.load_mnist(download=False)
    except StreamingGPError as error:
        pytest.skip(f"MNIST is not here: {error}")


@pytest.fixture(scope="session")
def fashion_mnist():
    from streaming_gp import datasets

    try:
        return datasets.load_fashion_mnist(download=False)
    except StreamingGPError as error:
        pytest.skip(f"Fashion-MNIST is not here: {error}")


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="session")
def wine():
    from streaming_gp import datasets

    try:
        return datasets.load_uci("wine-quality-red")
    except StreamingGPError as error:
        pytest.skip(f"The wine data are not here: {error}")
