"""Servers, clients and schedules on models whose answers are known."""

from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from streaming_gp import bnn, datasets, linear, metrics, mixture, plotting, pvi
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.expfam import ExponentialFamily, Factor, MeanFieldNormal, Normal, Renyi
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY

FIXED_POINT = 1e-6
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def inputs(rng, number=60):
    return rng.standard_normal((number, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1.0]])


def regression_data(rng):
    X = inputs(rng)
    return X, X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((len(X), 1))


def labelled_data(rng):
    X = inputs(rng)
    probability = 1.0 / (1.0 + np.exp(-X @ np.array([[1.0], [-2.0], [0.5]])))
    return X, (rng.uniform(size=(len(X), 1)) < probability).astype(float)


def server(model, shards, update, **settings):
    return pvi.Server(model.prior(), pvi.make_clients(model, shards, update), **settings)


def assert_same(q, p, tolerance):
    for a, b in zip(q.natural, p.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def pooled(model, X, Y):
    return model.prior().times([model.likelihood_factor(X, Y)])


SCHEDULES = {
    "sequential": (pvi.Sequential(), 1),
    "backwards": (pvi.Sequential(order=["c4", "c3", "c2", "c1", "c0"]), 1),
    "random": (pvi.Sequential(order="random", seed=3), 2),
    "synchronous": (pvi.Synchronous(damping=1.0), 1),
    "damped": (pvi.Synchronous(damping=0.5), 40),
    "by client": (pvi.Synchronous(damping={"c0": 1.0, "c1": 0.5, "c2": 0.6, "c3": 0.8}), 110),
    "sampled": (pvi.Synchronous(damping=1.0, fraction=0.4), 20),
    "asynchronous": (
        pvi.Asynchronous(damping=1.0, durations={f"c{i}": 1 + i for i in range(5)}),
        5,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("update", [pvi.AnalyticUpdate(), pvi.FixedPointUpdate()])
def test_conjugate_clients_reach_the_pooled_posterior(rng, name, update):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 5), update)
    schedule, rounds = SCHEDULES[name]
    history = pvi.fit(found, schedule, rounds)
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    assert not history[-1].refused
    assert set(found.factors) == {f"c{i}" for i in range(5)}


def test_evidence_adds_up_over_sequential_clients(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    history = pvi.fit(found, pvi.Sequential())
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(history[-1].free_energy, product.log_integral(), rtol=ALGEBRA)


@pytest.mark.parametrize(
    ("make", "family"),
    [
        (linear.logistic_regression, Normal),
        (linear.probit_regression, MeanFieldNormal),
        pytest.param(linear.logistic_regression, MeanFieldNormal, marks=pytest.mark.slow),
        pytest.param(linear.probit_regression, Normal, marks=pytest.mark.slow),
    ],
)
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
    X, Y = rng.standard_normal((20, 1)), (rng.uniform(size=(20, 1)) < 0.5).astype(float)
    model = linear.logistic_regression(1)
    found = server(model, datasets.partition_iid(X, Y, 2), LBFGS)
    pvi.fit(found, pvi.Sequential(), 2)
    cavity, data = found.cavity("c0"), found.clients["c0"].data
    grid = np.linspace(-12.0, 12.0, 20_001)[:, None]
    log_tilted = cavity.log_prob(grid).numpy() + _log_likelihood(grid, *data)
    evidence = scipy.integrate.simpson(np.exp(log_tilted), x=grid[:, 0])
    for mean, variance in ((0.0, 1.0), (0.7, 0.3), (-1.0, 0.5)):
        q = Normal.from_mean_covariance(np.array([mean]), np.array([[variance]]))
        log_q = q.log_prob(grid).numpy()
        inside = np.exp(log_q) * (log_q - log_tilted + np.log(evidence))
        divergence = scipy.integrate.simpson(inside, x=grid[:, 0])
        gain = model.expected_log_likelihood(q, *data, None)
        free_energy = gain - q.kl_divergence(cavity)
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
    X, Y = labelled_data(rng)
    found = server(linear.logistic_regression(3), datasets.partition_iid(X, Y, 3), LBFGS)
    for _ in range(3):
        pvi.fit(found, schedule)
        assert_same(found.posterior, found.prior.times(found.factors.values()), ALGEBRA)


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
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
    found = server(model, datasets.partition_iid(X, Y, 3), LBFGS)
    pvi.fit(found, pvi.Sequential(), 12)
    q, product = found.posterior, found.prior.as_factor()
    local = 0.0
    for name, client in found.clients.items():
        factor = found.factors[name]
        seed = np.zeros(2, np.int32)
        local += model.expected_log_likelihood(q, *client.data, seed) - _expected(q, factor)
        product = product * factor
    np.testing.assert_allclose(local + product.log_integral(), wanted, rtol=FIXED_POINT)


def _expected(q, factor):
    return q.expected_log(factor) - q.expected_log_base_measure()


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_parallel_fixed_point_steps_do_not_depend_on_the_partition(rng, family):
    """Property 5: the iterates themselves, not only where they end."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=family)
    partitions = [[(X, Y)], datasets.partition_by_label(X, Y, 2), datasets.partition_iid(X, Y, 12)]
    servers = [server(model, shards, pvi.FixedPointUpdate()) for shards in partitions]
    for _ in range(4):
        for one in servers:
            pvi.fit(one, pvi.Synchronous(damping=0.6))
        for other in servers[1:]:
            assert_same(servers[0].posterior, other.posterior, THROUGH_CHOLESKY)


def test_synchronous_rounds_without_damping_diverge_on_correlated_weights(rng):
    """The reason for the default 1/K (maths page, "Damping")."""
    X = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((60, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    optimum = server(model, [(X, Y)], LBFGS)
    pvi.fit(optimum)

    def error(schedule, rounds):
        checks = pvi.Checks(max_shift=np.inf)
        shards = datasets.partition_iid(X, Y, 2)
        found = server(model, shards, pvi.FixedPointUpdate(), checks=checks)
        pvi.fit(found, schedule, rounds)
        return np.abs(found.posterior.mean / optimum.posterior.mean - 1.0).max()

    assert error(pvi.Synchronous(damping=1.0), 40) > 1e3
    assert error(pvi.Synchronous(), 400) < 1e-4


# ---- momentum ----


def momentum_server(rng, checks=None):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_by_label(X, Y, 2)
    return server(model, shards, pvi.FixedPointUpdate(), checks=checks), model, (X, Y)


def test_momentum_ends_at_the_optimum_with_every_client_s_own_factor(rng):
    found, model, (X, Y) = momentum_server(rng)
    rule = pvi.Momentum(learning_rate=0.3, precision_rate=0.3, momentum=0.5, cosine=False)
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
    rule = pvi.Momentum(learning_rate=0.1, precision_rate=0.2, momentum=0.9, cosine=False)
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


# ---- hostile and broken clients ----


@dataclass(frozen=True)
class Spoiled:
    """A rule that spoils what another rule answers."""

    rule: object
    how: object

    def __call__(self, task):
        result = self.rule(task)
        return replace(result, factor=self.how(result.factor))


def scaled(by):
    return lambda factor: Factor(factor.family, tuple(by * eta for eta in factor.natural))


POISONS = {
    "not finite": (scaled(np.nan), "not finite"),
    "huge": (scaled(1e9), "prior precisions for each data point"),
    "far": (
        lambda f: Factor(f.family, (f.natural[0] + 1e6, f.natural[1])), "standard deviations"
    ),
    "negative": (scaled(-1.0), "takes away"),
    "wrong shape": (lambda f: Factor(f.family, tuple(eta[:2] for eta in f.natural)), "shapes"),
    "other family": (lambda f: Factor(MeanFieldNormal, f.natural), "no factor of the family"),
    "no factor": (lambda f: replace_by_text(), "no factor of the family"),
    "integers": (
        lambda f: Factor(f.family, tuple(eta.astype(int) for eta in f.natural)), "floating-point"
    ),
}  # fmt: skip


def replace_by_text():
    class Text(str):
        def as_arrays(self):
            return self

        @property
        def natural(self):
            return ()

    return Text("factor")


@pytest.mark.parametrize("name", POISONS)
def test_a_spoiled_answer_is_refused_and_the_others_go_on(rng, name):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    shards = datasets.partition_iid(X, Y, 4)
    clients = pvi.make_clients(model, shards, pvi.AnalyticUpdate())
    how, message = POISONS[name]
    clients["c1"] = replace(clients["c1"], update=Spoiled(pvi.AnalyticUpdate(), how))
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, pvi.Synchronous(damping=1.0), 2)
    assert set(history[-1].refused) == {"c1"}
    assert message in history[-1].refused["c1"]
    honest = pvi.Server(model.prior(), {k: c for k, c in clients.items() if k != "c1"})
    pvi.fit(honest, pvi.Synchronous(damping=1.0), 2)
    assert_same(found.posterior, honest.posterior, ALGEBRA)


def test_limits_are_the_server_s_or_the_model_s_or_the_rule_s(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    lax, clutter = pvi.Checks(max_shift=np.inf), mixture.ClutterModel(mixture.Clutter([[1.0]]), 1.0)

    def limits(model, data, rule, **given):
        return server(model, [data], rule, **given).checks_of("c0")

    natural = pvi.FixedPointUpdate()
    assert limits(model, (X, Y), natural).max_precision_loss == 1e-3
    assert limits(model, (X, Y), pvi.FixedPointUpdate(divergence=Renyi(0.5))) == pvi.Checks()
    assert limits(model, (X, Y), pvi.AnalyticUpdate()) == pvi.Checks()
    assert limits(model, (X, Y), natural, checks=lax) == lax
    assert limits(clutter, (None, Y), natural) == clutter.checks


def test_a_client_that_raises_is_reported_and_the_others_go_on(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)

    def broken(task):
        raise NumericalError("no fit")

    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    clients["c2"] = replace(clients["c2"], update=broken)
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, pvi.Sequential(), 2)
    assert history[-1].failed == {"c2": "NumericalError: no fit"}
    assert set(found.factors) == {"c0", "c1"}


def test_an_answer_counts_once(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    rule = pvi.Damping(0.5, 2)
    stale, _ = found.ask("c0")
    fresh, _ = found.ask("c0")
    answers = [found.clients["c0"].answer(ask) for ask in (stale, fresh)]
    outcome = found.accept(answers, rule)
    assert outcome.refused == {"c0": "question 0 is not open: answered before, or out of date"}
    assert outcome.accepted == ("c0",)
    before = found.posterior
    assert found.accept([answers[1]], rule).refused
    stranger = replace(answers[1], client_id="c9")
    assert found.accept([stranger], rule).refused == {"c9": "there is no such client"}
    assert found.posterior is before
    assert found.version == 1


@dataclass(frozen=True)
class SometimesSpoiled:
    """Spoils about every second answer, in one of all the ways."""

    rule: object

    def __call__(self, task):
        ways = [how for how, _ in POISONS.values()]
        choice = task.seed % (2 * len(ways))
        rule = self.rule if choice >= len(ways) else Spoiled(self.rule, ways[choice])
        return rule(task)


@pytest.mark.slow
@pytest.mark.data
def test_a_network_is_as_good_with_a_client_that_spoils_answers_in_any_round(mnist):
    net = bnn.MeanFieldBNN([784, 100, 10], gpflow.likelihoods.Softmax(10))
    shards = datasets.partition_iid(mnist.X[:20_000], mnist.Y[:20_000], 10)
    rule = pvi.VariationalUpdate(epochs=3, optimiser=pvi.VariationalOnlineNewton(0.005))

    def error(clients):
        found = pvi.Server(net.prior(), clients)
        history = pvi.fit(found, rounds=8)
        probability = net.predict(found.posterior, mnist.X_test, num_samples=20)
        refused = [name for one in history for name in one.refused]
        return metrics.classification_error(probability, mnist.Y_test), refused

    honest = pvi.make_clients(net, shards, rule)
    spoiled = honest | {"c3": replace(honest["c3"], update=SometimesSpoiled(rule))}
    (without, none), (poisoned, refused) = error(honest), error(spoiled)
    assert not none
    assert set(refused) == {"c3"}
    assert poisoned <= without + 0.003


def test_an_answer_that_cannot_be_read_is_refused(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    ask, _ = found.ask("c0")
    ragged = replace(found.clients["c0"].answer(ask), factor=Factor(Normal, ([1.0, [2.0]], None)))
    outcome = found.accept([ragged], pvi.Damping(None, 1))
    assert "cannot be read" in outcome.refused["c0"]
    assert not found.factors


def test_an_answer_to_a_question_from_before_its_client_was_removed_is_refused(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    pvi.fit(found, pvi.Sequential())
    ask, _ = found.ask("c1")
    answer = found.clients["c1"].answer(ask)
    found.remove("c1")
    assert "not open" in found.accept([answer], pvi.Damping(None, 2)).refused["c1"]
    assert list(found.factors) == ["c0"]


# ---- the server in the user's hands ----


def test_removing_a_client_forgets_it(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, pvi.AnalyticUpdate())
    pvi.fit(found, pvi.Sequential())
    cavity = found.cavity("c1")
    found.remove("c1")
    assert_same(found.posterior, cavity, ALGEBRA)
    with pytest.raises(InvalidDataError, match="no factor 'c1'"):
        found.remove("c1")
    with pytest.raises(InvalidDataError, match="no client 'stranger'"):
        found.cavity("stranger")


def test_a_warm_start_is_shared_out_evenly(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    q = Normal.from_mean_covariance(np.ones(3), 0.5 * np.eye(3)).as_arrays()
    found.warm_start(q)
    assert_same(found.posterior, q, ALGEBRA)
    assert len(found.factors) == 3
    pvi.fit(found, pvi.Sequential())
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    with pytest.raises(InvalidDataError, match="without factors"):
        found.warm_start(q)
    fresh = server(model, [(X, Y)], pvi.AnalyticUpdate())
    with pytest.raises(InvalidDataError, match=r"wanted a Normal of shapes .* got a MeanField"):
        fresh.warm_start(MeanFieldNormal(np.zeros(3), np.ones(3)))


def test_messages_and_bytes_are_counted_both_ways(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
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
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    history = pvi.fit(found, rounds=3, evaluate=lambda q: {"error": float(q.variance[0])})
    plotting.learning_curves(axes, {"mine": history}, "error", "bytes")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), history.column("bytes"))
    assert line.get_label() == "mine"


def test_asynchronous_runs_replay_exactly_and_say_how_stale_answers_were(rng):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    durations = {"c0": 10.0, "c1": 1.0, "c2": 1.3}

    def run(**settings):
        found = server(model, datasets.partition_iid(X, Y, 3), pvi.FixedPointUpdate())
        schedule = pvi.Asynchronous(durations=durations, **settings)
        return pvi.fit(found, schedule, 12), found.posterior

    (history, q), (_, again), (_, damped) = run(), run(), run(staleness_power=1.0)
    for a, b in zip(q.natural, again.natural, strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(history.column("staleness")) > 10
    assert np.abs(np.asarray(damped.mean) - q.mean).max() > 1e-6
    # 36 answers: about ten in ten seconds of each of the fast ones
    assert 16.0 < history[-1].simulated_seconds < 24.0


def test_early_stopping_ends_a_run_that_rests(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
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


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_the_prior_variance_learned_from_q_is_that_of_most_evidence(rng, family):
    """Orthogonal inputs, so that the mean field is exact as well."""
    X = np.linalg.qr(rng.standard_normal((40, 4)))[0] * 5.0
    Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.3 * rng.standard_normal((40, 1))
    model = linear.BayesianLinearRegression(4, 0.09, family=family)
    found = server(model, [(X[i::2], Y[i::2]) for i in range(2)], pvi.FixedPointUpdate())
    history = pvi.fit(found, pvi.Synchronous(damping=1.0), 60, hyperparameters=pvi.PriorVariance())
    grid = np.exp(np.linspace(-2.0, 4.0, 601))
    evidence = [
        scipy.stats.multivariate_normal(np.zeros(40), 0.09 * np.eye(40) + s * X @ X.T).logpdf(
            Y[:, 0]
        )
        for s in grid[::10]
    ]
    best = grid[::10][int(np.argmax(evidence))]
    assert history[-1].metrics["prior_variance"] == pytest.approx(best, rel=0.02)


def test_the_noise_variance_learned_across_clients_is_that_of_most_evidence(rng, tmp_path):
    X, Y = regression_data(rng)
    model = linear.BayesianLinearRegression(3, noise_variance=1.0)
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    history = pvi.fit(
        found, pvi.Synchronous(damping=1.0), 80, hyperparameters=pvi.LikelihoodParameters(1.0)
    )
    grid = np.exp(np.linspace(-4.0, 0.0, 2001))
    evidence = [
        scipy.stats.multivariate_normal(cov=s * np.eye(60) + X @ X.T).logpdf(Y[:, 0]) for s in grid
    ]
    best = grid[int(np.argmax(evidence))]
    assert model.noise_variance == pytest.approx(best, rel=5e-3)
    assert history[-1].metrics["gradient_norm"] < 1e-4
    found.save(tmp_path / "run.npz")
    again = pvi.Server.load(tmp_path / "run.npz", model.prior(), found.clients)
    np.testing.assert_array_equal(again.hyperparameters, found.hyperparameters)


def test_models_without_trainable_parameters_learn_none(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], LBFGS)
    with pytest.raises(InvalidDataError, match="no trainable_variables"):
        pvi.fit(found, hyperparameters=pvi.LikelihoodParameters())


def test_only_isotropic_priors_have_one_variance(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3)
    uneven = Normal(np.zeros(3), np.diag([1.0, 2.0, 3.0]))
    found = pvi.Server(uneven, pvi.make_clients(model, [(X, Y)], pvi.AnalyticUpdate()))
    with pytest.raises(InvalidDataError, match="one variance"):
        pvi.PriorVariance().learn(found)


# ---- what PVI is compared with ----


def test_a_committee_with_the_same_prior_is_one_undamped_round(rng):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, LBFGS)
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    members = []
    for shard in shards:
        alone = server(model, [shard], LBFGS)
        pvi.fit(alone)
        members.append(alone.posterior / alone.prior)
    assert_same(found.posterior, found.prior.times(members), ALGEBRA)


def test_a_committee_with_the_prior_split_multiplies_its_members(rng):
    X, Y = labelled_data(rng)
    model, split = linear.logistic_regression(3), linear.logistic_regression(3, prior_variance=3.0)
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, pvi.SplitPriorUpdate(LBFGS, 1 / 3))
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    natural = np.zeros(3), np.zeros((3, 3))
    for shard in shards:
        alone = server(split, [shard], LBFGS)
        pvi.fit(alone)
        natural = tuple(a + b for a, b in zip(natural, alone.posterior.natural, strict=True))
    assert_same(found.posterior, Normal(*natural), FIXED_POINT)
    history = pvi.fit(found, pvi.Synchronous(damping=1.0))
    assert "answers once" in history[-1].failed["c0"]


def test_federated_averaging_is_the_mean_of_maximum_likelihood_fits(rng):
    X = rng.standard_normal((60, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((60, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    shards = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    local = pvi.VariationalUpdate(epochs=800, batch_size=None, learning_rate=0.02)
    clients = pvi.make_clients(model, shards, local)
    for client_id, share in {"c0": 1 / 3, "c1": 2 / 3}.items():
        clients[client_id] = replace(clients[client_id], update=pvi.AveragingUpdate(share, local))
    certain = pvi.Checks(max_shift=np.inf, max_precision_per_datum=np.inf)
    found = pvi.Server(model.prior(), clients, checks=certain)
    fits = [np.linalg.lstsq(*shard, rcond=None)[0][:, 0] for shard in shards]
    for _ in range(2):
        pvi.fit(found, pvi.Synchronous(damping=1.0))
        np.testing.assert_allclose(found.posterior.mean, fits[0] / 3 + 2 * fits[1] / 3, atol=2e-3)


# ---- files ----


def test_a_resumed_run_is_the_run_that_was_never_stopped(rng, tmp_path):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_iid(X, Y, 3)
    update = pvi.FixedPointUpdate(batch_size=7)
    schedule = pvi.Synchronous(damping=pvi.Momentum(cosine=False))
    whole = server(model, shards, update)
    pvi.fit(whole, schedule, 6)
    part = server(model, shards, update)
    pvi.fit(part, schedule, 4, checkpoint=tmp_path / "run.npz")
    resumed = pvi.Server.load(tmp_path / "run.npz", model.prior(), part.clients)
    assert len(resumed.history) == 4
    pvi.fit(resumed, schedule, 2)
    for a, b in zip(whole.posterior.natural, resumed.posterior.natural, strict=True):
        np.testing.assert_array_equal(a, b)
    assert resumed.version == whole.version
    assert resumed.history.column("messages") == whole.history.column("messages")


def test_files_that_do_not_fit_are_refused(rng, tmp_path):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    pvi.fit(found)
    path = tmp_path / "run.npz"
    found.save(path)
    two = {name: client for name, client in found.clients.items() if name != "c2"}
    with pytest.raises(InvalidDataError, match=r"\['c2'\], which are not among clients"):
        pvi.Server.load(path, model.prior(), two)
    other = linear.BayesianLinearRegression(4).prior()
    with pytest.raises(InvalidDataError, match="but the prior is"):
        pvi.Server.load(path, other, found.clients)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="truncated or was altered"):
        pvi.Server.load(path, model.prior(), found.clients)


# ---- what users may get wrong ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, d: pvi.make_clients(m, [], pvi.AnalyticUpdate()), "at least one client"),
        (lambda m, d: pvi.Server(m.prior(), {}), "at least one"),
        (lambda m, d: pvi.make_clients(m, [(d[0], d[1][:5])], None), "shard 'c0': .*as many rows"),
        (lambda m, d: pvi.make_clients(m, {"x": (d[0] * np.nan, d[1])}, None), "shard 'x': X must"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), rounds=0), "rounds must be positive"),
        (lambda m, d: pvi.Synchronous(fraction=0.0), "fraction"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), pvi.Synchronous(2.0)), "damping must lie"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), pvi.Sequential("up")), '"random"'),
        (lambda m, d: pvi.VariationalUpdate(epochs=0), "epochs"),
        (lambda m, d: pvi.VariationalUpdate(optimiser=pvi.LBFGS()), "batch_size must be None"),
        (lambda m, d: pvi.FixedPointUpdate(steps=0), "steps"),
        (lambda m, d: linear.BayesianLinearRegression(3, noise_variance=-1.0), "noise_variance"),
        (lambda m, d: linear.logistic_regression(0), "num_inputs"),
    ],
)
def test_what_makes_no_sense_is_refused(rng, make, message):
    with pytest.raises(InvalidDataError, match=message):
        make(linear.BayesianLinearRegression(3), regression_data(rng))


def test_only_conjugate_models_have_analytic_updates(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    history = pvi.fit(found)
    assert "GeneralisedLinearModel is not conjugate" in history[-1].failed["c0"]


def test_labels_outside_the_support_are_refused(rng):
    X, Y = labelled_data(rng)
    with pytest.raises(InvalidDataError, match="wanted 0 or 1"):
        pvi.make_clients(linear.probit_regression(3), [(X, 2.0 * Y - 1.0)], LBFGS)
