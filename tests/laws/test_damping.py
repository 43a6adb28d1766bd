"""Damping, schedules of steps and server optimisers, against their published formulas."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.optimize

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, MeanFieldNormal
from tests.laws import LBFGS
from tests.oracles.reference import assert_same, labelled_data, regression_data, server
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

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


def test_one_after_another_is_undamped_where_nothing_is_said(rng):
    """Not by 1/K, which is for K answers that enter together."""
    wanted = linear_server(rng)
    pvi.fit(wanted, pvi.Sequential(), 1)
    for damping in (pvi.Agreement(max_disagreement=100.0), {"c0": 1.0}, None):
        other = pvi.Server(wanted.prior, wanted.clients)
        pvi.fit(other, pvi.Sequential(damping=damping), 1)
        assert_same(other.posterior, wanted.posterior, 1e-12)


class Whole(pvi.AnalyticUpdate):
    """A rule that has damped its answers already."""

    server_damping = 1.0


@pytest.mark.parametrize("schedule", [pvi.Synchronous, pvi.Asynchronous])
def test_who_is_not_named_is_damped_as_its_rule_says(rng, schedule):
    plain = linear_server(rng)
    clients = {name: replace(one, update=Whole()) for name, one in plain.clients.items()}
    for some, all_of_them in (({"c0": 0.3}, {"c0": 0.3, "c1": 1.0, "c2": 1.0}), (None, 1.0)):
        found, wanted = (pvi.Server(plain.prior, clients) for _ in range(2))
        pvi.fit(found, schedule(damping=some), 1)
        pvi.fit(wanted, schedule(damping=all_of_them), 1)
        assert_same(found.posterior, wanted.posterior, 1e-12)


@pytest.mark.slow
def test_what_answers_disagree_on_by_chance_is_averaged(rng):
    """Clients of one class each, who fit by few minibatches: the last one has the last word."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    exact = server(model, [(X, Y)], LBFGS)
    pvi.fit(exact)
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


FIXED_POINT = 1e-6


def momentum_server(rng, checks=None):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    return server(model, shards, pvi.FixedPointUpdate(), checks=checks), model, (X, Y)


def test_momentum_ends_at_the_optimum_with_every_client_s_own_factor(rng):
    found, model, (X, Y) = momentum_server(rng)
    rule = pvi.Momentum(learning_rate=1.0, precision_rate=0.5, momentum=0.5)
    pvi.fit(found, pvi.Synchronous(damping=rule), 80)
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


def test_the_state_of_another_rule_is_refused_with_what_to_do(rng):
    found, *_ = momentum_server(rng)
    pvi.fit(found, pvi.Synchronous(damping=pvi.Momentum()))
    with pytest.raises(InvalidDataError, match="FedAdam goes on from a Moments, got a Velocity"):
        pvi.fit(found, pvi.Synchronous(damping=pvi.FedAdam()))


WIDTH = 1e-2
PRIOR = MeanFieldNormal.from_mean_variance(np.array([0.7, -0.2, 0.0]), np.array([2.0, 1.0, 0.5]))
START = np.array([0.1, 0.3, -0.4])
TARGETS = np.array([[1.0, 2.0, -1.0], [-1.0, 2.5, 0.5], [0.2, 1.5, 0.3]])
SHARES = np.array([0.5, 0.2, 0.3])


@dataclass(frozen=True)
class Towards:
    """Goes three tenths of the way from the server's weights to its own target, and answers as
    ``AveragingUpdate`` does.
    """

    target: np.ndarray
    share: float

    def __call__(self, task):
        mean = np.asarray(task.posterior.mean)
        weights = mean + 0.3 * (self.target - mean)
        q = MeanFieldNormal.from_mean_variance(weights, np.full(3, WIDTH**2))
        return pvi.LocalResult((q / PRIOR) ** self.share)


