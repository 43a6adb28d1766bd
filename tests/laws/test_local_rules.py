"""Rules that maximise a local free energy: their limits, optimisers and early stops."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import datasets, expfam, linear, losses, pvi, testing
from streaming_gp.errors import NoAnswerError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.pvi.updates.fixed_point import natural_gradient
from tests.laws import eager
from tests.oracles.reference import assert_same, labelled_data, server, task_of
from tests.tolerances import ALGEBRA


class Doubled(linear.BayesianLinearRegression):
    """Says of its own natural gradient that it is twice as large."""

    def natural_gradient(self, q, X, Y, seed):
        return q.natural_gradient(lambda q: 2.0 * self.expected_log_likelihood(q, X, Y, seed))


@eager
def test_a_model_s_own_natural_gradient_is_taken_but_not_for_another_loss(rng):
    X, Y = labelled_data(rng)
    plain, doubled = linear.BayesianLinearRegression(3), Doubled(3)
    likelihood = plain.likelihood_factor(X, Y)
    loss = losses.NegativeLogLikelihood()
    for model, given, power in ((plain, None, 1.0), (doubled, None, 2.0), (doubled, loss, 1.0)):
        found = pvi.FixedPointUpdate(loss=given)(task_of(model, X, Y))
        assert_same(found.factor, likelihood**power, ALGEBRA)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_of_gaussian_noise_the_natural_gradient_in_numpy_is_that_of_the_graph(rng, family):
    model = linear.BayesianLinearRegression(3, 0.3, family=family)
    X, Y = rng.standard_normal((7, 3)), rng.standard_normal((7, 1))
    q = family.from_mean_scale(rng.standard_normal(3), np.diag([0.5, 0.2, 1.0])).as_arrays()
    graph = natural_gradient(model, None, False)(q, X, Y, np.zeros(2, np.int32), 2.0)
    assert_same(model.natural_gradient_in_numpy(q, X, Y) ** 2.0, graph, ALGEBRA)
    model.likelihood.variance.assign(0.1)
    assert model.noise_variance == pytest.approx(0.1)


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
        found = server(model, shards, rule)
        pvi.fit(found, pvi.Synchronous(damping=1.0), 1)
        return found.posterior

    found = after_a_round(pvi.StochasticNaturalGradientUpdate(batch_size=None))
    assert_same(found, model.prior().as_factor() ** 0.9, ALGEBRA)
    with pytest.raises(NoAnswerError, match="precision"):
        after_a_round(pvi.FixedPointUpdate())


LOSS, DIVERGENCE = losses.BetaLoss(1.5), expfam.Renyi(0.5)


@pytest.mark.parametrize("settings", [{"loss": LOSS}, {"divergence": DIVERGENCE}])
def test_only_gradients_of_a_likelihood_under_kl_are_known_to_take_no_precision_away(settings):
    assert pvi.FixedPointUpdate().checks == pvi.Checks(max_precision_loss=1e-3)
    assert pvi.FixedPointUpdate(**settings).checks is None


@eager
def test_an_epoch_of_minibatches_of_one_row_has_a_step_for_each(rng):
    X, Y = labelled_data(rng)
    task = task_of(linear.BayesianLinearRegression(3), X[:3], Y[:3])
    assert pvi.VariationalUpdate(batch_size=1)(task).steps == 3


class Seeded(linear.GeneralisedLinearModel):
    """A likelihood that differs with the seed, and counts how often it is traced."""

    def __init__(self):
        super().__init__(3, linear.logistic_regression(3).likelihood, 1.0, MeanFieldNormal)
        self.traced = 0

    def expected_log_likelihood(self, q, X, Y, seed):
        self.traced += 1
        drawn = standard_normal([3], seed, tf.float64)
        return super().expected_log_likelihood(q, X, Y, seed) + tf.reduce_sum(drawn * q.mean)


STEPS, ROWS, RATE = 11, 6, 1e-3  # in an epoch, of which ten run at once


def one_step_after_another(task):
    """Plain gradient ascent, by its definition, over two epochs of minibatches."""
    numbers, values = task.start.unconstrained(), []
    for number, rows in enumerate(islice(task.minibatches(ROWS), 2 * STEPS)):
        X, Y = (part[rows] for part in task.data)
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            q = MeanFieldNormal.from_unconstrained(numbers)
            seed = tf.constant([task.seed, number])
            expected = task.model.expected_log_likelihood(q, X, Y, seed) * task.num_data / ROWS
            free_energy = expected - expfam.KL()(q, task.cavity)
        numbers = numbers + RATE * tape.gradient(free_energy, numbers)
        values.append(float(free_energy))
    return numbers, np.mean(values[STEPS:])


@eager
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


def test_velocity_is_what_is_left_of_earlier_gradients():
    """Three steps under a constant gradient g and β = ½: g, 1½ g and 1¾ g, each times η."""
    rule, gradient = pvi.SGD(learning_rate=0.1, momentum=0.5), np.array([1.0, -2.0])
    state = rule.begin(MeanFieldNormal.from_mean_variance(np.zeros(2), np.ones(2)))
    for _ in range(3):
        state, free_energy = rule.step(
            MeanFieldNormal, state,
            lambda q: tf.reduce_sum(gradient * q.mean),
            lambda q: tf.reduce_sum(q.mean * 0.0) + 3.0,
            None,
        )  # fmt: skip
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
            MeanFieldNormal, state,
            lambda q: tf.reduce_sum(g * q.mean - 0.5 * h * (q.mean**2 + q.variance)),
            lambda q: tf.reduce_sum(q.mean),
            Factor(MeanFieldNormal, (0.2 * cavity, cavity)),
        )  # fmt: skip
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


EPOCHS, NEVER = 40, pvi.Plateau(patience=1, tolerance=0.0)


@pytest.fixture(scope="module")
def task():
    X, Y = labelled_data(np.random.default_rng(0))
    return task_of(linear.logistic_regression(3), X, Y)


def fit(task, epochs=EPOCHS, stopping=None):
    update = pvi.VariationalUpdate(epochs, 20, learning_rate=0.05, stopping=stopping)
    return update(task)


@pytest.mark.slow
def test_a_fit_ends_when_the_expected_log_likelihood_rests_and_not_before(task):
    plateau = pvi.Plateau(patience=3, tolerance=0.01)
    found = fit(task, stopping=plateau)
    epochs = found.steps // 3
    assert 4 < epochs < EPOCHS
    shorter = fit(task, epochs)
    assert_same(found.factor, shorter.factor, ALGEBRA)
    assert found.free_energy == shorter.free_energy


@eager
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


@eager
def test_a_plateau_is_reached_only_once_values_do_not_change_at_all(task):
    assert fit(task, epochs=3, stopping=NEVER).steps == 3 * 3


OPTIMISERS = [pvi.Adam(0.05), pvi.SGD(1e-4), pvi.VariationalOnlineNewton()]


def once_more(task, factor):
    """The question after this answer has entered the posterior."""
    posterior = task.posterior.exchanged([], [factor]).as_arrays()
    return replace(task, posterior=posterior, own=factor, start=posterior)


def second_answer(rule, task):
    """What is answered to the question after this one."""
    return rule(once_more(task, rule(task).factor)).factor


@eager
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_two_visits_are_one_of_twice_as_many_steps(rng, optimiser):
    task = task_of(linear.BayesianLinearRegression(3, family=MeanFieldNormal), *labelled_data(rng))
    rule = pvi.VariationalUpdate(1, None, optimiser=optimiser, stateful=True)
    wanted = replace(rule, epochs=2, stateful=False)(task).factor
    assert_same(second_answer(rule.worker(), task), wanted, ALGEBRA)
    forgetful = second_answer(replace(rule, stateful=False).worker(), task)
    assert not np.allclose(forgetful.natural[0], wanted.natural[0], rtol=ALGEBRA)


SHARE, LARGE, NUM_ROWS, CLIENTS = 0.1, 10.0, 60, 2


@pytest.fixture
def skewed():
    """Targets of which one in ten is large: their mean is one, and most are zero."""
    Y = np.zeros((NUM_ROWS, 1))
    Y[: round(SHARE * NUM_ROWS)] = LARGE
    return datasets.partition_iid(np.ones((NUM_ROWS, 1)), Y, CLIENTS)


def distance_from_exact(model, shards, stateful):
    """Of the posterior's mean, in its standard deviations."""
    rule = pvi.VariationalUpdate(1, 5, learning_rate=1e-2, stateful=stateful)
    exact = server(model, shards, pvi.AnalyticUpdate())
    pvi.fit(exact, pvi.Sequential(), rounds=1)
    found = server(model, shards, rule)
    found.warm_start(exact.posterior)
    pvi.fit(found, pvi.Synchronous(), rounds=60)
    away = np.abs(found.posterior.mean - exact.posterior.mean)
    return (away / np.sqrt(exact.posterior.variance)).item()


