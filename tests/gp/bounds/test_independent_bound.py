"""The bound of shared points that are independent of ε (PVI 2018, app. C.3), in dense matrices."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Independent
from streaming_gp.gp.bounds import Sites
from tests.gp.builders import known_model
from tests.reference import independent_bound, smooth_data
from tests.tolerances import THROUGH_CHOLESKY

NUM_DRAWS = 3


@pytest.fixture(scope="module")
def second_batch():
    """A model after one batch, a second one as its problem, and values of ε."""
    rng = np.random.default_rng(5)
    model = known_model(
        sgp.IndependentPseudoPoints(6), None, sgp.VariationalHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=3),
    )  # fmt: skip
    model.update(smooth_data(rng, 20), learn=False)
    fitter = model._compiled.fitter
    E = fitter.local.parameters.size
    data = smooth_data(rng, 15)
    problem = fitter.problems.with_data(
        data, np.zeros((2, E)), model.posterior_process, model.settings.pseudo_points.place, None
    )
    q = model.hyperparameter_posterior
    draws = np.asarray(q.mean) + 0.3 * rng.standard_normal((NUM_DRAWS, E))
    return model, fitter.local, problem, data, draws


@pytest.fixture(scope="module")
def solved(second_batch):
    """The bound and what is kept of q(b)."""
    _, local, problem, data, draws = second_batch
    none = Sites(*(tf.zeros([len(data[0]), 1], tf.float64) for _ in range(2)))
    bound, Z, at = Independent(), problem.Z_start, tf.constant(draws)
    summary = bound.summary(local, at, at[0], Z, problem, none)
    found = bound.pseudo_observations(local, summary, problem, none)
    return float(bound.free_energy(local, at, Z, problem, none)), found


def dense(second_batch, added):
    """The mean of the dense bound over the values of ε."""
    model, _, _, data, draws = second_batch
    earlier, vector = model.factors["batch-0"].pseudo_observations[0], model.parameter_vector
    before, found = vector.value(), []
    for epsilon in draws:
        vector.assign(epsilon)
        noise = model.likelihood.variance.numpy()
        found.append(
            independent_bound(model.kernel, model.mean_function, noise, earlier, added, data)
        )
    vector.assign(before)
    return np.mean(found)


@pytest.mark.slow
def test_it_is_the_bound_in_dense_matrices(second_batch, solved):
    assert solved[0] == pytest.approx(dense(second_batch, solved[1]), abs=THROUGH_CHOLESKY)


@pytest.mark.slow
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