def averaging_server():
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    clients = {
        f"c{k}": pvi.Client(f"c{k}", model, (np.zeros((1, 3)), np.zeros((1, 1))), rule)
        for k, rule in enumerate(map(Towards, TARGETS, SHARES))
    }
    server = pvi.Server(PRIOR, clients, checks=pvi.NO_LIMITS)
    server.warm_start(MeanFieldNormal.from_mean_variance(START, np.full(3, WIDTH**2)))
    return server


def fitted(rule, rounds=3):
    server = averaging_server()
    means = []
    for _ in range(rounds):
        pvi.fit(server, pvi.Synchronous(damping=rule))
        means.append(np.asarray(server.posterior.mean))
        np.testing.assert_allclose(server.posterior.variance, WIDTH**2, rtol=ALGEBRA)
    return np.array(means)


def published(step, rounds=3):
    """Weights after each round; ``step`` maps all clients' ``θ_k − θ`` to the server's step."""
    weights, found = START, []
    for _ in range(rounds):
        weights = weights + step(0.3 * (TARGETS - weights))
        found.append(weights)
    return np.array(found)


def averaged(changes):
    return SHARES @ changes


def momentum(rate, beta):
    velocity = np.zeros(3)

    def step(changes):
        nonlocal velocity
        velocity = beta * velocity + averaged(changes)
        return rate * velocity

    return step


def adaptive(rate, beta, tau, second_moment):
    first, second = None, np.full(3, tau**2)

    def step(changes):
        nonlocal first, second
        delta = averaged(changes)
        first = delta if first is None else beta * first + (1 - beta) * delta
        second = second_moment(second, delta**2)
        return rate * first / (np.sqrt(second) + tau)

    return step