@pytest.mark.slow
def test_rounds_end_at_the_mean_of_gradients_and_not_at_that_of_their_signs(skewed):
    model = linear.BayesianLinearRegression(1, noise_variance=LARGE)
    forgetful, stateful = (distance_from_exact(model, skewed, which) for which in (False, True))
    assert stateful < 0.1
    assert forgetful > 0.3


class Switched(linear.BayesianLinearRegression):
    """A likelihood that can go wrong for a while."""

    def __init__(self):
        super().__init__(1, noise_variance=1.0)
        self.factor = tf.Variable(1.0, dtype=tf.float64)

    def expected_log_likelihood(self, q, X, Y, seed):
        return self.factor * super().expected_log_likelihood(q, X, Y, seed)


@eager
def test_what_is_not_finite_is_forgotten(skewed):
    task = task_of(Switched(), *skewed[0])
    rule = pvi.VariationalUpdate(1, 15, stateful=True)
    worker = rule.worker()
    task.model.factor.assign(np.nan)
    assert not np.isfinite(worker(task).factor.natural[0]).all()
    task.model.factor.assign(1.0)
    assert_same(worker(task).factor, rule(task).factor, 0.0)


@pytest.mark.slow
def test_rules_that_remember_keep_the_contract_of_rules():
    testing.check_update_rule(pvi.VariationalUpdate(batch_size=4, stateful=True))
