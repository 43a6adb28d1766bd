"""The bound of shared points that are independent of ε (PVI 2018, app. C.3), in dense matrices."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Independent
from streaming_gp.gp.bounds import Sites
from tests.oracles.problems import (
    COLUMNS,
    columns_of,
    kernels_of,
    known_points,
    model_of_columns,
    problem_of,
)
from tests.oracles.reference import independent_bound, smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(params=[(1, 1), (3, COLUMNS)], ids=["one of ε", "three of ε, two groups"])
def second_batch(rng, request):
    """A model, a batch as its problem where earlier points are known, and values of ε."""
    number, groups = request.param
    learned = sgp.VariationalHyperparameters()
    model = model_of_columns(sgp.IndependentPseudoPoints(6), learned, groups)
    local = model._compile(2, COLUMNS).local
    earlier = known_points(rng, 5, groups)
    data, vector = smooth_data(rng, 15, COLUMNS), local.parameters.value()
    draws = vector + 0.3 * rng.standard_normal((number, len(vector)))
    return model, local, problem_of(local, data, earlier, rng), data, draws, earlier


@pytest.fixture
def solved(second_batch):
    """The bound and what is kept of q(b)."""
    _, local, problem, data, draws, _ = second_batch
    none = Sites(*(tf.zeros([len(data[0]), COLUMNS], tf.float64) for _ in range(2)))
    bound, Z, at = Independent(), problem.Z_start, tf.constant(draws)
    summary = bound.summary(local, at, at[0], Z, problem, none)
    found = bound.pseudo_observations(local, summary, problem, none)
    return float(bound.free_energy(local, at, Z, problem, none)), found


def dense(second_batch, added):
    """The mean of the dense bound over the values of ε."""
    model, _, _, data, draws, earlier = second_batch
    vector = model.parameter_vector
    before, found = vector.value(), []
    for epsilon in draws:
        vector.assign(epsilon)
        known = model.mean_function, model.likelihood.variance.numpy()
        each = zip(kernels_of(model), columns_of(data, earlier, added), strict=True)
        of_each = (independent_bound(k, *known, *points, mine) for k, (mine, *points) in each)
        found.append(sum(of_each))
    vector.assign(before)
    return np.mean(found)


def test_it_is_the_bound_in_dense_matrices(second_batch, solved):
    assert solved[1].slope.shape[2] == 0  # the points rest on no others
    assert solved[0] == pytest.approx(dense(second_batch, solved[1]), abs=THROUGH_CHOLESKY)


def test_sites_and_what_points_leave_open_are_averaged_over_epsilon(second_batch):
    _, local, problem, data, draws, _ = second_batch
    none = Sites(*(tf.zeros([len(data[0]), COLUMNS], tf.float64) for _ in range(2)))

    def found(at, method):
        return method(local, at, problem.Z_start, problem, none)

    def summary(local, at, Z, problem, sites):
        return Independent().summary(local, at, at[0], Z, problem, sites).left

    at = tf.constant(draws)
    each = [found(at[s : s + 1], summary) for s in range(len(draws))]
    np.testing.assert_allclose(found(at, summary), np.mean(each, axis=0), rtol=ALGEBRA)
    sites, precisions = found(at, Independent().next_sites), []
    for epsilon in draws:  # of Gaussian noise, sites are the exact ones
        precisions.append(local.noise_precision(epsilon, data[0]))
    wanted = np.mean(precisions, axis=0)
    np.testing.assert_allclose(sites.precision, wanted, rtol=ALGEBRA)
    np.testing.assert_allclose(sites.precision_mean, wanted * data[1], rtol=ALGEBRA)


def test_no_other_points_have_a_larger_one(rng, second_batch, solved):
    best, found = solved
    for _ in range(5):
        moves = [
            1e-3 * found.scale @ rng.standard_normal(part.shape)
            for part in (found.intercept, found.scale)
        ]
        ahead, behind = (
            dense(
                second_batch,
                replace(
                    found,
                    intercept=found.intercept + sign * moves[0],
                    scale=found.scale + sign * moves[1],
                ),
            )
            for sign in (1.0, -1.0)
        )
        assert max(ahead, behind) < best
        assert abs(ahead - behind) < 1e-2 * (2.0 * best - ahead - behind)
