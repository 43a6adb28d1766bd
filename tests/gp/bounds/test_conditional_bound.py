"""The bound of conditional points (PVI 2018, eqs. 93 and 94): in dense matrices, and its sites."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Conditional
from streaming_gp.gp.bounds import Sites
from tests.gp.bounds.problems import COLUMNS, columns_of, known_points, problem_of
from tests.gp.builders import FIXED, kernel, known_model
from tests.reference import conditional_bound, expected_log_prior, smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


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


REMEMBERING = [
    sgp.VariationalHyperparameters(),
    sgp.PointHyperparameters(),
    sgp.PointHyperparameters(remember=False),
]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("hyperparameters", REMEMBERING, ids=["eq. 94", "eq. 93", "forgetful"])
def test_it_is_the_bound_in_dense_matrices(rng, hyperparameters):
    """Away from the ε that was before: only where a point remembers does the past answer to it."""
    model = known_model(sgp.ConditionalPseudoPoints(6), None, hyperparameters)
    local, frozen, data = (
        model._compile(2, COLUMNS).local,
        known_points(rng, 5),
        smooth_data(rng, 15, COLUMNS),
    )
    problem = problem_of(local, data, frozen, rng)
    none = Sites(*(tf.zeros([15, COLUMNS], tf.float64) for _ in range(2)))

    def of_past():
        prior = model.kernel, model.mean_function
        return sum(expected_log_prior(*prior, one) for _, one in columns_of(data, frozen))

    before = of_past()
    epsilon = local.parameters.value() + 0.3 * rng.standard_normal(local.parameters.size)
    at, Z, bound = tf.constant(epsilon[None]), problem.Z_start, Conditional()
    value = float(bound.free_energy(local, at, Z, problem, none))
    summary = bound.summary(local, at, at[0], Z, problem, none)
    added = bound.pseudo_observations(local, summary, problem, none)
    model.parameter_vector.assign(epsilon)
    known = model.kernel, model.mean_function, model.likelihood.variance.numpy()
    each = columns_of(data, frozen, added)
    wanted = sum(conditional_bound(*known, *points, mine) for mine, *points in each)
    if hyperparameters == sgp.PointHyperparameters():
        wanted += of_past() - before
    assert value == pytest.approx(wanted, abs=THROUGH_CHOLESKY)
