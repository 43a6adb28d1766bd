"""SNEP and the posterior server, mostly with exact moments in place of a chain's."""

from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import datasets, linear, pvi, samplers
from streaming_gp.errors import NoAnswerError, NumericalError
from streaming_gp.expfam import GAUSSIANS, Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.updates import snep
from streaming_gp.pvi.updates.sampling import Target, match_draws
from tests.laws import LBFGS, slow
from tests.oracles import reference
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
)
from tests.tolerances import ALGEBRA, STANDARD_ERRORS, THROUGH_CHOLESKY

AT_ONCE = pvi.Synchronous(damping=1.0)
EITHER_FAMILY = pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
GRID = np.linspace(-6.0, 6.0, 49)


def sigma_points(mean, covariance):
    """Draws of exactly this mean and covariance."""
    dimension = covariance.shape[0]
    away = np.sqrt(dimension) * tf.transpose(tf.linalg.cholesky(covariance))
    return mean + tf.concat([away, -away], 0)


@dataclass(frozen=True)
class ExactGaussian:
    """Draws with the moments of a Gaussian target, whose logarithm differences know exactly."""

    batch_size: None = None

    def begin(self, theta):
        return (theta,)

    def step(self, chain, target, seed):
        size = chain[0].shape[0]
        unit = tf.eye(size, dtype=chain[0].dtype)
        pairs = tf.reshape(unit[:, None] + unit, [-1, size])
        values = target.log_density(tf.concat([0.0 * unit[:1], unit, pairs], 0), seed)
        slopes, both = (part - values[0] for part in (values[1 : size + 1], values[size + 1 :]))
        hessian = tf.reshape(both, [size, size]) - slopes[:, None] - slopes
        exact = Normal(slopes - 0.5 * tf.linalg.diag_part(hessian), -hessian)
        return chain, sigma_points(*exact.moments())


@dataclass(frozen=True)
class OnAGrid:
    """Draws with the moments of a target over two numbers, by quadrature."""

    batch_size: None = None

    def begin(self, theta):
        return (theta,)

    def step(self, chain, target, seed):
        nodes = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)
        theta = target.approximation.from_white(tf.constant(nodes))
        weights = tf.nn.softmax(target.log_density(theta, seed))[:, None]
        mean = tf.reduce_sum(weights * theta, axis=0)
        covariance = tf.matmul(weights * (theta - mean), theta - mean, transpose_a=True)
        return chain, sigma_points(mean, covariance)


def two_weights(rng):
    X, Y = labelled_data(rng)
    return X[:, :2], Y


def fitted(model, shards, rule, rounds, schedule=AT_ONCE, engine=None):
    """A server after so many rounds, in none of which anything went wrong."""
    found = server(model, shards, rule)
    history = pvi.fit(found, schedule, rounds, engine)
    assert not any(one.failed or one.refused for one in history)
    return found


# ---- fixed points ----


@pytest.mark.parametrize(
    ("beta", "num_clients", "rounds"), [(2.0, 1, 2), *(slow(beta, 2, 15) for beta in (1.0, 2.0))]
)
def test_of_a_conjugate_model_the_fixed_point_is_the_posterior(rng, beta, num_clients, rounds):
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.SNEPUpdate(ExactGaussian(), beta, learning_rate=0.7, sync=50, outer=1)
    found = fitted(model, datasets.partition_iid(X, Y, num_clients), rule, rounds)
    assert_same(found.posterior, pooled(model, X, Y), THROUGH_CHOLESKY)


def test_as_printed_it_has_the_same_fixed_point(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.SNEPUpdate(
        ExactGaussian(), learning_rate=0.2, sync=10, outer=10, loop=pvi.PublishedLoop()
    )
    found, wanted = server(model, [(X, Y)], rule), pooled(model, X, Y)
    found.warm_start(beside(wanted))
    pvi.fit(found, AT_ONCE, 22)
    assert_same(found.posterior, wanted, 1e-4)


def beside(q):
    """A Gaussian a standard deviation away, and wider."""
    mean, covariance = q.moments()
    return Normal.from_mean_covariance(mean + np.sqrt(q.variance), 1.5 * covariance)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "outer"), [(1.0, 10), (0.5, 10), (1.0, 50)])
