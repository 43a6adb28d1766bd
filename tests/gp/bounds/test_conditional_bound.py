"""The bound of conditional points, for likelihoods with parameters of their own."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Conditional
from streaming_gp.gp.bounds import Sites
from tests.gp.builders import FIXED, kernel
from tests.reference import smooth_data
from tests.tolerances import ALGEBRA


@pytest.fixture(scope="module")
def student():
    """A model after one batch, and a second one as the problem under its cavity."""
    rng = np.random.default_rng(4)
    gp = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.StudentT(scale=0.3, df=4.0), hyperparameters=FIXED,
        pseudo_points=sgp.ConditionalPseudoPoints(4, optimise_locations=False),
        optimiser=sgp.LocalOptimiser(rounds=1),
    )  # fmt: skip
    gp.update(smooth_data(rng, 15), learn=False)
    fitter = gp._compiled.fitter
    E = fitter.local.parameters.size
    place = gp.settings.pseudo_points.place
    problem = fitter.problems.with_data(
        smooth_data(rng, 10), np.zeros((1, E)), gp.posterior_process, place, None
    )
    return fitter.local, problem


def test_sites_are_averaged_over_the_likelihoods_own_parameters(student):
    """Draws that differ in the noise alone: the points and their posterior are the same."""
    local, problem = student
    present = local.parameters.value()
    assert list(local.parameters.parameters)[-1] == "likelihood.scale"
    sites = Sites(tf.zeros([10, 1], tf.float64), tf.ones([10, 1], tf.float64))

    def next_sites(*scales):
        draws = np.repeat(present[None], len(scales), axis=0)
        draws[:, -1] = scales
        return Conditional().next_sites(local, tf.constant(draws), problem.Z_start, problem, sites)

    narrow, wide, both = next_sites(-2.0), next_sites(1.0), next_sites(-2.0, 1.0)
    for one, other, mean in zip(narrow, wide, both, strict=True):
        assert np.abs(one - other).max() > 0.1
        np.testing.assert_allclose(mean, 0.5 * (one + other), rtol=ALGEBRA)
