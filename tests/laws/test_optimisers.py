"""Optimisers of local fits, step by step."""

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import pvi
from streaming_gp.expfam import Factor, MeanFieldNormal
from tests.tolerances import ALGEBRA


def test_velocity_is_what_is_left_of_earlier_gradients():
    """Three steps under a constant gradient g and β = ½: g, 1½ g and 1¾ g, each times η."""
    rule, gradient = pvi.SGD(learning_rate=0.1, momentum=0.5), np.array([1.0, -2.0])
    state = rule.begin(MeanFieldNormal.from_mean_variance(np.zeros(2), np.ones(2)))
    for _ in range(3):
        state, free_energy = rule.step(
            MeanFieldNormal,
            state,
            lambda q: tf.reduce_sum(gradient * q.mean),
            lambda q: tf.reduce_sum(q.mean * 0.0) + 3.0,
            None,
        )
    found = rule.member(MeanFieldNormal, state)
    np.testing.assert_allclose(found.mean, 0.425 * gradient, atol=ALGEBRA)
    np.testing.assert_allclose(found.variance, np.ones(2), atol=ALGEBRA)
    at_the_step_before = 0.25 * gradient @ gradient - 3.0
    np.testing.assert_allclose(free_energy, at_the_step_before, atol=ALGEBRA)


def test_online_newton_steps_are_those_of_its_formulas():
    """Three steps on ``g m − ½ h (m² + v)``, whose natural gradient is (g, h), under a cavity."""
    rule = pvi.VariationalOnlineNewton(learning_rate=0.1, precision_rate=0.3, momentum=0.5)
    g, h, cavity = np.array([1.0, -2.0]), np.array([4.0, 0.5]), np.array([0.5, 3.0])
    mean, precision, velocity = np.array([0.3, 0.1]), np.array([2.0, 5.0]), np.zeros(2)
    state = rule.begin(MeanFieldNormal(precision * mean, precision))
    for _ in range(3):
        energy = np.sum(g * mean - 0.5 * h * (mean**2 + 1.0 / precision)) - np.sum(mean)
        state, free_energy = rule.step(
            MeanFieldNormal,
            state,
            lambda q: tf.reduce_sum(g * q.mean - 0.5 * h * (q.mean**2 + q.variance)),
            lambda q: tf.reduce_sum(q.mean),
            Factor(MeanFieldNormal, (0.2 * cavity, cavity)),
        )
        velocity = 0.5 * velocity + g + 0.2 * cavity - (h + cavity) * mean
        change = 0.3 * (h + cavity - precision)
        precision = precision + change + change**2 / (2.0 * precision)
        mean = mean + 0.1 * velocity / precision
        np.testing.assert_allclose(free_energy, energy, atol=ALGEBRA)
    found = rule.member(MeanFieldNormal, state)
    np.testing.assert_allclose(found.precision, precision, atol=ALGEBRA)
    np.testing.assert_allclose(found.mean, mean, atol=ALGEBRA)


@pytest.mark.parametrize("rule", [pvi.Adam(), pvi.SGD(), pvi.VariationalOnlineNewton()])
def test_a_step_asks_for_the_expected_log_likelihood_once(rule):
    """It is what a step costs, and a compiler does not see that two are the same."""
    asked = []

    def data_term(q):
        asked.append(q)
        return tf.reduce_sum(q.mean)

    q = MeanFieldNormal(np.zeros(2), np.ones(2))
    rule.step(
        MeanFieldNormal, rule.begin(q), data_term, lambda q: tf.reduce_sum(q.mean), q.as_factor()
    )
    assert len(asked) == 1


def test_lbfgs_keeps_the_best_it_has_seen_where_it_ends_on_what_is_not_finite():
    """A cliff beside the maximum: what lies above it is no number."""
    start, seen = MeanFieldNormal(np.zeros(2), np.ones(2)), []

    def value_and_gradient(numbers):
        value = tf.reduce_sum(numbers)
        value = tf.where(value > 1.0, np.float64(np.nan), value)
        seen.append(float(value))
        return value, tf.ones_like(numbers)

    q, value, _ = pvi.LBFGS().maximise(value_and_gradient, start)
    assert np.isnan(seen).any()
    assert value == np.nanmax(seen)
    np.testing.assert_allclose(np.sum(q.unconstrained()), value)
