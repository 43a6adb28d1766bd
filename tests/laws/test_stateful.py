"""Optimisers of local fits that remember gradients from one visit to the next."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import datasets, expfam, linear, pvi, testing
from tests.oracles.reference import assert_same, labelled_data, task_of
from tests.tolerances import ALGEBRA

OPTIMISERS = [pvi.Adam(0.05), pvi.SGD(1e-4), pvi.VariationalOnlineNewton()]


def once_more(task, factor):
    """The question after this answer has entered the posterior."""
    posterior = task.posterior.exchanged([], [factor]).as_arrays()
    return replace(task, posterior=posterior, own=factor, start=posterior)


def second_answer(rule, task):
    """What is answered to the question after this one."""
    return rule(once_more(task, rule(task).factor)).factor


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_two_visits_are_one_of_twice_as_many_steps(rng, optimiser):
    task = task_of(
        linear.logistic_regression(3, family=expfam.MeanFieldNormal), *labelled_data(rng)
    )
    rule = pvi.VariationalUpdate(4, None, optimiser=optimiser, stateful=True)
    wanted = replace(rule, epochs=8, stateful=False)(task).factor
    assert_same(second_answer(rule.worker(), task), wanted, ALGEBRA)
    forgetful = second_answer(replace(rule, stateful=False).worker(), task)
    assert not np.allclose(forgetful.natural[0], wanted.natural[0], rtol=ALGEBRA)


SHARE, LARGE, ROWS, CLIENTS = 0.1, 10.0, 60, 2


@pytest.fixture
def skewed():
    """Targets of which one in ten is large: their mean is one, and most are zero."""
    Y = np.zeros((ROWS, 1))
    Y[: round(SHARE * ROWS)] = LARGE
    return datasets.partition_iid(np.ones((ROWS, 1)), Y, CLIENTS)


def distance_from_exact(shards, stateful):
    """Of the posterior's mean, in its standard deviations."""
    model = linear.BayesianLinearRegression(1, noise_variance=LARGE)
    rule = pvi.VariationalUpdate(1, 5, learning_rate=1e-2, stateful=stateful)
    exact = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.AnalyticUpdate()))
    pvi.fit(exact, pvi.Sequential(), rounds=1)
    found = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    found.warm_start(exact.posterior)
    pvi.fit(found, pvi.Synchronous(), rounds=60)
    away = np.abs(found.posterior.mean - exact.posterior.mean)
    return (away / np.sqrt(exact.posterior.variance)).item()


def test_rounds_end_at_the_mean_of_gradients_and_not_at_that_of_their_signs(skewed):
    forgetful, stateful = (distance_from_exact(skewed, which) for which in (False, True))
    assert stateful < 0.1
    assert forgetful > 0.3


class Switched(linear.BayesianLinearRegression):
    """A likelihood that can go wrong for a while."""

    def __init__(self):
        super().__init__(1, noise_variance=1.0)
        self.factor = tf.Variable(1.0, dtype=tf.float64)

    def expected_log_likelihood(self, q, X, Y, seed):
        return self.factor * super().expected_log_likelihood(q, X, Y, seed)


def test_what_is_not_finite_is_forgotten(skewed):
    task = task_of(Switched(), *skewed[0])
    rule = pvi.VariationalUpdate(1, 5, stateful=True)
    worker = rule.worker()
    task.model.factor.assign(np.nan)
    assert not np.isfinite(worker(task).factor.natural[0]).all()
    task.model.factor.assign(1.0)
    assert_same(worker(task).factor, rule(task).factor, 0.0)


def test_rules_that_remember_keep_the_contract_of_rules():
    testing.check_update_rule(pvi.VariationalUpdate(batch_size=4, stateful=True))