def test_two_loops_have_the_same_fixed_point(rng, beta, outer):
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.SNEPUpdate(ExactGaussian(), beta, learning_rate=0.2, sync=50, outer=outer)
    found, wanted = server(model, datasets.partition_iid(X, Y, 2), rule), pooled(model, X, Y)
    found.warm_start(beside(wanted))
    pvi.fit(found, AT_ONCE, 15)
    sd = np.sqrt(wanted.variance)
    np.testing.assert_allclose((found.posterior.mean - wanted.mean) / sd, 0.0, atol=0.01)
    np.testing.assert_allclose(found.posterior.variance / sd**2, 1.0, atol=0.01)


@pytest.mark.slow
@EITHER_FAMILY
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_every_tilted_distribution_has_the_moments_of_q(rng, family, beta):
    """The fixed point of power EP (eqs. 8a to 10), with the moments from another integrator."""
    (X, Y), model = two_weights(rng), linear.logistic_regression(2, family=family)
    rule = pvi.SNEPUpdate(OnAGrid(), beta, learning_rate=0.2, sync=60, outer=3)
    found = fitted(model, datasets.partition_iid(X, Y, 2), rule, rounds=12)
    q = found.posterior.as_factor()
    for name, factor in found.factors.items():
        mean, covariance = moments(
            q / factor ** (1.0 / beta), 1.0 / beta, *found.clients[name].data
        )
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose((found.posterior.mean - mean) / sd, 0.0, atol=0.01)
        np.testing.assert_allclose(found.posterior.variance / sd**2, 1.0, atol=0.02)


@dataclass(frozen=True)
class ManyOnAGrid(OnAGrid):
    """So many that the estimate of a precision is unbiased as it is."""

    def step(self, chain, target, seed):
        chain, draws = super().step(chain, target, seed)
        return chain, tf.tile(draws, [25_000, 1])


def test_a_damped_step_of_ep_is_eq_25_in_natural_parameters(rng):
    """``λ + ε (∇A*(moments of the tilted) − η_q)``: eqs. 10 and 12 with ``α = 1 − ε``, and eq. 11
    for ε = 1.
    """
    (X, Y), model = two_weights(rng), linear.logistic_regression(2)
    shards = datasets.partition_iid(X, Y, 2)
    for epsilon in (0.3, 1.0):
        found = server(model, shards, pvi.MomentSharingUpdate(ManyOnAGrid()))
        schedule = pvi.Synchronous(damping=epsilon)
        pvi.fit(found, pvi.Synchronous(damping=0.4), 1)
        q, factors = found.posterior.as_factor(), dict(found.factors)
        pvi.fit(found, schedule, 1)
        for name, old in factors.items():
            tilted = Normal.from_mean_covariance(*moments(q / old, 1.0, *found.clients[name].data))
            for new, before, one, own in zip(
                found.factors[name].natural, old.natural, tilted.natural, q.natural, strict=True
            ):
                step = epsilon * (np.asarray(one) - own)
                np.testing.assert_allclose(new, before + step, atol=2e-3 * np.abs(step).max())


def moments(base, power, X, Y):
    """Of ``base(θ) p(Y | θ, X)^power``."""

    def log_density(points):
        log_odds = (2.0 * Y[:, 0] - 1.0) * (points @ X.T)
        return base.log_value(points).numpy() - power * np.logaddexp(0.0, -log_odds).sum(1)

    return reference.moments_on_a_grid(log_density)[:2]


@pytest.mark.slow
def test_with_beta_the_fixed_point_tends_to_variational_inference(rng):
    """With a difference linear in 1/β."""
    (X, Y), model = two_weights(rng), linear.logistic_regression(2)
    wanted = fitted(model, [(X, Y)], LBFGS, rounds=1).posterior

    def error(beta, iterations):
        rule = pvi.SNEPUpdate(OnAGrid(), beta, learning_rate=0.3, sync=iterations, outer=1)
        found = fitted(model, [(X, Y)], rule, rounds=1).posterior
        return np.linalg.norm(found.variance - wanted.variance)

    large, small = error(1.0, 150), error(6.0, 700)
    assert small < 1e-3
    np.testing.assert_allclose(large / small, 6.0, rtol=0.15)


