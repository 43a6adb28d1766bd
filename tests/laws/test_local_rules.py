"""Local rules by themselves: limits of honest answers, and whose formula is taken."""

from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import expfam, linear, losses, pvi
from streaming_gp.errors import NoAnswerError
from streaming_gp.numerics.draws import standard_normal
from tests.oracles.reference import assert_same, labelled_data, task_of
from tests.tolerances import ALGEBRA


class Doubled(linear.BayesianLinearRegression):
    """Says of its own natural gradient that it is twice as large."""

    def natural_gradient(self, q, X, Y, seed):
        return q.natural_gradient(lambda q: 2.0 * self.expected_log_likelihood(q, X, Y, seed))


@pytest.mark.usefixtures("eager")
def test_a_model_s_own_natural_gradient_is_taken_but_not_for_another_loss(rng):
    X, Y = labelled_data(rng)
    plain, doubled = linear.BayesianLinearRegression(3), Doubled(3)
    likelihood = plain.likelihood_factor(X, Y)
    loss = losses.NegativeLogLikelihood()
    for model, given, power in ((plain, None, 1.0), (doubled, None, 2.0), (doubled, loss, 1.0)):
        found = pvi.FixedPointUpdate(loss=given)(task_of(model, X, Y))
        assert_same(found.factor, likelihood**power, ALGEBRA)


@pytest.mark.parametrize("damping", [1.0, 0.4])
def test_steps_of_a_visit_are_visits_of_one_step(rng, damping):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    once = pvi.FixedPointUpdate(damping=damping)
    own = once(task_of(model, X, Y)).factor
    again = once(task_of(model, X, Y, own)).factor
    assert_same(pvi.FixedPointUpdate(2, damping)(task_of(model, X, Y)).factor, again, ALGEBRA)


def test_the_answer_of_a_conjugate_model_is_its_likelihood_in_one_step(rng):
    X, Y = labelled_data(rng)
    model = linear.BayesianLinearRegression(3)
    found = pvi.AnalyticUpdate()(task_of(model, X, Y))
    assert_same(found.factor, model.likelihood_factor(X, Y), ALGEBRA)
    assert found.steps == 1


class CurvedUpward(linear.BayesianLinearRegression):
    """Its likelihood takes a tenth of the precision of q away."""

    def natural_gradient(self, q, X, Y, seed):
        return q.as_factor() ** -0.1


def test_where_a_likelihood_curves_upward_natural_gradient_descent_goes_on(rng):
    model, shards = CurvedUpward(3), [labelled_data(rng)]

    def after_a_round(rule):
        server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
        pvi.fit(server, pvi.Synchronous(damping=1.0), 1)
        return server.posterior

    found = after_a_round(pvi.StochasticNaturalGradientUpdate(batch_size=None))
    assert_same(found, model.prior().as_factor() ** 0.9, ALGEBRA)
    with pytest.raises(NoAnswerError, match="precision"):
        after_a_round(pvi.FixedPointUpdate())


LOSS, DIVERGENCE = losses.BetaLoss(1.5), expfam.Renyi(0.5)


@pytest.mark.parametrize("settings", [{"loss": LOSS}, {"divergence": DIVERGENCE}])
def test_only_gradients_of_a_likelihood_under_kl_are_known_to_take_no_precision_away(settings):
    assert pvi.FixedPointUpdate().checks == pvi.Checks(max_precision_loss=1e-3)
    assert pvi.FixedPointUpdate(**settings).checks is None


@pytest.mark.usefixtures("eager")
def test_an_epoch_of_minibatches_of_one_row_has_a_step_for_each(rng):
    X, Y = labelled_data(rng)
    task = task_of(linear.logistic_regression(3), X[:5], Y[:5])
    assert pvi.VariationalUpdate(batch_size=1)(task).steps == 5


class Seeded(linear.GeneralisedLinearModel):
    """A likelihood that differs with the seed, and counts how often it is traced."""

    def __init__(self):
        super().__init__(3, linear.logistic_regression(3).likelihood, 1.0, expfam.MeanFieldNormal)
        self.traced = 0

    def expected_log_likelihood(self, q, X, Y, seed):
        self.traced += 1
        drawn = standard_normal([3], seed, tf.float64)
        return super().expected_log_likelihood(q, X, Y, seed) + tf.reduce_sum(drawn * q.mean)


STEPS, ROWS, RATE = 13, 6, 1e-3


def one_step_after_another(task):
    """Plain gradient ascent, by its definition, over two epochs of minibatches."""
    numbers, values = task.start.unconstrained(), []
    for number, rows in enumerate(islice(task.minibatches(ROWS), 2 * STEPS)):
        X, Y = (part[rows] for part in task.data)
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            q = expfam.MeanFieldNormal.from_unconstrained(numbers)
            seed = tf.constant([task.seed, number])
            expected = task.model.expected_log_likelihood(q, X, Y, seed) * task.num_data / ROWS
            free_energy = expected - expfam.KL()(q, task.cavity)
        numbers = numbers + RATE * tape.gradient(free_energy, numbers)
        values.append(float(free_energy))
    return numbers, np.mean(values[STEPS:])


@pytest.mark.usefixtures("eager")
def test_steps_that_run_as_one_loop_are_the_steps_one_after_another(rng):
    X, Y = (np.resize(part, (STEPS * ROWS - 2, part.shape[1])) for part in labelled_data(rng))
    task = task_of(Seeded(), X, Y)
    rule = pvi.VariationalUpdate(2, ROWS, optimiser=pvi.SGD(RATE, momentum=0.0))
    q, free_energy, steps = rule.fit(task)
    numbers, value = one_step_after_another(task)
    np.testing.assert_allclose(q.unconstrained(), numbers, rtol=ALGEBRA, atol=ALGEBRA)
    assert free_energy == pytest.approx(value, rel=ALGEBRA)
    assert steps == 2 * STEPS


def test_minibatches_are_compiled_for_once_whatever_their_number(rng):
    (X, Y), model = labelled_data(rng), Seeded()
    found = []
    for num_data in (20, 14, 30):
        pvi.VariationalUpdate(2, 2)(task_of(model, X[:num_data], Y[:num_data]))
        found.append(model.traced)
    assert found[0] == found[-1]
