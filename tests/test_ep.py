"""Expectation propagation and its relatives, at limits where their answers are known."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, pvi
from tests import reference
from tests.test_federated import assert_same, labelled_data, pooled, regression_data, server

ONCE = {"sweeps": 1, "damping": 1.0}
CONVERGED = pvi.PowerEPUpdate(sweeps=60, damping=0.7)


def fitted(model, shards, update, schedule=None, rounds=1, **settings):
    """A server after so many rounds, in none of which anything went wrong."""
    found = server(model, shards, update, **settings)
    history = pvi.fit(found, schedule or pvi.Sequential(), rounds)
    assert not any(one.failed or one.refused for one in history)
    return found


def by_datum(X, Y):
    return [(X[n : n + 1], Y[n : n + 1]) for n in range(len(X))]


@pytest.mark.parametrize("alpha", [1.0, 0.5, 1e-3])
@pytest.mark.parametrize("num_clients", [1, 4, 60])
def test_of_a_conjugate_model_posterior_and_evidence_are_exact(rng, alpha, num_clients):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    shards = datasets.partition_iid(X, Y, num_clients)
    found = fitted(model, shards, pvi.PowerEPUpdate(alpha, **ONCE))
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(found.history[-1].free_energy, product.log_integral(), rtol=1e-9)


@pytest.mark.parametrize("num_clients", [1, 3, 60])
def test_probit_regression_is_ep_by_hand_whatever_the_partition(rng, num_clients):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    shards = datasets.partition_iid(X, Y, num_clients)
    update = pvi.PowerEPUpdate(**ONCE) if num_clients == 60 else CONVERGED
    found = fitted(model, shards, update, rounds=12 if num_clients == 60 else 6)
    mean, covariance = reference.probit_by_expectation_propagation(X, Y)
    np.testing.assert_allclose(found.posterior.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.posterior.covariance, covariance, rtol=1e-6)
