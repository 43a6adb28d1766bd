"""Servers, clients and schedules on models whose answers are known."""

from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from streaming_gp import bnn, datasets, linear, plotting, pvi, testing
from streaming_gp.errors import ImproperError, InvalidDataError, NoAnswerError
from streaming_gp.expfam import ExponentialFamily, Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.task import encode_answer
from tests.laws import LBFGS, slow
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
    task_of,
)
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

FIXED_POINT = 1e-6


SCHEDULES = {
    "sequential": (pvi.Sequential(), 1),
    "backwards": (pvi.Sequential(order=["c2", "c1", "c0"]), 1),
    "random": (pvi.Sequential(order="random", seed=3), 2),
    "synchronous": (pvi.Synchronous(damping=1.0), 1),
    "damped": (pvi.Synchronous(damping=0.5), 40),
    "by client": (pvi.Synchronous(damping={"c0": 1.0, "c1": 0.5}), 60),
    "sampled": (pvi.Synchronous(damping=1.0, fraction=0.4), 12),
    "asynchronous": (pvi.Asynchronous(damping=1.0, durations={"c0": 1, "c1": 2, "c2": 3}), 3),
}


OF_EITHER_RULE = [(pvi.FixedPointUpdate(), name) for name in SCHEDULES]
OF_EITHER_RULE += [(pvi.AnalyticUpdate(), name) for name in ("sequential", "synchronous")]


@pytest.mark.parametrize(("update", "name"), OF_EITHER_RULE)
def test_conjugate_clients_reach_the_pooled_posterior(rng, name, update):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 3), update)
    schedule, rounds = SCHEDULES[name]
    history = pvi.fit(found, schedule, rounds)
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    assert not history[-1].refused
    assert set(found.factors) == {"c0", "c1", "c2"}


