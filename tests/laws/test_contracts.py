"""Whatever is built in passes the checks of ``streaming_gp.testing``; what is careless does not."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import bnn, engines, linear, mixture, pvi, samplers, testing
from streaming_gp.expfam import FAMILIES, Factor, MeanFieldNormal
from streaming_gp.gp import Conditional, Exact, PowerEP, SparseBound, Variational
from streaming_gp.serialization import storable
from streaming_gp.testing.rounds import regression, shards_of_regression
from tests.oracles.reference import random_member

BOUNDS = [Variational(), PowerEP(0.5), PowerEP(1.0), Exact(), Conditional()]


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_bounds_serve_local_fits(bound):
    testing.check_local_bound(bound)


@storable
@dataclass(frozen=True)
class Halved(SparseBound):
    """Counts the data half."""

    def free_energy(self, f):
        q = f.posterior()
        return 0.5 * f.expected_log_likelihood(q.mean, q.variance) - q.kl


@storable
@dataclass(frozen=True)
class Stopped(SparseBound):
    """Its gradient is half of what it should be."""

    def free_energy(self, f):
        q = f.posterior()
        value = f.expected_log_likelihood(q.mean, q.variance)
        return 0.5 * (value + tf.stop_gradient(value)) - q.kl


@dataclass(frozen=True)
class Unregistered(Variational):
    pass


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (object(), "derives from streaming_gp.gp.LocalBound"),
        (Unregistered(), "Unregistered is registered by streaming_gp.serialization.storable"),
        (Halved(), "the free energy is the log evidence"),
        pytest.param(Stopped(), "is that which finite differences find", marks=pytest.mark.slow),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_bounds_that_break_the_contract_are_found(bound, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_local_bound(bound)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_obey_their_laws(family):
    testing.check_family(family, [random_member(family, seed) for seed in (0, 1)])


@dataclass(frozen=True, eq=False)
class Unnormalised(MeanFieldNormal):
    def log_partition(self):
        return super().log_partition() + tf.reduce_sum(self.precision)


@dataclass(frozen=True, eq=False)
class UnregisteredNormal(MeanFieldNormal):
    pass


@dataclass(frozen=True, eq=False)
class Careless(MeanFieldNormal):
    def objection_to(self, factor):
        return None


def members(family):
    given = [random_member(MeanFieldNormal, seed) for seed in (0, 1)]
    return [family(*one.natural) for one in given]


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        (Unnormalised, "mean parameters"),
        (UnregisteredNormal, "storable"),
        (Careless, "what is no factor is objected to"),
    ],
)
def test_what_is_wrong_with_a_family_is_said(family, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_family(family, members(family))


def test_members_of_another_family_are_no_members():
    with pytest.raises(AssertionError, match="every member is a Unregistered"):
        testing.check_family(UnregisteredNormal, members(MeanFieldNormal))
    with pytest.raises(AssertionError, match="at least two"):
        testing.check_family(MeanFieldNormal, [MeanFieldNormal(np.zeros(1), np.ones(1))])


X = np.random.default_rng(0).standard_normal((12, 2))
REAL = X[:, :1] - 0.5 * X[:, 1:]
LABELS = (REAL > 0.0).astype(float)
MODELS = {
    "regression": (lambda: linear.BayesianLinearRegression(2), (X, REAL)),
    "mean-field regression": (
        lambda: linear.BayesianLinearRegression(2, family=MeanFieldNormal), (X, REAL)
    ),
    "logistic regression": (lambda: linear.logistic_regression(2), (X, LABELS)),
    "probit regression": (lambda: linear.probit_regression(2), (X, LABELS)),
    "network": (
        lambda: bnn.MeanFieldBNN([2, 3, 1], gpflow.likelihoods.Gaussian(0.1)), (X, REAL)
    ),
    "moment network": (lambda: bnn.MomentNetwork(2, [3]), (X, REAL)),
    "Gaussian process": (
        lambda: sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
        ),
        (X, REAL),
    ),
    "clutter": (lambda: mixture.ClutterModel(mixture.Clutter([[1.0]]), 1.0), (None, REAL)),
    "mixture": (lambda: mixture.GaussianMixture(3, 2), (None, X)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_do_what_clients_ask_of_them(name):
    make, data = MODELS[name]
    testing.check_model(make(), data)


class CarelessRegression(linear.BayesianLinearRegression):
    def as_data(self, X, Y):
        return np.asarray(X), np.asarray(Y)


class Drifting(linear.BayesianLinearRegression):
    calls = 0

    def expected_log_likelihood(self, q, X, Y, seed):
        self.calls += 1
        return super().expected_log_likelihood(q, X, Y, seed) + self.calls


class Unadded(linear.BayesianLinearRegression):
    def likelihood_factor(self, X, Y):
        return super().likelihood_factor(X, Y) ** (1.0 / len(X))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (object(), "all methods of streaming_gp.pvi.Model"),
        (CarelessRegression(2), "Y of NaN is refused"),
        (Drifting(2), "a seed determines the expected log-likelihood"),
        (Unadded(2), "likelihood_factor multiplies over data"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(model, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_model(model, shards_of_regression()[0])


def test_the_problem_of_the_checks_is_a_model_like_any():
    testing.check_model(regression(), shards_of_regression()[0])


def slow(one):
    return pytest.param(one, marks=pytest.mark.slow)


LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
SGLD = samplers.AdaptiveSGLD(0.02, 4)
EXACT = [
    pvi.AnalyticUpdate(),
    pvi.FixedPointUpdate(),
    slow(pvi.FixedPointUpdate(steps=3, damping=0.5)),
    LBFGS,
    slow(pvi.PowerEPUpdate(sweeps=4)),
    pvi.PowerEPUpdate(alpha=0.5, sweeps=2, damping=1.0, sequential=True),
    pvi.StochasticEPUpdate(),
    pvi.StochasticNaturalGradientUpdate(batch_size=None),
]
NUTS = samplers.NUTS(8)
SAMPLED_AND_APPROXIMATE = [
    pvi.FixedPointUpdate(batch_size=4),
    pvi.StochasticNaturalGradientUpdate(4),
    slow(pvi.VariationalUpdate(epochs=2, batch_size=4)),
    slow(pvi.VariationalUpdate(optimiser=pvi.SGD())),
    pvi.AssumedDensityUpdate(),
    pvi.DistributedEPUpdate(pvi.AnalyticUpdate()),
    pvi.SNEPUpdate(SGLD, sync=3),
    slow(pvi.MomentSharingUpdate(NUTS)),
    pvi.SplitPriorUpdate(LBFGS, 0.5),
]
MEAN_FIELD = [
    pvi.VariationalUpdate(optimiser=pvi.VariationalOnlineNewton()),
    slow(pvi.AveragingUpdate(0.5, pvi.VariationalUpdate())),
    pvi.DownpourUpdate(sync=2),
    pvi.ElasticUpdate(sync=2),
]


def name_of(rule):
    return type(rule).__name__


@pytest.mark.parametrize("rule", EXACT, ids=name_of)
def test_rules_that_are_exact_find_the_exact_posterior(rule):
    testing.check_update_rule(rule, tolerance=1e-5)


@pytest.mark.parametrize("rule", SAMPLED_AND_APPROXIMATE, ids=name_of)
def test_other_rules_answer_as_the_loop_expects(rule):
    testing.check_update_rule(rule)


@pytest.mark.parametrize("rule", MEAN_FIELD, ids=name_of)
def test_rules_for_mean_fields_answer_as_the_loop_expects(rule):
    testing.check_update_rule(rule, regression(MeanFieldNormal))


@dataclass(frozen=True)
class Wrong:
    """A rule that does one thing wrong."""

    how: str

    def __call__(self, task):
        result = pvi.AnalyticUpdate()(task)
        if self.how == "another family":
            return replace(result, factor=Factor(MeanFieldNormal, result.factor.natural))
        if self.how == "in place":
            task.data[1][:] = 0.0
        if self.how == "double":
            return replace(result, factor=result.factor**2.0)
        if self.how == "silent":
            return result.factor
        return result


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("another family", "a factor of the prior's family: it is no factor"),
        ("in place", "a rule leaves the task as it was"),
        ("double", "finds the exact posterior"),
        ("silent", "gives a LocalResult"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(how, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_update_rule(Wrong(how), tolerance=1e-6)


def test_a_rule_that_answers_nothing_is_none():
    with pytest.raises(AssertionError, match="answers the first question"):
        testing.check_update_rule(pvi.ElasticUpdate())


SCHEDULES = [
    slow(pvi.Sequential()),
    pvi.Sequential(order="random", damping=0.5, seed=3),
    slow(pvi.Sequential(order=["c2", "c0"])),
    slow(pvi.Synchronous()),
    pvi.Synchronous(damping=pvi.Momentum(), fraction=0.5),
    slow(pvi.Synchronous(damping=pvi.OpinionPool(), durations=1.0)),
    pvi.Arrivals([["c2", "c0"], ["c1"]]),
    slow(pvi.Asynchronous()),
    pvi.Asynchronous(durations={"c0": 5.0, "c1": 1.0, "c2": 1.0}, staleness_power=1.0),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_schedules_keep_to_the_rules_of_a_round(schedule):
    testing.check_schedule(schedule)


@dataclass(frozen=True)
class WrongSchedule:
    """A schedule that does one thing wrong."""

    how: str

    def round(self, server, session, number, progress):
        if self.how == "waits":
            session.next()
        ask = server.ask("c0")
        if self.how == "stranger":
            session.submit(replace(ask, client_id="c9"), None)
        session.submit(ask, None)
        if self.how == "twice":
            session.submit(ask, None)
        while self.how == "endless":
            session.next()
            session.submit(ask, None)
        raise NotImplementedError


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("waits", "waits for open questions only"),
        ("stranger", "only clients that exist are asked"),
        ("twice", "one open question at a time"),
        ("endless", "a round ends"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(how, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_schedule(WrongSchedule(how))


@pytest.mark.parametrize("engine", [engines.Serial(), engines.Serial(latency=3)])
def test_the_serial_engine_runs_clients(engine):
    testing.check_engine(engine)


@pytest.mark.ray
@pytest.mark.xdist_group("one cluster")
@pytest.mark.slow
def test_the_ray_engine_runs_clients():
    pytest.importorskip("ray")
    testing.check_engine(engines.Ray())


@dataclass(frozen=True)
class Losing:
    """An engine on which one client's answers are lost."""

    @contextmanager
    def session(self, clients):
        with engines.Serial().session(clients) as session:
            deliver = session.next
            session.next = lambda: lost(deliver(), "c1")
            yield session


