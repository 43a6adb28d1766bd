"""Natural-gradient steps with momentum at the server."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from tests.conftest import THROUGH_CHOLESKY
from tests.oracles.reference import assert_same, labelled_data, server

FIXED_POINT = 1e-6
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def momentum_server(rng, checks=None):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    return server(model, shards, pvi.FixedPointUpdate(), checks=checks), model, (X, Y)


def test_momentum_ends_at_the_optimum_with_every_client_s_own_factor(rng):
    found, model, (X, Y) = momentum_server(rng)
    rule = pvi.Momentum(learning_rate=0.3, precision_rate=0.3, momentum=0.5)
    pvi.fit(found, pvi.Synchronous(damping=rule), 300)
    optimum = server(model, [(X, Y)], LBFGS)
    pvi.fit(optimum)
    assert_same(found.posterior, optimum.posterior, FIXED_POINT)
    q = found.posterior
    for name, client in found.clients.items():
        gradient = q.natural_gradient(
            lambda q, data=client.data: model.expected_log_likelihood(q, *data, None)
        )
        assert_same(found.factors[name], gradient, FIXED_POINT)


def test_momentum_takes_the_step_that_it_says(rng):
    found, model, (X, Y) = momentum_server(rng)
    rule = pvi.Momentum(learning_rate=0.1, precision_rate=0.2, momentum=0.9)
    prior = found.prior
    mean, precision = np.asarray(prior.mean), np.asarray(prior.precision)
    velocity = np.zeros(3)
    for _ in range(3):
        gradient = MeanFieldNormal.from_mean_variance(mean, 1.0 / precision).natural_gradient(
            lambda q: model.expected_log_likelihood(q, X, Y, None)
        )
        pull = gradient.natural[0] - gradient.natural[1] * mean - prior.precision * mean
        velocity = 0.9 * velocity + 0.1 * pull
        target = gradient.natural[1] + prior.precision
        precision = 0.8 * precision + 0.2 * target
        mean = mean + 0.1 * velocity / precision
        pvi.fit(found, pvi.Synchronous(damping=rule))
        np.testing.assert_allclose(found.posterior.mean, mean, rtol=THROUGH_CHOLESKY)
        np.testing.assert_allclose(found.posterior.precision, precision, rtol=THROUGH_CHOLESKY)


def test_momentum_is_for_mean_field_gaussians(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], pvi.FixedPointUpdate())
    with pytest.raises(InvalidDataError, match="mean-field Gaussians, not for Normal"):
        pvi.fit(found, pvi.Synchronous(damping=pvi.Momentum()))


def test_the_state_of_another_rule_is_refused_with_what_to_do(rng):
    found, *_ = momentum_server(rng)
    pvi.fit(found, pvi.Synchronous(damping=pvi.Momentum()))
    with pytest.raises(InvalidDataError, match="FedAdam goes on from a Moments, got a Velocity"):
        pvi.fit(found, pvi.Synchronous(damping=pvi.FedAdam()))
