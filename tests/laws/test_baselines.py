"""Distributed optimisers as factors: against Adam, and where elastic averaging comes to rest;
committees and federated averaging, which PVI is compared with.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import MeanFieldNormal, Normal
from tests.laws import LBFGS
from tests.oracles.reference import assert_same, labelled_data, server
from tests.tolerances import ALGEBRA

NOISE, RATE = 0.5, 0.05
START = np.array([0.3, -0.2])


@cache
def regression(family=MeanFieldNormal):
    return linear.BayesianLinearRegression(2, NOISE, family=family)


def shards_of(rng, number, size=12):
    X = rng.standard_normal((number, size, 2))
    return [(each, each @ [[1.0], [-0.5]] + rng.standard_normal((size, 1))) for each in X]


def server_of(shards, update, **settings):
    found = server(regression(), shards, update, **settings)
    found.warm_start(MeanFieldNormal.from_mean_variance(START, np.full(2, 1e-2)))
    return found


def means(server, schedule, rounds, engine=None):
    found = []

    def keep(one):
        found.append(server.posterior.mean)

    pvi.fit(server, schedule, rounds, engine, callback=keep)
    return np.array(found)


def gradient(shards, theta):
    return sum(X.T @ (Y[:, 0] - X @ theta) for X, Y in shards) / NOISE


def adam(shards, steps):
    """θ after each step of Adam on all data, as Kingma & Ba (2015) write it, uphill."""
    theta, m, v, found = START, 0.0, 0.0, []
    for t in range(1, steps + 1):
        g = gradient(shards, theta)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        # its ε stands beside the root of v before debiasing
        theta = theta + RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        found.append(theta)
    return np.array(found)


def test_downpour_with_a_gradient_a_message_is_adam_at_the_server(rng):
    shards = shards_of(rng, 3)
    server = server_of(shards, pvi.DownpourUpdate(pvi.Adam(0.3), sync=1, batch_size=None))
    found = means(server, pvi.Synchronous(damping=pvi.ServerAdam(RATE)), 8)
    np.testing.assert_allclose(found, adam(shards, 8), rtol=ALGEBRA)
    np.testing.assert_allclose(server.posterior.variance, 1e-2, rtol=ALGEBRA)


def test_an_asynchronous_answer_is_the_gradient_where_it_was_asked(rng):
    """The server has moved twice when the slow client's answer arrives."""
    shards = shards_of(rng, 2)
    server = server_of(shards, pvi.DownpourUpdate(sync=1, batch_size=None))
    schedule = pvi.Asynchronous(pvi.ServerAdam(RATE, 0.0, 0.0), {"c0": 1.0, "c1": 2.5}, jitter=0.0)
    found = means(server, schedule, 2)
    fast = shards[:1]
    points = [START]
    for of, at in ((fast, 0), (fast, 1), (shards[1:], 0)):
        points.append(points[-1] + RATE * np.sign(gradient(of, points[at])))
    np.testing.assert_allclose(found[0], points[2], rtol=1e-6)  # ε is not quite nothing
    rest = points[3] + RATE * np.sign(gradient(fast, points[2]))
    np.testing.assert_allclose(found[1], rest, rtol=1e-6)


def test_a_message_carries_the_sum_of_the_gradients_of_its_steps(rng):
    shards = shards_of(rng, 1)
    server = server_of(shards, pvi.DownpourUpdate(Uphill(0.01), sync=3, batch_size=None))
    pvi.fit(server, pvi.Synchronous(damping=1.0))  # what was sent enters as it is
    theta, total = START, 0.0
    for _ in range(3):
        g = gradient(shards, theta)
        theta, total = theta + 0.01 * g, total + g
    sent = server.posterior.precision_mean - START / 1e-2
    np.testing.assert_allclose(sent, total, rtol=ALGEBRA)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_gradients_of_a_pass_at_one_point_are_those_of_all_data_in_each_step(rng, batch_size):
    shards, steps = shards_of(rng, 1), 12 // batch_size
    server = server_of(shards, pvi.DownpourUpdate(Uphill(0.0), steps, batch_size))
    pvi.fit(server, pvi.Synchronous(damping=1.0))
    sent = server.posterior.precision_mean - START / 1e-2
    np.testing.assert_allclose(sent, steps * gradient(shards, START), rtol=ALGEBRA)


def test_elastic_averaging_of_one_that_moves_all_the_way_is_its_optimiser(rng):
    shards = shards_of(rng, 1)
    update = pvi.ElasticUpdate(pvi.Adam(RATE), sync=3, batch_size=None, moving_rate=1.0)
    found = means(server_of(shards, update), pvi.Asynchronous(damping=pvi.FedAvg(1.0)), 3)
    np.testing.assert_allclose(found, adam(shards, 9)[2::3], rtol=ALGEBRA)


@dataclass(frozen=True)
class Uphill:
    """Gradient ascent."""

    rate: float

    def begin_at(self, numbers):
        return (numbers,)

    def ascend(self, state, gradient):
        return (state[0] + self.rate * gradient,)


