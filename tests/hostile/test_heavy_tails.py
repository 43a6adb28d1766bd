"""Student's t: data far from what is expected are outliers, or the first of what is new."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.oracles.builders import EVERY_INPUT, FIXED

SCALE, DF = 0.1, 3.0


def heavy_tails():
    return gpflow.likelihoods.StudentT(scale=SCALE, df=DF)


@pytest.mark.parametrize(
    "points",
    [EVERY_INPUT, sgp.ConditionalPseudoPoints(20)],
    ids=["all", "conditional"],
)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_function_is_found_among_outliers(points, seed):
    """Not left wherever the prior was by data that are too far from it to count."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (150, 1))
    F = 2.0 * np.sin(X)
    kernel = gpflow.kernels.SquaredExponential(variance=4.0)
    model = sgp.StreamingGP(kernel, heavy_tails(), pseudo_points=points, hyperparameters=FIXED)
    info = model.update((X, F + 0.1 * rng.standard_t(2, F.shape)))
    mean, _ = model.predict_f(X)
    assert np.sqrt(np.mean((mean - F) ** 2)) < 0.07
    assert info.clipped_sites == 0
