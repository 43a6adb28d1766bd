"""Local fits that end before their last epoch (PGVI, section 5.2)."""

from dataclasses import replace

import numpy as np
import pytest

from streaming_gp import linear, pvi
from streaming_gp.expfam import Normal
from tests.conftest import ALGEBRA
from tests.oracles.reference import assert_same, labelled_data, task_of

EPOCHS, NEVER = 40, pvi.Plateau(patience=1, tolerance=0.0)


@pytest.fixture(scope="module")
def task():
    X, Y = labelled_data(np.random.default_rng(0))
    return task_of(linear.logistic_regression(3), X, Y)


def fit(task, epochs=EPOCHS, stopping=None):
    update = pvi.VariationalUpdate(epochs, 20, learning_rate=0.05, stopping=stopping)
    return update(task)


def test_a_fit_ends_when_the_expected_log_likelihood_rests_and_not_before(task):
    plateau = pvi.Plateau(patience=3, tolerance=0.01)
    found = fit(task, stopping=plateau)
    epochs = found.steps // 3
    assert 4 < epochs < EPOCHS
    shorter = fit(task, epochs)
    assert_same(found.factor, shorter.factor, ALGEBRA)
    assert found.free_energy == shorter.free_energy


def test_what_rests_is_the_log_likelihood_and_not_the_free_energy(task):
    """By its closed formula where a fit starts, away from the prior; one step sees all data."""
    seen = []
    start = Normal.from_mean_covariance(np.array([0.5, -1.0, 0.2]), 0.3 * np.eye(3)).as_arrays()

    class Watch(pvi.Plateau):
        def is_reached(self, values):
            seen.extend(values)
            return True

    pvi.VariationalUpdate(5, None, stopping=Watch())(replace(task, start=start))
    X, Y = task.data
    wanted = task.model.expected_log_likelihood(start, X, Y, np.array([5, 0]))
    np.testing.assert_allclose(seen, [wanted / len(X)], rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "is_reached"),
    [
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([1.0, 1.2, 1.0], False),
        ([5.0, 1.0, 1.1, 1.0], True),
        ([1.0, 1.0, 1.0, 2.0], False),
    ],
)
def test_a_plateau_is_so_many_epochs_without_a_change(values, is_reached):
    assert pvi.Plateau(patience=2, tolerance=0.15).is_reached(values) is is_reached


def test_a_plateau_is_reached_only_once_values_do_not_change_at_all(task):
    assert fit(task, epochs=6, stopping=NEVER).steps == fit(task, epochs=6).steps == 18
