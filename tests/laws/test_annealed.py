"""Steps that fall to zero over the rounds of a run."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from tests.oracles.reference import assert_same, labelled_data, regression_data, server

ROUNDS = 4


def linear_server(rng):
    X, Y = regression_data(rng)
    model = linear.BayesianLinearRegression(X.shape[1], noise_variance=0.5)
    return server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())


@pytest.mark.parametrize("schedule", [pvi.Sequential, pvi.Synchronous])
def test_steps_are_those_of_the_rule_times_a_cosine(rng, schedule):
    found = linear_server(rng)
    by_hand = pvi.Server(found.prior, found.clients)
    pvi.fit(found, schedule(damping=pvi.Annealed(0.6)), ROUNDS)
    for number in range(ROUNDS):
        rho = 0.6 * 0.5 * (1.0 + np.cos(np.pi * number / ROUNDS))
        pvi.fit(by_hand, schedule(damping=rho), 1)
    assert_same(found.posterior, by_hand.posterior, 1e-12)


def test_it_anneals_a_rule_and_what_is_usual(rng):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    found, other = (server(model, shards, pvi.FixedPointUpdate()) for _ in range(2))
    steady = pvi.Momentum(learning_rate=0.3, precision_rate=0.3, momentum=0.0)
    pvi.fit(found, pvi.Synchronous(damping=pvi.Annealed(steady)), ROUNDS)
    for number in range(ROUNDS):
        rate = 0.3 * 0.5 * (1.0 + np.cos(np.pi * number / ROUNDS))
        pvi.fit(other, pvi.Synchronous(damping=pvi.Momentum(rate, rate, 0.0)), 1)
    assert_same(found.posterior, other.posterior, 1e-12)

    usual = linear_server(rng)
    named = pvi.Server(usual.prior, usual.clients)
    pvi.fit(usual, pvi.Synchronous(damping=pvi.Annealed()), 2)
    pvi.fit(named, pvi.Synchronous(damping=pvi.Annealed(1.0 / 3.0)), 2)
    assert_same(usual.posterior, named.posterior, 1e-12)


def test_what_answers_disagree_on_by_chance_is_averaged(rng):
    """Clients of one class each, who fit by few minibatches: the last one has the last word."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    exact = server(model, shards, pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS()))
    pvi.fit(exact, pvi.Sequential(), 30)
    rough = pvi.VariationalUpdate(epochs=3, batch_size=5, learning_rate=0.1)
    distances = []
    for damping in (0.5, pvi.Annealed(0.5)):
        found = server(model, shards, rough)
        pvi.fit(found, pvi.Sequential("random", damping=damping), 30)
        distances.append(float(found.posterior.kl_divergence(exact.posterior)))
    assert distances[1] < 0.5 * distances[0]


def test_a_rule_for_one_round_is_refused_one_after_another(rng):
    found = linear_server(rng)
    with pytest.raises(InvalidDataError, match="Median combines answers of one round"):
        pvi.fit(found, pvi.Sequential(damping=pvi.Annealed(pvi.Median(0.5))), 1)