@pytest.mark.slow
@EITHER_FAMILY
def test_with_a_real_chain_late_iterates_agree_with_exact_moments(rng, family):
    (X, Y), model = two_weights(rng), linear.logistic_regression(2, family=family)
    shards = datasets.partition_iid(X, Y, 2)
    exact = pvi.SNEPUpdate(OnAGrid(), learning_rate=0.3, sync=10)
    wanted = fitted(model, shards, exact, rounds=40).posterior
    chain = pvi.SNEPUpdate(samplers.NUTS(num_samples=5), learning_rate=0.05, sync=20)
    found, late = server(model, shards, chain), []
    pvi.fit(found, AT_ONCE, 20)
    pvi.fit(found, AT_ONCE, 100, callback=lambda _: late.append(found.posterior.moments()))
    mean, spread = (np.mean(part, axis=0) for part in zip(*late, strict=True))
    sd = np.sqrt(np.asarray(wanted.variance))
    np.testing.assert_allclose((mean - wanted.mean) / sd, 0.0, atol=0.1)
    variance = np.diag(spread) if spread.ndim == 2 else spread
    np.testing.assert_allclose(np.sqrt(variance) / sd, 1.0, atol=0.1)


def test_schedules_that_name_no_damping_damp_its_answers_no_further(rng):
    model, shards = logistic(rng, 2)
    for kind in (pvi.Synchronous, pvi.Asynchronous):
        found, wanted = (fitted(model, shards, SGLD, 2, one) for one in (kind(), kind(damping=1.0)))
        assert_same(found.posterior, wanted.posterior, ALGEBRA)
    halved = fitted(model, shards, SGLD, 2, pvi.Synchronous(damping=0.5))
    assert np.abs(halved.posterior.mean - wanted.posterior.mean).max() > 1e-3


# ---- one iteration ----


@pytest.mark.parametrize("family", GAUSSIANS)
def test_an_iteration_is_eq_22_in_mean_parameters(rng, family):
    dimension = 3
    model = linear.logistic_regression(dimension, family=family)
    own = family.from_mean_scale(rng.standard_normal(dimension), np.diag([0.5, 0.6, 0.7]))
    cavity = family.from_mean_scale(rng.standard_normal(dimension), 0.8 * np.eye(dimension))
    q = cavity.times([own.as_factor()])
    draws = tf.constant(rng.standard_normal((4, dimension)))
    rule = pvi.SNEPUpdate(Given(tuple(map(tuple, draws.numpy()))), learning_rate=0.01, sync=1)
    X, Y = model.as_data(np.ones((2, dimension)), np.ones((2, 1)))
    task = pvi.LocalTask(model, (X, Y), q, own.as_factor().as_arrays(), q, seed=3)
    statistics = (np.mean(part, axis=0) for part in family.sufficient_statistics(draws))
    wanted = natural_gradient_step(own, 0.01, statistics, q)
    assert_same(rule(task).factor, wanted, THROUGH_CHOLESKY)


def natural_gradient_step(factor, rate, statistics, q):
    """``γ + ε (s − E_q[s])``."""
    gamma = (
        g + rate * (s - e)
        for g, s, e in zip(factor.mean_parameters(), statistics, q.mean_parameters(), strict=True)
    )
    return type(factor).from_mean_parameters(*gamma).as_factor()


@dataclass(frozen=True)
class Given:
    """Always the same draws."""

    draws: tuple
    batch_size: None = None

    def begin(self, theta):
        return (theta,)

    def step(self, chain, target, seed):
        return chain, tf.constant(self.draws, chain[0].dtype)


@pytest.mark.parametrize("loop", [pvi.StabilisedLoop(), pvi.PublishedLoop()])
def test_what_the_tilted_distribution_is_when_the_cavity_has_moved(rng, loop):
    """Eq. 20: θ' of the newest outer iteration as printed, or with the new cavity in it."""
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.SNEPUpdate(ExactGaussian(), learning_rate=1e-3, sync=1, outer=100, loop=loop)
    worker = rule.worker()
    own = Normal.from_mean_covariance(np.ones(3), 0.3 * np.eye(3)).as_arrays().as_factor()
    others = [Normal(np.full(3, shift), 2.0 * np.eye(3)) for shift in (0.0, 1.0)]

    def asked(cavity, own):
        q = cavity.times([own])
        return worker(pvi.LocalTask(model, (X, Y), q, own.as_arrays(), q, seed=3)).factor

    first = asked(others[0], own)
    second = asked(others[1], first)
    held = others[0].as_factor() * own  # θ' of the first iteration
    if loop == pvi.StabilisedLoop():
        held = others[1].as_factor() * own
    tilted = (held / first * model.likelihood_factor(X, Y)).normalised()
    q = others[1].times([first])
    wanted = natural_gradient_step(first.normalised(), 1e-3, tilted.mean_parameters(), q)
    assert_same(second, wanted, THROUGH_CHOLESKY)