def test_server_and_elastic_worker_pull_at_one_another(rng):
    shards = shards_of(rng, 1)
    update = pvi.ElasticUpdate(Uphill(0.01), sync=1, batch_size=None, moving_rate=0.3)
    found = means(server_of(shards, update), pvi.Synchronous(damping=pvi.FedAvg(0.5)), 3)
    worker = server = START
    for mean in found:
        worker = worker + 0.3 * (server - worker)
        worker = worker + 0.01 * gradient(shards, worker)
        server = server + 0.5 * (worker - server)
        np.testing.assert_allclose(mean, server, rtol=ALGEBRA)


@pytest.mark.slow
def test_elastic_averaging_rests_where_pulls_and_steps_balance():
    """Quadratics of equal curvature a about c_k: with ``r = (1 − η a)^sync`` a worker ends at
    ``x = c + r (x + α (x̃ − x) − c)``, and x̃ is the mean of all.
    """
    eta, sync, alpha = 0.02, 4, 0.3
    centres = np.array([[1.0, 0.5], [-2.0, 0.0], [0.4, 2.5]])
    shards = [(2.0 * np.eye(2), 2.0 * centre[:, None]) for centre in centres]
    update = pvi.ElasticUpdate(Uphill(eta), sync, None, alpha, share=1.0 / 3.0, width=0.1)
    server = server_of(shards, update)
    pvi.fit(server, pvi.Synchronous(damping=pvi.FedAvg(alpha)), 400)
    centre = centres.mean(axis=0)
    np.testing.assert_allclose(server.posterior.mean, centre, rtol=1e-6)
    r = (1.0 - eta * 4.0 / NOISE) ** sync
    apart = (1.0 - r) / (1.0 - r * (1.0 - alpha)) * (centres - centre)
    prior = server.prior.as_factor()
    workers = [(prior * factor**3.0).normalised().mean for factor in server.factors.values()]
    np.testing.assert_allclose(np.array(workers) - centre, apart, rtol=1e-5, atol=1e-8)


def test_asynchronous_minibatches_replay(rng):
    shards = shards_of(rng, 3)
    update = pvi.ElasticUpdate(sync=2, batch_size=4, share=1.0 / 3.0)
    schedule = pvi.Asynchronous(damping=pvi.FedAvg(0.25), durations=1.0)
    first, again, other = (
        means(server_of(shards, update, seed=seed), schedule, 2) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.0


@pytest.mark.parametrize("update", [pvi.DownpourUpdate(sync=2), pvi.ElasticUpdate(sync=2)])
def test_a_worker_goes_on_while_its_message_travels(rng, update):
    shards = shards_of(rng, 1)
    schedule = pvi.Asynchronous(damping=pvi.FedAvg(0.5), durations=1.0)
    late = means(server_of(shards, update), schedule, 3, pvi.Serial(latency=1))
    early = means(server_of(shards, update), schedule, 3)
    np.testing.assert_array_equal(late[0], early[0])
    assert np.abs(late[2] - early[2]).max() > 0.0


@pytest.mark.parametrize("update", [pvi.DownpourUpdate(sync=2), pvi.ElasticUpdate(sync=2)])
def test_a_worker_says_whether_there_is_something_to_go_on_with(rng, update):
    server = server_of(shards_of(rng, 1), update)
    client = server.clients["c0"].at_work()
    assert isinstance(client.update, pvi.Worker)
    assert client.advance(3) is False
    client.answer(server.ask("c0"))
    assert client.advance(3) is True
    assert client.answer(server.ask("c0")).steps == 3


class Interrupted(linear.BayesianLinearRegression):
    """Its likelihood is no number while ``factor`` is none."""

    def __init__(self):
        super().__init__(2, NOISE, family=MeanFieldNormal)
        self.factor = tf.Variable(1.0, dtype=tf.float64)

    def log_likelihood(self, theta, X, Y):
        return self.factor * super().log_likelihood(theta, X, Y)


@pytest.mark.parametrize("update", [pvi.DownpourUpdate(sync=2), pvi.ElasticUpdate(sync=2)])
def test_a_point_that_is_lost_is_begun_anew(rng, update):
    model = Interrupted()
    found = server(model, shards_of(rng, 1), update)
    found.warm_start(MeanFieldNormal.from_mean_variance(START, np.full(2, 1e-2)))
    client = found.clients["c0"].at_work()
    client.answer(found.ask("c0"))
    model.factor.assign(np.nan)
    assert not np.isfinite(client.answer(found.ask("c0")).factor.natural[0]).all()
    model.factor.assign(1.0)
    begun = found.clients["c0"].at_work().answer(ask := found.ask("c0"))
    assert_same(client.answer(ask).factor, begun.factor, 0.0)


def test_without_a_warm_start_it_is_refused(rng):
    model, shards = regression(), shards_of(rng, 1)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.DownpourUpdate()))
    with pytest.raises(NoAnswerError, match="wants a warm start"):
        pvi.fit(server, pvi.Asynchronous())
    fresh = model.prior().as_factor()
    rule = pvi.ServerAdam()
    with pytest.raises(InvalidDataError, match="no factor of 'c0'"):
        rule.update(server.ledger, {"c0": fresh}, rule.init(server.ledger), 1.0, 0.0)


