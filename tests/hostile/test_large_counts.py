"""Counts that a prior does not expect: fixed-point steps of sites go too far at first."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(
    "points",
    [sgp.PrivatePseudoPoints("all"), sgp.PrivatePseudoPoints(8), sgp.SharedPseudoPoints(12)],
    ids=["all", "private", "shared"],
)
def test_counts_in_the_hundreds_are_learned(points, learn, rng):
    X = rng.uniform(-3.0, 3.0, (90, 1))
    Y = rng.poisson(np.exp(5.0 + np.sin(2.0 * X))).astype(float)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=20.0),
        gpflow.likelihoods.Poisson(),
        pseudo_points=points,
        seed=0,
    )
    for some in (slice(0, 30), slice(30, 60)):
        model.update((X[some], Y[some]), learn=learn)
    assert np.mean(model.predict_log_density((X[60:], Y[60:]))) > -6.0