@pytest.mark.parametrize("family", [Normal, slow(MeanFieldNormal)])
def test_as_printed_only_the_least_variance_keeps_a_factor_proper(rng, family):
    """Draws all in one place: a step of 0.99 takes more than half of a variance, or all."""
    (X, Y), model = two_weights(rng), linear.logistic_regression(2, family=family)
    rule = pvi.SNEPUpdate(
        Given(((0.0, 0.0),)), learning_rate=0.99, sync=3, loop=pvi.PublishedLoop()
    )
    floored = fitted(model, [(X, Y)], replace(rule, min_variance=0.3), rounds=1).factors["c0"]
    np.testing.assert_allclose(floored.normalised().variance, 0.3, rtol=THROUGH_CHOLESKY)
    with pytest.raises(NoAnswerError, match="the factor its family"):
        pvi.fit(server(model, [(X, Y)], replace(rule, learning_rate=0.9999, sync=300)))


@EITHER_FAMILY
def test_factors_stay_proper_and_as_wide_as_is_asked(rng, family):
    """Draws all in one place take any variance away, at the largest of steps."""
    (X, Y), model = two_weights(rng), linear.logistic_regression(2, family=family)
    sampler = Given(((0.0, 0.0),))
    for floor in (0.0, 0.3):
        rule = pvi.SNEPUpdate(sampler, learning_rate=0.99, sync=8, min_variance=floor)
        factor = fitted(model, [(X, Y)], rule, rounds=1).factors["c0"]
        assert factor.is_proper
        covariance = np.asarray(factor.normalised().moments()[1])
        least = np.min(np.linalg.eigvalsh(covariance) if covariance.ndim == 2 else covariance)
        np.testing.assert_allclose(least, floor, atol=0.02, rtol=ALGEBRA)


@pytest.mark.parametrize("family", GAUSSIANS)
def test_the_chain_moves_with_its_target(rng, family):
    """Eq. 28."""
    names = np.array([0.3, -1.0]), np.array([2.0, 0.5]), np.array([1.0, 1.0])
    cavities = [family.from_mean_scale(m, np.diag([0.5, 0.9])) for m in names[:2]]
    factor = family.from_mean_scale(names[2], 0.7 * np.eye(2))
    position = tf.constant(rng.standard_normal(2))
    old, new = (tuple(map(tf.convert_to_tensor, one.natural)) for one in cavities)
    state = snep.State(0, *factor.moments(), factor.natural, (position, tf.constant(7.0)))
    found = snep.shift_chain(family, state, old, new)
    before, after = (one.times([factor.as_factor()]) for one in cavities)
    root = [np.asarray(q.scale) for q in (before, after)]
    wanted = after.mean + root[1] @ np.linalg.solve(root[0], position - before.mean)
    np.testing.assert_allclose(found.chain[0], wanted, rtol=ALGEBRA)
    assert found.chain[1] == 7.0


# ---- samplers ----


def gaussian_target(sd, number):
    def log_density(theta, seed):
        return -0.5 * tf.reduce_sum(tf.square(theta / sd), axis=1)

    q = MeanFieldNormal.from_mean_variance(
        tf.zeros(number, tf.float64), tf.ones(number, tf.float64)
    )
    return Target(log_density, q)


def sloping_target(slope):
    return Target(lambda theta, seed: tf.reduce_sum(slope * theta, axis=1), None)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_mass_is_debiased(steps):
    """Under a steady gradient each transition goes ε along its sign, the first one too."""
    sampler = samplers.AdaptiveSGLD(0.01, num_samples=steps, max_noise=0.0)
    start, slope = tf.zeros(3, tf.float64), np.array([5.0, -0.1, 300.0])
    chain, draws = sampler.step(sampler.begin(start), sloping_target(slope), tf.constant([0, 1]))
    np.testing.assert_allclose(chain[0], 0.01 * steps * np.sign(slope), rtol=1e-6)
    assert draws.shape == (steps, 3)


