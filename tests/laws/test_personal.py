"""Clients with parameters of their own: what is exact, and what leaves."""

import gpflow
import numpy as np
import pytest

from streaming_gp import bnn, linear, pvi, testing
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi.task import encode_answer
from tests.tolerances import THROUGH_CHOLESKY

NOISE, CLIENTS = 0.09, 3
PERSONAL = [2, 3]
NAMES = [f"c{k}" for k in range(CLIENTS)]


def sites(rng):
    """Two coefficients that all share, and two that each site has to itself."""
    shared, found = np.array([1.0, -0.5]), []
    for _ in range(CLIENTS):
        X = rng.standard_normal((15, 4)) @ (np.eye(4) + 0.4)
        weights = np.r_[shared, rng.standard_normal(2)]
        found.append((X, (X @ weights + 0.3 * rng.standard_normal(15))[:, None]))
    return found


def hierarchical_posterior(shards):
    """Mean and covariance of (θ, z_1, …, z_K) by one linear regression of all of them."""
    rows = []
    for k, (X, _) in enumerate(shards):
        own = np.zeros((len(X), 2 * CLIENTS))
        own[:, 2 * k : 2 * k + 2] = X[:, 2:]
        rows.append(np.hstack([X[:, :2], own]))
    A, y = np.vstack(rows), np.vstack([Y for _, Y in shards])[:, 0]
    covariance = np.linalg.inv(np.eye(A.shape[1]) + A.T @ A / NOISE)
    return covariance @ A.T @ y / NOISE, covariance


@pytest.mark.parametrize(
    ("schedule", "rounds"), [(pvi.Sequential(), 1), (pvi.Synchronous(damping=1.0), 1)]
)
def test_linear_models_have_the_posterior_of_the_whole_hierarchy(rng, tmp_path, schedule, rounds):
    shards = sites(rng)
    whole = linear.BayesianLinearRegression(4, NOISE)
    model = pvi.PersonalModel(whole, PERSONAL)
    rule = pvi.PersonalUpdate(pvi.AnalyticUpdate(), folder=str(tmp_path))
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    pvi.fit(server, schedule, rounds)
    mean, covariance = hierarchical_posterior(shards)
    q = server.posterior
    np.testing.assert_allclose(q.mean, mean[:2], rtol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(q.covariance, covariance[:2, :2], rtol=THROUGH_CHOLESKY)
    for k, name in enumerate(NAMES):
        mine = [0, 1, 2 + 2 * k, 3 + 2 * k]
        site = model.joined(q, rule.kept(name))
        np.testing.assert_allclose(site.mean, mean[mine], rtol=THROUGH_CHOLESKY)
        np.testing.assert_allclose(
            site.covariance, covariance[np.ix_(mine, mine)], rtol=1e-5, atol=1e-9
        )


def test_what_goes_over_the_wire_has_the_shared_size_only(rng):
    net = bnn.MeanFieldBNN([6, 8, 5], gpflow.likelihoods.Softmax(5))
    last = net.layer_of_weights == net.layer_of_weights.max()
    model = pvi.PersonalModel(net, last)
    X, Y = rng.standard_normal((20, 6)), rng.integers(0, 5, (20, 1))
    rule = pvi.PersonalUpdate(pvi.VariationalUpdate(epochs=2, batch_size=None))
    client = pvi.make_clients(model, [(X, Y)], rule)["c0"]
    ask = pvi.Server(model.prior(), {"c0": client}).ask("c0")
    answer = client.answer(ask)
    size = net.num_parameters - last.sum()
    assert [eta.shape for eta in (*ask.posterior.natural, *answer.factor.natural)] == [(size,)] * 4
    assert len(encode_answer(answer)) < 4 * 2 * size + 4000
    assert 4 * 2 * last.sum() > 300, "else the bound on bytes would not see the personal part"


def test_what_is_personal_is_learned_and_goes_on_from_where_it_was(rng, tmp_path):
    """Two sites whose labels are each other's opposites share a layer, and not the last one."""
    net = bnn.MeanFieldBNN([2, 6, 2], gpflow.likelihoods.Softmax(2))
    model = pvi.PersonalModel(net, np.flatnonzero(net.layer_of_weights == 1))
    X = rng.standard_normal((80, 2)).astype(np.float32)
    Y = (X[:, :1] > 0.0).astype(float)
    rule = pvi.PersonalUpdate(
        pvi.VariationalUpdate(epochs=60, batch_size=None, learning_rate=0.02), str(tmp_path)
    )
    assert rule.kept("c0") is None
    clients = pvi.make_clients(model, [(X, Y), (X, 1.0 - Y)], rule)
    server = pvi.Server(model.prior(), clients)
    pvi.fit(server, pvi.Synchronous(), rounds=4)
    for name, labels in (("c0", Y), ("c1", 1.0 - Y)):
        site = model.joined(server.posterior, rule.kept(name))
        right = net.predict(site, X).argmax(axis=1) == labels[:, 0]
        assert right.mean() > 0.9


def test_the_rule_keeps_the_contract_of_rules():
    model = pvi.PersonalModel(testing.rounds.regression(), [1])
    testing.check_update_rule(pvi.PersonalUpdate(pvi.AnalyticUpdate()), model)


def test_families_without_parts_and_models_of_another_kind_are_refused(rng):
    whole = linear.BayesianLinearRegression(2, family=MeanFieldNormal)
    task = pvi.LocalTask(whole, (np.ones((1, 2)), np.ones((1, 1))), whole.prior(), None, None, 0)
    with pytest.raises(InvalidDataError, match="PersonalModel"):
        pvi.PersonalUpdate(pvi.FixedPointUpdate())(task)
