"""Committees and federated averaging, which PVI is compared with."""

from dataclasses import replace

import numpy as np
import pytest

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import NoAnswerError
from streaming_gp.expfam import MeanFieldNormal, Normal
from tests.conftest import ALGEBRA
from tests.oracles.reference import assert_same, labelled_data, server

FIXED_POINT = 1e-6
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def test_a_committee_with_the_same_prior_is_one_undamped_round(rng):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, LBFGS)
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    members = []
    for shard in shards:
        alone = server(model, [shard], LBFGS)
        pvi.fit(alone)
        members.append(alone.posterior / alone.prior)
    assert_same(found.posterior, found.prior.times(members), ALGEBRA)


def test_a_committee_with_the_prior_split_multiplies_its_members(rng):
    X, Y = labelled_data(rng)
    model, split = linear.logistic_regression(3), linear.logistic_regression(3, prior_variance=3.0)
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, pvi.SplitPriorUpdate(LBFGS, 1 / 3))
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    natural = np.zeros(3), np.zeros((3, 3))
    for shard in shards:
        alone = server(split, [shard], LBFGS)
        pvi.fit(alone)
        natural = tuple(a + b for a, b in zip(natural, alone.posterior.natural, strict=True))
    assert_same(found.posterior, Normal(*natural), FIXED_POINT)
    with pytest.raises(NoAnswerError, match="answers once"):
        pvi.fit(found, pvi.Synchronous(damping=1.0))


def test_federated_averaging_is_the_mean_of_maximum_likelihood_fits(rng):
    X = rng.standard_normal((60, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((60, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    shards = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    clients = pvi.make_clients(model, shards, LBFGS)
    for client_id, share in {"c0": 1 / 3, "c1": 2 / 3}.items():
        clients[client_id] = replace(clients[client_id], update=pvi.AveragingUpdate(share, LBFGS))
    found = pvi.Server(model.prior(), clients)
    fits = [np.linalg.lstsq(*shard, rcond=None)[0][:, 0] for shard in shards]
    for _ in range(2):
        pvi.fit(found, pvi.Synchronous(damping=1.0))
        np.testing.assert_allclose(found.posterior.mean, fits[0] / 3 + 2 * fits[1] / 3, FIXED_POINT)
        np.testing.assert_allclose(found.posterior.variance, 1e-3**2, rtol=ALGEBRA)


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_federated_averaging_is_the_mean_of_fits_under_any_prior_of_the_server(mean, rng):
    """The pool ``Π q^share`` has the width of each q, and the prior is not in it."""
    X = rng.standard_normal((40, 2))
    model = linear.BayesianLinearRegression(2, 0.09, family=MeanFieldNormal)
    local = pvi.VariationalUpdate(epochs=2, batch_size=None)
    rule = pvi.AveragingUpdate(0.5, local, width=0.5)
    shards = [(X[:20], X[:20, :1]), (X[20:], X[20:, 1:])]
    clients = pvi.make_clients(model, shards, rule)
    prior = MeanFieldNormal.from_mean_variance(np.full(2, mean), np.full(2, 0.2))
    found = pvi.Server(prior, clients)
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    np.testing.assert_allclose(found.posterior.precision, 4.0)
    fits = [
        (f ** (1.0 / 0.5) * prior.as_factor()).normalised().mean for f in found.factors.values()
    ]
    np.testing.assert_allclose(found.posterior.mean, np.mean(fits, axis=0))


def test_fedprox_holds_fits_at_the_server(rng):
    """Of a linear regression: the ridge about the server's weights, with μ for each row."""
    X = rng.standard_normal((40, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((40, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    local = pvi.VariationalUpdate(epochs=800, batch_size=None, learning_rate=0.02)
    found = server(model, [(X, Y)], pvi.AveragingUpdate(1.0, local, proximal=0.5))
    at_server = np.array([0.5, 0.5, 0.5])
    found.warm_start(MeanFieldNormal.from_mean_variance(at_server, np.full(3, 1e-4)))
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    held = 0.5 * len(X) * np.eye(3)
    wanted = np.linalg.solve(X.T @ X / 0.09 + held, X.T @ Y[:, 0] / 0.09 + held @ at_server)
    np.testing.assert_allclose(found.posterior.mean, wanted, atol=1e-3)
