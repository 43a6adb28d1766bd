"""Budgets of pseudo-points."""

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.strategies import MERGED
from tests.oracles.builders import known_model
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA

ONE_STEP = sgp.LocalOptimiser(projection_iterations=1)


def test_a_budget_is_kept_and_the_function_not_forgotten(rng):
    fitted = known_model(sgp.PrivatePseudoPoints(6, budget=40))
    for _ in range(12):
        X, Y = smooth_data(rng, 30)
        fitted.update((X, Y + 2.0))
        assert fitted.posterior_process.num_pseudo_points <= 40
    X, f = smooth_data(rng, 200, noise=0.0)
    assert np.mean((fitted.predict_f(X)[0] - f - 2.0) ** 2) < 0.01
    assert next(iter(fitted.factors)) == MERGED


@pytest.mark.slow
def test_a_budget_under_variational_hyperparameters_keeps_q(rng):
    fitted = known_model(
        sgp.PrivatePseudoPoints(6, budget=12),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=10),
    )
    X, Y = smooth_data(rng, 60)
    for rows in np.array_split(np.argsort(X[:, 0]), 2):
        fitted.update((X[rows], Y[rows]))
    before = fitted.hyperparameter_posterior
    fitted.compress(6)
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before.mean, rtol=ALGEBRA)
