"""A small model that all attacks share; none of them changes it."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.hostile.streams import FIXED, QUICK, dates, targets


@pytest.fixture(scope="session")
def trained():
    """Of dates: numbers that a float32 cannot tell apart."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=30.0), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(4), hyperparameters=FIXED, optimiser=QUICK,
    )  # fmt: skip
    model.update((dates(), targets(dates())), learn=False)
    return model


@pytest.fixture
def unchanged(trained):
    """The model is the same after the test, bit for bit."""
    from tests.hostile.streams import digest

    before = digest(trained)
    yield trained
    assert digest(trained) == before
    assert np.isfinite(trained.predict_f(dates())[0]).all()