def test_evidence_adds_up_over_sequential_clients(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    history = pvi.fit(found, pvi.Sequential())
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(history[-1].free_energy, product.log_integral(), rtol=ALGEBRA)


@pytest.mark.slow
@pytest.mark.parametrize("make", [linear.logistic_regression, linear.probit_regression])
@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_any_schedule_and_rule_reaches_the_optimum_of_global_vi(rng, make, family):
    X, Y = labelled_data(rng)
    model = make(3, family=family)
    optimum = server(model, [(X, Y)], LBFGS)
    pvi.fit(optimum)
    shards = datasets.partition_iid(X, Y, 3)
    slow = {"c0": 4.0, "c1": 1.0, "c2": 1.0}
    for update, schedule, rounds in (
        (LBFGS, pvi.Sequential(), 20),
        (pvi.FixedPointUpdate(), pvi.Synchronous(damping=0.6), 150),
        (pvi.FixedPointUpdate(steps=5, damping=0.5), pvi.Sequential(), 50),
        (pvi.FixedPointUpdate(), pvi.Asynchronous(damping=0.6, durations=slow), 250),
    ):
        found = server(model, shards, update)
        pvi.fit(found, schedule, rounds)
        assert_same(found.posterior, optimum.posterior, FIXED_POINT)


def test_a_local_free_energy_is_the_divergence_from_the_tilted_distribution(rng):
    """Property 1: ``F(q) = log Z − KL(q ‖ tilted)`` for any q, so that both have one optimum."""
    X, Y = rng.standard_normal((10, 1)), (rng.uniform(size=(10, 1)) < 0.5).astype(float)
    model = linear.logistic_regression(1)
    cavity = Normal.from_mean_covariance(np.array([0.4]), np.array([[0.8]]))
    grid = np.linspace(-12.0, 12.0, 20_001)[:, None]
    log_tilted = cavity.log_prob(grid).numpy() + _log_likelihood(grid, X, Y)
    evidence = scipy.integrate.simpson(np.exp(log_tilted), x=grid[:, 0])
    for mean, variance in ((0.0, 1.0), (0.7, 0.3), (-1.0, 0.5)):
        q = Normal.from_mean_covariance(np.array([mean]), np.array([[variance]]))
        log_q = q.log_prob(grid).numpy()
        inside = np.exp(log_q) * (log_q - log_tilted + np.log(evidence))
        divergence = scipy.integrate.simpson(inside, x=grid[:, 0])
        free_energy = model.expected_log_likelihood(q, X, Y, None) - q.kl_divergence(cavity)
        np.testing.assert_allclose(free_energy, np.log(evidence) - divergence, rtol=FIXED_POINT)


def _log_likelihood(theta, X, Y):
    """Of a logistic model, for each row of ``theta`` [S, 1]: [S]."""
    margin = (2.0 * Y - 1.0).T * (theta @ X.T)
    return -np.logaddexp(0.0, -margin).sum(axis=1)


@pytest.mark.parametrize(
    "schedule", [pvi.Sequential(), pvi.Synchronous(), pvi.Asynchronous(durations=1.0)]
)
def test_the_posterior_is_prior_times_factors_after_every_round(rng, schedule):
    """Property 2."""
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    found = server(linear.logistic_regression(3), shards, pvi.FixedPointUpdate())
    for _ in range(3):
        pvi.fit(found, schedule)
        assert_same(found.posterior, found.prior.times(found.factors.values()), ALGEBRA)


@pytest.mark.parametrize("family", [slow(Normal), MeanFieldNormal])
def test_a_local_optimum_s_factor_is_its_natural_gradient(rng, family):
    """Property 4, with the Fisher information (eq. 8) and by mean parameters (eq. 9)."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=family)
    found = server(model, datasets.partition_iid(X, Y, 3), LBFGS)
    pvi.fit(found, pvi.Sequential(order=["c0", "c1"]))
    q, data = found.posterior, found.clients["c1"].data

    def gain(q):
        return model.expected_log_likelihood(q, *data, None)

    for gradient in (q.natural_gradient(gain), ExponentialFamily.natural_gradient(q, gain)):
        assert_same(found.factors["c1"], gradient, 5 * FIXED_POINT)


def test_free_energies_of_clients_add_up_to_the_global_one(rng):
    """Property 3: at the fixed point ``Σ E_q[log p(y_k)/t_k] + log ∫ prior Π t = F``."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    optimum = server(model, [(X, Y)], LBFGS)
    wanted = pvi.fit(optimum)[-1].free_energy
    found = server(model, datasets.partition_iid(X, Y, 2), LBFGS)
    pvi.fit(found, pvi.Sequential(), 6)
    q, product = found.posterior, found.prior.as_factor()
    local = 0.0
    for name, client in found.clients.items():
        factor = found.factors[name]
        seed = np.zeros(2, np.int32)
        expected = q.expected_log(factor) - q.expected_log_base_measure()
        local += model.expected_log_likelihood(q, *client.data, seed) - expected
        product = product * factor
    np.testing.assert_allclose(local + product.log_integral(), wanted, rtol=FIXED_POINT)


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_parallel_fixed_point_steps_do_not_depend_on_the_partition(rng, family):
    """Property 5: the iterates themselves, not only where they end."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=family)
    partitions = [[(X, Y)], datasets.partition_by_label(X, Y, 2), datasets.partition_iid(X, Y, 5)]
    servers = [server(model, shards, pvi.FixedPointUpdate()) for shards in partitions]
    for _ in range(3):
        for one in servers:
            pvi.fit(one, pvi.Synchronous(damping=0.6))
        for other in servers[1:]:
            assert_same(servers[0].posterior, other.posterior, THROUGH_CHOLESKY)


def test_minibatches_within_a_client_and_between_clients_are_eqs_12_to_15(rng):
    """The gradient of a conjugate likelihood is its factor. Within a client the average minibatch's
    share of its factor makes way, ρ' = Lρ; between clients a client's own. (Eq. 15 is printed with
    a minus sign, which eq. 14 and eq. 13 do not have.)
    """
    (X, Y), model = regression_data(rng), conjugate_model()
    rho, own = 0.3, model.likelihood_factor(X, Y) ** 0.7
    within = task_of(model, X, Y, own)
    rows = next(within.minibatches(15))
    q, minibatch = within.posterior.as_factor(), model.likelihood_factor(X[rows], Y[rows])
    found = pvi.FixedPointUpdate(damping=rho, batch_size=15)(within).factor
    wanted = q ** (1.0 - rho) * (model.prior().as_factor() * minibatch**4.0) ** rho
    assert_same(model.prior().times([found]), wanted, ALGEBRA)
    assert_same(q * (minibatch / own**0.25) ** (4.0 * rho), wanted, ALGEBRA)

    shards = datasets.partition_iid(X, Y, 4)
    between = server(model, shards, pvi.FixedPointUpdate())
    between.warm_start(model.prior().times([own]).as_arrays())
    before, mine = between.posterior.as_factor(), between.factors["c2"]
    pvi.fit(between, pvi.Sequential(["c2"], damping=rho))
    gradient = model.likelihood_factor(*shards[2])
    assert_same(between.factors["c2"], mine ** (1.0 - rho) * gradient**rho, ALGEBRA)
    assert_same(between.posterior, before * (gradient / mine) ** rho, ALGEBRA)


def test_synchronous_rounds_without_damping_diverge_on_correlated_weights(rng):
    """The reason for the default 1/K (maths page, "Damping")."""
    X = rng.standard_normal((60, 1)) + 0.6 * rng.standard_normal((60, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((60, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    optimum = pooled(conjugate_model(), X, Y).mean

    def error(schedule, rounds):
        checks = pvi.Checks(max_shift=np.inf)
        shards = datasets.partition_iid(X, Y, 2)
        found = server(model, shards, pvi.FixedPointUpdate(), checks=checks)
        pvi.fit(found, schedule, rounds)
        return np.abs(found.posterior.mean / optimum - 1.0).max()

    assert error(pvi.Synchronous(damping=1.0), 40) > 1e3
    assert error(pvi.Synchronous(), 120) < 1e-4


# ---- rounds ----


def test_messages_and_bytes_are_counted_both_ways(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    history = pvi.fit(found, pvi.Synchronous(), 2, evaluate=lambda q: {"mean": q.mean[0]})
    natural = 8 * (3 + 9)
    assert history.column("messages") == [8, 16]
    assert history.column("bytes_up") == [4 * natural, 8 * natural]
    # in the second round each client gets its factor as well
    assert history.column("bytes_down") == [4 * natural, 12 * natural]
    record = history.to_records()[1]
    assert record["bytes"] == 20 * natural
    assert record["round"] == 2
    assert record["metrics"] == {"mean": record["mean"]}


def test_curves_of_several_histories_are_drawn(rng):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    history = pvi.fit(found, rounds=3, evaluate=lambda q: {"error": float(q.variance[0])})
    plotting.learning_curves(axes, {"mine": history}, "error", "bytes")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), history.column("bytes"))
    assert line.get_label() == "mine"


def test_asynchronous_runs_replay_exactly_and_say_how_stale_answers_were(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    durations = {"c0": 10.0, "c1": 1.0, "c2": 1.3}

    def run(**settings):
        found = server(model, datasets.partition_iid(X, Y, 3), pvi.FixedPointUpdate())
        schedule = pvi.Asynchronous(durations=durations, **settings)
        return pvi.fit(found, schedule, 12), found.posterior

    (history, q), (_, again), (_, damped) = run(), run(), run(staleness_power=1.0)
    assert_same(q, again, 0.0)
    assert max(history.column("staleness")) > 10
    assert np.abs(np.asarray(damped.mean) - q.mean).max() > 1e-6
    # 36 answers: about ten in ten seconds of each of the fast ones
    assert 16.0 < history[-1].simulated_seconds < 24.0


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
def test_a_stale_answer_enters_by_a_power_of_how_stale_it_is(rng, power):
    (X, Y), model, rule = regression_data(rng), conjugate_model(), pvi.Damping(0.5, 3)
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    late = found.clients["c0"].answer(found.ask("c0"))
    for name in ("c1", "c2"):
        found.accept([found.clients[name].answer(found.ask(name))], rule)
    report = found.accept([late], rule, staleness_power=power)
    assert (report.accepted, report.staleness) == (1, 2)
    whole = model.likelihood_factor(*found.clients["c0"].data)
    assert_same(found.factors["c0"], whole ** (0.5 * 3.0**-power), ALGEBRA)


def test_early_stopping_ends_a_run_that_rests(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    seen = []
    history = pvi.fit(
        found, pvi.Sequential(), 50, evaluate=lambda q: {"first": -q.mean[0]},
        callback=seen.append, stopping=pvi.EarlyStopping("first", patience=3, tolerance=1e-12),
    )  # fmt: skip
    assert len(history) == len(seen) == 4
    with pytest.raises(InvalidDataError, match=r"no metric 'loss' .* \['first'\]"):
        pvi.fit(
            found, rounds=2, evaluate=lambda q: {"first": 0}, stopping=pvi.EarlyStopping("loss")
        )


@pytest.mark.parametrize(
    ("values", "rounds"),
    [([1.0, *[0.5] * 9], 5), ([1.0, *[np.nan] * 9], 4), ([np.nan, *range(9, 0, -1)], 10)],
)
def test_neither_the_same_nor_no_number_is_an_improvement(values, rounds):
    stopping, history = pvi.EarlyStopping("loss", patience=3), pvi.History()
    for value in values:
        history = history.extended(pvi.Round(metrics={"loss": float(value)}))
        if stopping.is_over(history):
            break
    assert len(history) == rounds


NUM_CLIENTS = 20


@pytest.fixture
def second_round(rng):
    """A server whose clients all have factors, and their next answers."""
    X, Y = regression_data(rng)
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    shards = [(X[i::NUM_CLIENTS], Y[i::NUM_CLIENTS]) for i in range(NUM_CLIENTS)]
    found = server(model, shards, pvi.FixedPointUpdate())
    pvi.fit(found)
    return found, [client.answer(found.ask(name)) for name, client in found.clients.items()]


def test_no_answer_multiplies_the_factors_of_all_clients_again(second_round, monkeypatch):
    found, answers = second_round
    times, multiplied = ExponentialFamily.times, []

    def counting(self, factors):
        factors = list(factors)
        multiplied.append(len(factors))
        return times(self, factors)

    monkeypatch.setattr(ExponentialFamily, "times", counting)
    outcome = found.accept(answers, pvi.Damping(None, NUM_CLIENTS))
    assert outcome.accepted == NUM_CLIENTS
    assert found.posterior.is_proper
    assert sum(multiplied) <= 4 * NUM_CLIENTS  # out and in for each, and the whole once


def test_peers_go_where_sequential_pvi_goes_visit_by_visit(rng):
    """With a rule that draws minibatches, and with damping."""
    model, rule = conjugate_model(), pvi.FixedPointUpdate(steps=3, damping=0.3, batch_size=7)
    shards = datasets.partition_iid(*regression_data(rng), 3)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule), seed=4)
    peers = pvi.make_peers(model, shards, rule, damping=0.7, seed=4)
    baton = pvi.Baton(model.prior())
    for number in range(6):
        name = f"c{number % 3}"
        pvi.fit(server, pvi.Sequential([name], damping=0.7))
        baton = peers[number % 3].visit(baton)
        assert_same(baton.posterior, server.posterior, THROUGH_CHOLESKY)
        assert_same(peers[number % 3].own, server.factors[name], THROUGH_CHOLESKY)


def test_of_a_conjugate_model_one_round_is_exact_and_a_second_changes_nothing(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 4)
    for rounds in (1, 2):
        peers = pvi.make_peers(model, shards, pvi.AnalyticUpdate())
        baton = pvi.pass_around(model.prior(), peers, rounds)
        assert baton.visits == 4 * rounds
        assert_same(baton.posterior, pooled(model, X, Y), ALGEBRA)


def test_a_visit_that_ends_at_no_distribution_leaves_the_peer_as_it_was(rng):
    class Broken:
        """Takes all precision away, the second time."""

        times = 0

        def __call__(self, task):
            self.times += 1
            factor = task.posterior.as_factor() ** (1.0 if self.times == 1 else -2.0)
            return pvi.LocalResult(Factor(factor.family, factor.natural))

    model = linear.logistic_regression(3)
    (peer,) = pvi.make_peers(model, [labelled_data(rng)], Broken())
    baton = peer.visit(pvi.Baton(model.prior()))
    before = peer.own
    with pytest.raises(ImproperError):
        peer.visit(baton)
    assert peer.own is before


def test_peers_that_have_begun_and_none_at_all_are_refused(rng):
    model = conjugate_model()
    peers = pvi.make_peers(model, [regression_data(rng)], pvi.AnalyticUpdate())
    pvi.pass_around(model.prior(), peers)
    for wrong in ([], peers):
        with pytest.raises(InvalidDataError, match="none of which has a factor"):
            pvi.pass_around(model.prior(), wrong)
    with pytest.raises(InvalidDataError, match="damping"):
        pvi.make_peers(model, [regression_data(rng)], pvi.AnalyticUpdate(), damping=np.nan)


# ---- parameters that are a client's own ----


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


@pytest.mark.parametrize("schedule", [pvi.Sequential(), pvi.Synchronous(damping=1.0)])
def test_linear_models_have_the_posterior_of_the_whole_hierarchy(rng, tmp_path, schedule):
    shards = sites(rng)
    whole = linear.BayesianLinearRegression(4, NOISE)
    model = pvi.PersonalModel(whole, PERSONAL)
    rule = pvi.PersonalUpdate(pvi.AnalyticUpdate(), folder=str(tmp_path))
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    pvi.fit(server, schedule)
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


def test_what_is_personal_is_not_taken_from_a_file_of_another_model(rng, tmp_path):
    rule = pvi.PersonalUpdate(pvi.AnalyticUpdate(), folder=str(tmp_path))

    def of(size):
        model = pvi.PersonalModel(linear.BayesianLinearRegression(size), [size - 1])
        shards = [(X[:, :size], Y) for X, Y in sites(rng)]
        return pvi.Server(model.prior(), pvi.make_clients(model, shards, rule)), model

    server, _ = of(4)
    pvi.fit(server, pvi.Sequential(), rounds=1)
    other, smaller = of(3)
    nothing = pytest.raises(NoAnswerError, match="wanted as posterior")
    with pytest.warns(UserWarning, match="no answer"), nothing:
        pvi.fit(other, pvi.Sequential(), rounds=1)
    with pytest.raises(InvalidDataError, match="wanted as posterior"):
        smaller.joined(other.posterior, rule.kept("c0"))


def test_what_goes_over_the_wire_has_the_shared_size_only(rng):
    size, personal = 10, range(10, 40)
    model = pvi.PersonalModel(linear.BayesianLinearRegression(40), personal)
    X = rng.standard_normal((20, 40))
    rule = pvi.PersonalUpdate(pvi.AnalyticUpdate())
    client = pvi.make_clients(model, [(X, X[:, :1])], rule)["c0"]
    ask = pvi.Server(model.prior(), {"c0": client}).ask("c0")
    answer = client.answer(ask)
    for factor in (ask.posterior, answer.factor):
        assert [eta.shape for eta in factor.natural] == [(size,), (size, size)]
    assert len(encode_answer(answer)) < 8 * (size + size**2) + 4000
    assert 8 * len(personal) ** 2 > 4000, "else the bound on bytes would not see the personal part"


@dataclass(frozen=True)
class AsksForThePrior:
    """A rule that divides by the prior, and keeps what it was told."""

    told: list
    wants_prior: bool = True
    server_damping: float = 1.0

    def __call__(self, task):
        self.told.append(task.prior)
        return pvi.AnalyticUpdate()(task)


def test_a_rule_within_is_told_the_server_s_prior_and_says_how_it_is_damped(rng):
    model = pvi.PersonalModel(linear.BayesianLinearRegression(2, NOISE), [1])
    prior = linear.BayesianLinearRegression(1, prior_variance=3.0).prior()
    data, told = (rng.standard_normal((6, 2)), rng.standard_normal((6, 1))), []
    rule, found = pvi.PersonalUpdate(AsksForThePrior(told)), []
    for schedule in (pvi.Synchronous(), pvi.Synchronous(damping=1.0)):
        found.append(pvi.Server(prior, pvi.make_clients(model, [data] * 2, rule)))
        pvi.fit(found[-1], schedule)
    for one in told:
        np.testing.assert_allclose(one.covariance, np.diag([3.0, 1.0]), rtol=THROUGH_CHOLESKY)
    assert len(told) == 4
    assert_same(found[0].posterior, found[1].posterior, ALGEBRA)


def test_answers_of_personal_parameters_have_the_limits_of_their_rule():
    averaging = pvi.AveragingUpdate(0.5, pvi.VariationalUpdate())
    for rule in (pvi.FixedPointUpdate(), averaging, pvi.AnalyticUpdate()):
        assert pvi.PersonalUpdate(rule).checks == getattr(rule, "checks", None)


def test_what_is_personal_is_learned_and_goes_on_from_where_it_was(rng, tmp_path):
    """Two sites whose labels are each other's opposites share a layer, and not the last one."""
    net = bnn.MeanFieldBNN([2, 6, 2], gpflow.likelihoods.Softmax(2))
    model = pvi.PersonalModel(net, np.flatnonzero(net.layer_of_weights == 1))
    X = rng.standard_normal((40, 2)).astype(np.float32)
    Y = (X[:, :1] > 0.0).astype(float)
    rule = pvi.PersonalUpdate(
        pvi.VariationalUpdate(epochs=25, batch_size=None, learning_rate=0.08), str(tmp_path)
    )
    assert rule.kept("c0") is None
    clients = pvi.make_clients(model, [(X, Y), (X, 1.0 - Y)], rule)
    server = pvi.Server(model.prior(), clients)
    pvi.fit(server, pvi.Synchronous(), rounds=3)
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