@pytest.mark.parametrize(("max_noise", "wanted"), [(None, 0.01), (0.5, 0.5), (np.inf, 1.0)])
def test_injected_noise_is_capped(max_noise, wanted):
    """Its standard deviation is ``√(2ε/√M) = 1`` for this slope."""
    sampler = samplers.AdaptiveSGLD(0.01, max_noise=max_noise)
    start = tf.zeros(100_000, tf.float64)
    chain, _ = sampler.step(sampler.begin(start), sloping_target(0.02), tf.constant([0, 1]))
    error = STANDARD_ERRORS / np.sqrt(2 * len(start))
    np.testing.assert_allclose(np.std(chain[0]), wanted, rtol=error)


@pytest.mark.parametrize("max_noise", [None, np.inf])
def test_a_transition_is_eq_27_with_its_noise(max_noise):
    """``x + κ g + N(0, 2κ)`` for ``κ = ε / √M``, here of half a unit: drift and noise count alike.

    The mass is that of the squares of gradients so far, each by ``(1 − decay) decay^age``.
    """
    decay, size, slopes = 0.9, 100_000, (0.02, -0.04)
    sampler = samplers.AdaptiveSGLD(0.02, max_noise=max_noise, decay=decay)
    chain, squares, at = sampler.begin(tf.zeros(size, tf.float64)), 0.0, np.zeros(size)
    for number, slope in enumerate(slopes, 1):
        chain, _ = sampler.step(chain, sloping_target(slope), tf.constant([0, number]))
        squares = decay * squares + (1.0 - decay) * slope**2
        kappa = 0.02 / np.sqrt(squares / (1.0 - decay**number))
        sd = np.sqrt(2.0 * kappa) if max_noise else 0.02
        moved, at = np.asarray(chain[0]) - at, np.asarray(chain[0])
        np.testing.assert_allclose(moved.mean(), kappa * slope, atol=4.0 * sd / np.sqrt(size))
        np.testing.assert_allclose(moved.std(), sd, rtol=STANDARD_ERRORS / np.sqrt(2 * size))


@pytest.mark.parametrize(
    "sampler",
    [samplers.AdaptiveSGLD(0.02, None, 4000, max_noise=np.inf), slow(samplers.NUTS(500))],
    ids=["sgld", "nuts"],
)
def test_a_chain_has_the_moments_of_a_gaussian(sampler):
    sd = np.array([0.5, 1.0, 2.0, 1.0, 0.7])
    target = gaussian_target(sd, 5)
    start = tf.constant(sd)
    step = tf.function(lambda seed: sampler.step(sampler.begin(start), target, seed)[1])
    draws = step(tf.constant([0, 3])).numpy()[len(sd) * 40 :]
    np.testing.assert_allclose(np.mean(draws, axis=0) / sd, 0.0, atol=0.25)
    np.testing.assert_allclose(np.mean(np.std(draws, axis=0) / sd), 1.0, atol=0.1)


@pytest.mark.slow
def test_the_step_size_goes_to_where_the_acceptance_is_wanted():
    """From far too small a step, and from one far too large."""
    target, start = gaussian_target(np.ones(2), 2), tf.zeros(2, tf.float64)
    sampler = samplers.NUTS(60, max_tree_depth=3)
    step = tf.function(lambda chain: sampler.step(chain, target, tf.constant([0, 1]))[0])
    position, _, number = sampler.begin(start)
    for first in (0.1, 20.0):
        *_, log_step, made = step((position, tf.math.log(tf.cast(first, tf.float64)), number))
        assert 0.5 < np.exp(log_step) < 3.0
        assert made == 60.0


def test_a_minibatch_estimates_the_log_density_of_all(rng):
    (X, Y), model = two_weights(rng), linear.logistic_regression(2)
    base, theta = model.prior().as_factor(), tf.constant(rng.standard_normal((1, 2)))
    X, Y = tf.constant(X[:3]), tf.constant(Y[:3])  # so few that none may be left out
    whole = snep.log_density(model, base, 0.5, X, Y, None)(theta, None)
    part = tf.function(snep.log_density(model, base, 0.5, X, Y, 7))
    values = [part(theta, tf.constant([0, i]))[0] for i in range(400)]
    error = STANDARD_ERRORS * np.std(values) / np.sqrt(len(values))
    np.testing.assert_allclose(np.mean(values), whole[0], atol=error)


# ---- workers ----


def logistic(rng, number=3, family=Normal):
    X, Y = two_weights(rng)
    return linear.logistic_regression(2, family=family), datasets.partition_iid(X, Y, number)


SGLD = pvi.SNEPUpdate(samplers.AdaptiveSGLD(0.02, 10), learning_rate=0.05)


