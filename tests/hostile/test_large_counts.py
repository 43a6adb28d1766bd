"""Counts that a prior does not expect: fixed-point steps of sites go too far at first."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.sites import Sites, SiteSteps
from streaming_gp.gp.collapsed.resting import Look, rested

STEPS = SiteSteps(most=60, damping=0.5, tolerance=1e-10)
COUNT, VARIANCE = 200.0, 1.0


def alone(sites):
    """A count under a log rate N(0, 1): the expected log likelihood, and the undamped step, which
    is of either kind, as precisions are positive.
    """
    variance = 1.0 / (1.0 / VARIANCE + sites.precision)
    mean = variance * sites.precision_mean
    with np.errstate(over="ignore"):
        rate = np.exp(mean + 0.5 * variance)
    wanted = Sites(COUNT - rate + rate * mean, rate)
    return Look(float(np.sum(COUNT * mean - rate)), wanted, wanted)


def sites_of(precision_mean, precision):
    return Sites(np.full((1, 1), precision_mean), np.full((1, 1), precision))


def test_a_step_that_goes_too_far_is_tried_again_shorter():
    found, clipped, is_near = rested(alone, sites_of(0.0, 1e-8), STEPS)
    assert is_near
    wanted = alone(found).wanted
    np.testing.assert_allclose(found.precision, wanted.precision, rtol=1e-6)
    np.testing.assert_allclose(found.precision_mean, wanted.precision_mean, rtol=1e-6)
    assert 0.9 * COUNT < found.precision.item() < COUNT
    assert clipped == 0


def test_steps_that_run_out_where_they_went_too_far_end_at_the_best():
    start = sites_of(0.0, 1e-8)
    found = rested(alone, start, STEPS._replace(most=1))
    assert found.sites is start
    assert not found.is_near


def test_a_first_step_that_is_not_finite_is_refused():
    with pytest.raises(NumericalError, match="non-finite"):
        rested(lambda sites: Look(np.nan, sites, sites), sites_of(0.0, 1e-8), STEPS)


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
