"""The bound of conditional points (PVI 2018, eqs. 93 and 94): in dense matrices, and its sites."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Conditional
from streaming_gp.gp.bounds import Sites
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from tests.oracles.builders import FIXED, kernel
from tests.oracles.problems import (
    COLUMNS,
    NUGGET,
    columns_of,
    kernels_of,
    known_points,
    model_of_columns,
    problem_of,
)
from tests.oracles.reference import conditional_bound, expected_log_prior, smooth_data
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


def on_frozen(rng, known):
    """Three points that rest on known ones."""
    groups, R, columns = known.intercept.shape
    return ConditionalPseudoObservations(
        rng.uniform(-2.0, 2.0, (3, 2)),
        rng.standard_normal((groups, 3, columns)),
        rng.standard_normal((groups, 3, R)),
        np.tril(rng.standard_normal((groups, 3, 3))),
        2.0 * NUGGET,
    )


@pytest.mark.parametrize("groups", [1, COLUMNS])
def test_a_process_on_frozen_points_is_their_gaussian_pushed_forward(rng, groups):
    """``f = m(x) + k(x, Z) K⁻¹ (u − m(Z))`` with u ~ q(u), and what u leaves open."""
    model = model_of_columns(sgp.ConditionalPseudoPoints(6), FIXED, groups)
    gp, first = model._compile(2, COLUMNS).local.gp, known_points(rng, 5, groups)
    added = on_frozen(rng, first)
    stack = gp.stack((first, added), 2)
    X, X2 = (tf.constant(rng.uniform(-2.0, 2.0, (size, 2))) for size in (4, 7))
    conditioned = gp.condition(stack)
    V, V2 = (gp.project(stack, conditioned, points) for points in (X, X2))
    mean, variance = gp.mean(conditioned, V, X), gp.variance(V, X)
    Z = np.concatenate([first.Z, added.Z])
    nugget = np.repeat([first.nugget, added.nugget], [5, 3])
    for column, k in enumerate(kernels_of(model)):
        g, c = divmod(column, COLUMNS // groups)
        S = np.block([[first.scale[g], np.zeros((5, 3))], [added.slope[g], added.scale[g]]])
        u = np.concatenate([first.intercept[g, :, c], added.intercept[g, :, c]])
        K = k(Z).numpy() + np.diag(nugget)
        weights, weights2 = (np.linalg.solve(K, k(Z, points).numpy()) for points in (X, X2))
        np.testing.assert_allclose(mean[:, column], 2.0 + weights.T @ (u - 2.0), rtol=ALGEBRA)
        for found, left, right, points in (
            (gp.covariance(V, X), weights, weights, X),
            (gp.covariance(V, X, V2, X2), weights, weights2, X2),
        ):
            wanted = k(X, points).numpy() - left.T @ (K - S @ S.T) @ right
            np.testing.assert_allclose(found[g], wanted, atol=ALGEBRA)
        wanted = k(X).numpy() - weights.T @ (K - S @ S.T) @ weights
        np.testing.assert_allclose(variance[g], np.diag(wanted), atol=ALGEBRA)


@pytest.mark.usefixtures("eager")
def test_what_points_leave_open_is_averaged_over_epsilon(rng):
    learned = sgp.VariationalHyperparameters()
    local = model_of_columns(sgp.ConditionalPseudoPoints(6), learned, 1)._compile(2, COLUMNS).local
    problem = problem_of(local, smooth_data(rng, 15, COLUMNS), known_points(rng, 5), rng)
    none = Sites(*(tf.zeros([15, COLUMNS], tf.float64) for _ in range(2)))
    vector = local.parameters.value()
    draws = tf.constant(vector + 0.3 * rng.standard_normal((3, len(vector))))

    def left(at):
        return Conditional().summary(local, at, at[0], problem.Z_start, problem, none).left

    each = [left(draws[s : s + 1]) for s in range(3)]
    np.testing.assert_allclose(left(draws), np.mean(each, axis=0), rtol=ALGEBRA)


REMEMBERING = [
    sgp.VariationalHyperparameters(),
    sgp.PointHyperparameters(),
    sgp.PointHyperparameters(remember="divergence"),
    sgp.PointHyperparameters(remember=False),
]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("groups", [1, COLUMNS])
@pytest.mark.parametrize(
    "hyperparameters", REMEMBERING, ids=["eq. 94", "eq. 93", "eq. 93 by name", "forgetful"]
)
def test_it_is_the_bound_in_dense_matrices(rng, hyperparameters, groups):
    """Away from the ε that was before: only where a point remembers does the past answer to it."""
    model = model_of_columns(sgp.ConditionalPseudoPoints(6), hyperparameters, groups)
    local, frozen, data = (
        model._compile(2, COLUMNS).local,
        known_points(rng, 5, groups),
        smooth_data(rng, 15, COLUMNS),
    )
    problem = problem_of(local, data, frozen, rng)
    none = Sites(*(tf.zeros([15, COLUMNS], tf.float64) for _ in range(2)))

    def of_past():
        each = zip(kernels_of(model), columns_of(data, frozen), strict=True)
        return sum(expected_log_prior(k, model.mean_function, one) for k, (_, one) in each)

    before = of_past()
    epsilon = local.parameters.value() + 0.3 * rng.standard_normal(local.parameters.size)
    at, Z, bound = tf.constant(epsilon[None]), problem.Z_start, Conditional()
    value = float(bound.free_energy(local, at, Z, problem, none))
    summary = bound.summary(local, at, at[0], Z, problem, none)
    added = bound.pseudo_observations(local, summary, problem, none)
    model.parameter_vector.assign(epsilon)
    known = model.mean_function, model.likelihood.variance.numpy()
    each = zip(kernels_of(model), columns_of(data, frozen, added), strict=True)
    wanted = sum(conditional_bound(k, *known, *points, mine) for k, (mine, *points) in each)
    if getattr(hyperparameters, "remember", False):
        wanted += of_past() - before
    assert value == pytest.approx(wanted, abs=THROUGH_CHOLESKY)