PUBLISHED = {
    "FedAvg": (pvi.FedAvg(), averaged),
    "FedAvgM": (pvi.FedAvg(0.5, 0.8), momentum(0.5, 0.8)),
    "FedAdagrad": (
        pvi.FedAdagrad(0.2, 0.6, 0.05),
        adaptive(0.2, 0.6, 0.05, lambda v, square: v + square),
    ),
    "FedAdam": (
        pvi.FedAdam(0.2, 0.6, 0.05, 0.7),
        adaptive(0.2, 0.6, 0.05, lambda v, square: 0.7 * v + 0.3 * square),
    ),
    "FedYogi": (
        pvi.FedYogi(0.2, 0.6, 0.05, 0.7),
        adaptive(0.2, 0.6, 0.05, lambda v, square: v - 0.3 * square * np.sign(v - square)),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_steps_are_those_of_the_published_formulas(name):
    rule, step = PUBLISHED[name]
    np.testing.assert_allclose(fitted(rule), published(step), rtol=ALGEBRA)


def test_with_learning_rate_one_it_is_federated_averaging_factor_by_factor():
    servers = [averaging_server() for _ in range(3)]
    dampings = (1.0, pvi.FedAvg(), pvi.MaskedAveraging(threshold=0.0))
    for one, damping in zip(servers, dampings, strict=True):
        pvi.fit(one, pvi.Synchronous(damping=damping), 3)
    plain, *others = servers
    for other in others:
        for name, factor in plain.factors.items():
            assert_same(other.factors[name], factor, ALGEBRA)


def after_two_answers(rule):
    """The server after a round of all and an answer of c0 and c2, where it was before, and c1's
    factor then.
    """
    server = averaging_server()
    pvi.fit(server, pvi.Synchronous(damping=pvi.FedAvg()))
    before, absent = np.asarray(server.posterior.mean), server.factors["c1"]
    answers = [server.clients[name].answer(server.ask(name)) for name in ("c0", "c2")]
    assert not server.accept(answers, rule).refused
    return server, before, absent


def change_of_two(before):
    return 0.3 * (SHARES[[0, 2]] @ (TARGETS[[0, 2]] - before)) / 0.8


def test_those_who_answer_are_averaged_among_themselves():
    server, before, absent = after_two_answers(pvi.FedAvg())
    wanted = before + change_of_two(before)
    np.testing.assert_allclose(server.posterior.mean, wanted, rtol=ALGEBRA)
    assert server.factors["c1"] is absent


# ---- masks ----


def agreement(changes):
    return np.abs(np.sign(changes).sum(axis=0)) / len(changes)


def masked(step, threshold, soft=False):
    def masked_step(changes):
        agreed = agreement(changes)
        return np.where(agreed >= threshold, 1.0, agreed * soft) * step(changes)

    return masked_step


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_masks_are_those_of_the_published_formula(threshold, soft):
    found = fitted(pvi.MaskedAveraging(threshold, soft=soft))
    np.testing.assert_allclose(found, published(masked(averaged, threshold, soft)), rtol=ALGEBRA)


@pytest.mark.parametrize(("threshold", "moves"), [(0.6, True), (0.7, False)])
def test_agreement_is_a_share_of_all_clients_whoever_answered(threshold, moves):
    """Eq. 2.13 of PGVI: two of three that agree are two thirds."""
    server, before, _ = after_two_answers(pvi.MaskedAveraging(threshold))
    agreed = np.sign(TARGETS[0] - before) == np.sign(TARGETS[2] - before)
    assert agreed.tolist() == [True, True, False]
    wanted = before + moves * agreed * change_of_two(before)
    np.testing.assert_allclose(server.posterior.mean, wanted, rtol=ALGEBRA)


def test_masks_lie_over_the_steps_of_an_optimiser():
    rule = pvi.MaskedAveraging(0.5, pvi.FedAdam(0.2, 0.6, 0.05, 0.7))
    adam = adaptive(0.2, 0.6, 0.05, lambda v, square: 0.7 * v + 0.3 * square)
    np.testing.assert_allclose(fitted(rule), published(masked(adam, 0.5)), rtol=ALGEBRA)


# ---- files, and what users may get wrong ----


@pytest.mark.parametrize("rule", [pvi.FedAdam(), pvi.Momentum()])
def test_server_optimisers_are_for_mean_field_gaussians(rng, rule):
    X, Y = rng.standard_normal((5, 2)), np.zeros((5, 1))
    model = linear.BayesianLinearRegression(2)
    clients = pvi.make_clients(model, [(X, Y)], pvi.AnalyticUpdate())
    server = pvi.Server(model.prior(), clients)
    with pytest.raises(InvalidDataError, match=r"mean-field Gaussians, not for Normal"):
        pvi.fit(server, pvi.Synchronous(damping=rule))


# ---- federated averaging as a limit of generalised PVI ----


def test_generalised_pvi_tends_to_federated_averaging_as_the_divergence_fades(rng):
    """``E_q[−log p] + w KL``: as w → 0 its optimum narrows about the maximum of likelihood, which
    is the answer of a member of federated averaging.
    """
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    signs = 2.0 * Y[:, 0] - 1.0
    best = scipy.optimize.minimize(
        lambda theta: np.logaddexp(0.0, -signs * (X @ theta)).sum(), np.zeros(3), tol=1e-12
    ).x

    def fitted_by(rule):
        found = server(model, [(X, Y)], rule, checks=pvi.NO_LIMITS)
        pvi.fit(found)
        return found.posterior

    averaging = fitted_by(pvi.AveragingUpdate(1.0, LBFGS))
    np.testing.assert_allclose(averaging.mean, best, atol=1e-4)
    found = [fitted_by(replace(LBFGS, divergence=KL(weight))) for weight in (1e-4, 1e-5)]
    errors = [np.abs(np.asarray(q.mean) - averaging.mean).max() for q in found]
    widths = [np.max(q.variance) for q in found]
    for values in (errors, widths):
        assert 5.0 < values[0] / values[1] < 15.0, values  # in proportion to the weight
    assert errors[-1] < 2e-4
    assert widths[-1] < 1e-4