@pytest.mark.parametrize("latency", [7, *(slow(number) for number in (0, 25))])
def test_a_simulated_run_replays_exactly(rng, latency):
    model, shards = logistic(rng)
    schedule = pvi.Asynchronous(damping=1.0, durations={"c0": 1.0, "c1": 1.0, "c2": 3.0})
    engine = pvi.Serial(latency)
    first, second = (fitted(model, shards, SGLD, 3, schedule, engine) for _ in range(2))
    assert_same(first.posterior, second.posterior, 0.0)


def test_what_is_done_while_a_message_travels_counts(rng):
    """With one client the cavity stays, and so it does not matter when a question arrives."""
    model, shards = logistic(rng, 1)
    prompt = fitted(model, shards, SGLD, 4)
    late = fitted(model, shards, SGLD, 4, engine=pvi.Serial(latency=6))
    assert_same(late.posterior, prompt.posterior, THROUGH_CHOLESKY)
    resident = late.clients["c0"].at_work()
    for latency, steps in ((0, 10), (4, 10), (25, 25)):
        resident.advance(latency)
        answer = resident.answer(late.ask("c0"))
        assert answer.steps == steps
        assert late.accept([answer], pvi.Damping(1.0, 1)).accepted


def test_a_worker_whose_answer_was_lost_starts_again_from_the_ledger(rng):
    model, shards = logistic(rng)
    found = fitted(model, shards, SGLD, 2)
    ask = found.ask("c1")
    fresh = found.clients["c1"].answer(ask)
    resident = found.clients["c1"].at_work()
    resident.answer(ask)
    resident.advance(13)
    assert_same(resident.answer(ask).factor, fresh.factor, ALGEBRA)


def test_the_first_answer_counts_once_it_is_in_the_ledger(rng):
    model, shards = logistic(rng)
    found = server(model, shards, SGLD)
    resident = found.clients["c1"].at_work()
    ask = found.ask("c1")
    first, again = resident.answer(ask), resident.answer(ask)
    assert_same(again.factor, first.factor, ALGEBRA)
    assert found.accept([again], pvi.Damping(1.0, 1)).accepted
    ask = found.ask("c1")
    fresh, on = (client.answer(ask) for client in (found.clients["c1"], resident))
    difference = on.factor.natural[0] - fresh.factor.natural[0]
    assert np.max(np.abs(difference)) > 1e-3


def test_a_worker_says_whether_it_has_something_to_go_on_with(rng):
    model, shards = logistic(rng)
    resident = server(model, shards, SGLD).clients["c1"].at_work()
    assert not resident.advance(3)
    resident.answer(server(model, shards, SGLD).ask("c1"))
    assert resident.advance(3)


def for_two_iterations(iteration):
    return tf.where(iteration < 2, 0.5, 0.0)


def test_a_learning_rate_may_depend_on_the_iteration_which_counts_from_zero(rng):
    model, shards = conjugate_model(), [regression_data(rng)]
    rules = [
        pvi.SNEPUpdate(ExactGaussian(), learning_rate=rate, sync=sync)
        for rate, sync in ((0.5, 2), (for_two_iterations, 5))
    ]
    servers = [server(model, shards, rule) for rule in rules]
    constant, stopped = (one.clients["c0"].answer(one.ask("c0")) for one in servers)
    assert (constant.steps, stopped.steps) == (2, 5)
    assert_same(stopped.factor, constant.factor, ALGEBRA)


def test_a_worker_goes_on_from_its_own_factor_once_that_is_in_the_ledger(rng):
    model, shards = logistic(rng)
    found = server(model, shards, SGLD)
    pvi.fit(found, AT_ONCE, 3)
    one_by_one = server(model, shards, SGLD)
    for _ in range(3):
        pvi.fit(one_by_one, AT_ONCE, 1)  # a session each: no worker outlives it
    difference = np.abs(found.posterior.mean - one_by_one.posterior.mean)
    assert np.max(difference) > 1e-3


def test_rules_without_workers_are_as_they_were(rng):
    model, shards = logistic(rng)
    client = server(model, shards, pvi.FixedPointUpdate()).clients["c0"]
    assert client.at_work() is client
    assert not isinstance(client.update, pvi.Worker)
    assert not client.advance(5)


# ---- moment sharing ----