def lost(delivery, name):
    return engines.Delivery(name, None, "lost") if delivery.client_id == name else delivery


def test_what_is_wrong_with_an_engine_is_said():
    with pytest.raises(AssertionError, match="the posterior that it has on the serial engine"):
        testing.check_engine(Losing())
    with pytest.raises(AssertionError, match="an engine has the method session"):
        testing.check_engine(object())


PRIVATE, SHARED = sgp.PrivatePseudoPoints, sgp.SharedPseudoPoints
STRATEGIES = [
    PRIVATE(4, budget=9),
    PRIVATE(4, optimise_locations=False),
    PRIVATE("auto", max_number=5),
    PRIVATE("all"),
    SHARED(5),
    SHARED(5, growth=2, kept_batches=1),
    SHARED(5, optimise_locations=False),
    sgp.ConditionalPseudoPoints(3),
    sgp.IndependentPseudoPoints(5, growth=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_strategies_serve_a_stream(strategy):
    testing.check_pseudo_points(strategy)


class FirstInputs(sgp.OwnPseudoPoints):
    def place(self, candidates):
        return candidates.inputs[: self.number]


@dataclass(frozen=True)
class UnregisteredPoints(FirstInputs):
    pass


@storable
@dataclass(frozen=True)
class Unseeded(FirstInputs):
    def place(self, candidates):
        return np.random.default_rng().choice(candidates.inputs, self.number, replace=False)


@storable
@dataclass(frozen=True)
class Forgetful(FirstInputs):
    """Merges nothing."""

    def tidy(self, fitter, ledger, epsilon, kept=()):
        return ledger


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (object(), "all methods of streaming_gp.gp.PseudoPointStrategy"),
        (UnregisteredPoints(3), "UnregisteredPoints is registered by streaming_gp.serialization"),
        pytest.param(
            Unseeded(3, optimise_locations=False), "one state and one seed lead to one result",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Forgetful(4, budget=8), "12 points keep a budget of 8", marks=pytest.mark.slow
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)  # fmt: skip
def test_strategies_that_break_the_contract_are_found(strategy, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_pseudo_points(strategy)