def test_a_start_as_wide_as_the_prior_cannot_be_moved_by_gradients(rng):
    server = server_of(shards_of(rng, 1), pvi.DownpourUpdate())
    wide = pvi.Server(server.prior, server.clients)
    wide.warm_start(MeanFieldNormal.from_mean_variance(START, np.ones(2)))
    with pytest.raises(InvalidDataError, match=r"'c0' has no precision .* narrower than the prior"):
        pvi.fit(wide, pvi.Synchronous(damping=pvi.ServerAdam()))


@pytest.mark.parametrize(
    "rule",
    [pvi.ElasticUpdate(), pvi.DownpourUpdate(), pvi.AveragingUpdate(1.0, pvi.VariationalUpdate())],
)
def test_a_full_covariance_is_refused(rng, rule):
    model, shards = regression(Normal), shards_of(rng, 1)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    server.warm_start(Normal.from_mean_covariance(START, 0.1 * np.eye(2)).as_arrays())
    with pytest.raises(NoAnswerError, match="mean-field Gaussian posterior, got a Normal"):
        pvi.fit(server, pvi.Asynchronous())
    with pytest.raises(InvalidDataError, match="ServerAdam is for mean-field"):
        pvi.ServerAdam().init(server.ledger)


FIXED_POINT = 1e-6


def test_a_committee_with_the_same_prior_is_one_undamped_round(rng):
    model, rule = linear.logistic_regression(3), pvi.FixedPointUpdate(steps=3, damping=0.5)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    found = server(model, shards, rule)
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    members = []
    for shard in shards:
        alone = server(model, [shard], rule)
        pvi.fit(alone)
        members.append(alone.posterior / alone.prior)
    assert_same(found.posterior, found.prior.times(members), ALGEBRA)


def test_a_committee_with_the_prior_split_multiplies_its_members(rng):
    model, split = linear.logistic_regression(3), linear.logistic_regression(3, prior_variance=2.0)
    shards = datasets.partition_iid(*labelled_data(rng), 2)
    found = server(model, shards, pvi.SplitPriorUpdate(LBFGS, 1 / 2))
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    natural = np.zeros(3), np.zeros((3, 3))
    for shard in shards:
        alone = server(split, [shard], LBFGS)
        pvi.fit(alone)
        natural = tuple(a + b for a, b in zip(natural, alone.posterior.natural, strict=True))
    assert_same(found.posterior, Normal(*natural), FIXED_POINT)
    in_turn = server(model, shards, pvi.SplitPriorUpdate(LBFGS, 1 / 2))
    pvi.fit(in_turn, pvi.Sequential())
    assert_same(in_turn.posterior, Normal(*natural), FIXED_POINT)
    with pytest.raises(NoAnswerError, match="answers once"):
        pvi.fit(found, pvi.Synchronous(damping=1.0))


def test_federated_averaging_is_the_mean_of_maximum_likelihood_fits(rng):
    """The pool ``Π q^share`` has the width of each q, and the server's prior is not in it."""
    first, second, third = shards_of(rng, 3)
    shards = [first, tuple(map(np.concatenate, zip(second, third, strict=True)))]
    clients = {
        f"c{k}": pvi.Client(f"c{k}", regression(), shard, pvi.AveragingUpdate(share, LBFGS))
        for k, (shard, share) in enumerate(zip(shards, (1 / 3, 2 / 3), strict=True))
    }
    prior = MeanFieldNormal.from_mean_variance(np.full(2, 3.0), np.full(2, 0.2))
    found = pvi.Server(prior, clients)
    fits = [np.linalg.lstsq(*shard, rcond=None)[0][:, 0] for shard in shards]
    for _ in range(2):
        pvi.fit(found, pvi.Synchronous(damping=1.0))
        np.testing.assert_allclose(found.posterior.mean, fits[0] / 3 + 2 * fits[1] / 3, FIXED_POINT)
        np.testing.assert_allclose(found.posterior.variance, 1e-3**2, rtol=ALGEBRA)


def test_fedprox_holds_fits_at_the_server(rng):
    """Of a linear regression: the ridge about the server's weights, with μ for each row."""
    ((X, Y),) = shards = shards_of(rng, 1)
    found = server_of(shards, pvi.AveragingUpdate(1.0, LBFGS, proximal=0.5))
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    held = 0.5 * len(X) * np.eye(2)
    wanted = np.linalg.solve(X.T @ X / NOISE + held, X.T @ Y[:, 0] / NOISE + held @ START)
    np.testing.assert_allclose(found.posterior.mean, wanted, rtol=FIXED_POINT)