@pytest.mark.parametrize("family", GAUSSIANS)
def test_the_precision_of_few_draws_is_unbiased(rng, family):
    q = family.from_mean_scale(np.array([1.0, -2.0]), 0.8 * np.eye(2))
    draws = tf.reshape(q.sample(8 * 2000, 5), [2000, 8, 2])
    found = tf.vectorized_map(lambda one: match_draws(family, one).natural[1], draws).numpy()
    error = STANDARD_ERRORS * found.std(axis=0) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - q.precision), error)


@pytest.mark.parametrize(("family", "fewest"), [(MeanFieldNormal, 4), (Normal, 5)])
def test_a_precision_takes_as_many_draws_as_leave_a_degree_of_freedom(family, fewest):
    q = family.from_mean_scale(np.array([1.0, -2.0]), 0.8 * np.eye(2))
    draws = q.sample(fewest, 5)
    assert match_draws(family, draws).is_proper
    with pytest.raises(NumericalError, match=f"wanted more than {fewest - 1}"):
        match_draws(family, draws[1:])


def test_moment_sharing_with_exact_moments_is_ep(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 2)
    rule = pvi.MomentSharingUpdate(ManyTimes())
    found = fitted(model, shards, rule, 1, pvi.Sequential())
    assert_same(found.posterior, pooled(model, X, Y), 1e-2)


@dataclass(frozen=True)
class ManyTimes(ExactGaussian):
    """So many of the same exact draws that degrees of freedom do not matter."""

    def step(self, chain, target, seed):
        chain, draws = super().step(chain, target, seed)
        return chain, tf.tile(draws, [1000, 1])


def test_too_few_draws_for_a_precision_are_reported(rng):
    model, shards = logistic(rng)
    rule = pvi.MomentSharingUpdate(samplers.AdaptiveSGLD(num_samples=4))
    with pytest.raises(NoAnswerError, match="4 draws have no unbiased precision: wanted more than"):
        pvi.fit(server(model, shards, rule))


# ---- what may go wrong ----


@dataclass(frozen=True)
class LosesItself(samplers.AdaptiveSGLD):
    """Not a number, for about every third seed."""

    def step(self, chain, target, seed):
        chain, draws = super().step(chain, target, seed)
        bad = tf.where(seed[0] % 3 == 0, np.float64(np.nan), np.float64(0.0))
        return (chain[0] + bad, *chain[1:]), draws + bad


def test_a_chain_that_is_lost_begins_anew(rng):
    model, shards = logistic(rng, 2)
    clients = pvi.make_clients(model, shards, SGLD)
    broken = replace(SGLD, sampler=LosesItself(0.02, 10), sync=1)
    clients["c1"] = replace(clients["c1"], update=broken)
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, AT_ONCE, 12, callback=lambda _: found.posterior)
    failures = [one.failed for one in history]
    assert {name for one in failures for name in one} == {"c1"}
    assert all("the chain left" in one["c1"] for one in failures if one)
    assert any(not one for one in failures)
    assert "c1" in found.factors
    assert found.posterior.is_proper


@dataclass(frozen=True)
class Poisonous:
    """A rule whose answers are not finite."""

    def __call__(self, task):
        bad = tuple(np.full_like(eta, np.nan) for eta in task.posterior.natural)
        return pvi.LocalResult(Factor(type(task.posterior), bad))


def test_a_slow_client_and_one_that_sends_no_numbers_spoil_nothing(rng):
    model, shards = logistic(rng)
    clients = pvi.make_clients(model, shards, SGLD)
    clients["c2"] = replace(clients["c2"], update=Poisonous())
    found, proper = pvi.Server(model.prior(), clients), []
    durations = {"c0": 1.0, "c1": 8.0, "c2": 1.0}
    history = pvi.fit(
        found, pvi.Asynchronous(1.0, durations), 10, pvi.Serial(latency=3),
        callback=lambda _: proper.append(found.posterior.is_proper),
    )  # fmt: skip
    assert all(proper)
    assert set(found.factors) == {"c0", "c1"}
    assert {name for one in history for name in one.refused} == {"c2"}
    assert max(one.staleness for one in history) >= 8


def test_a_model_without_likelihoods_of_draws_is_named():
    class Deaf(linear.GeneralisedLinearModel):
        log_likelihood = property()

    model = Deaf(2, gpflow.likelihoods.Gaussian())
    with pytest.raises(NoAnswerError, match="Deaf has no log_likelihood"):
        pvi.fit(server(model, [(np.ones((4, 2)), np.ones((4, 1)))], SGLD))
