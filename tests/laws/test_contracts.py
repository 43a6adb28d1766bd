"""Whatever is built in passes the checks of ``streaming_gp.testing``; what is careless does not."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from sklearn.cluster import KMeans

import streaming_gp as sgp
from streaming_gp import bnn, engines, expfam, linear, mixture, pvi, samplers, testing
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import FAMILIES, Factor, MeanFieldNormal
from streaming_gp.gp import (
    Conditional,
    LocalBound,
    PowerEP,
    PseudoPointStrategy,
    SparseBound,
    Variational,
)
from streaming_gp.serialization import storable
from streaming_gp.testing.rounds import regression, shards_of_regression
from tests.laws import LBFGS, eager, slow
from tests.oracles.builders import (
    NOISE,
    BoundOfOnesOwn,
    assert_same_arrays,
    known_model,
    labelled,
    predicted,
    regressor,
)
from tests.oracles.reference import random_member, smooth_data
from tests.oracles.trees import same
from tests.tolerances import PREDICTIONS_AT_OPTIMUM, THROUGH_CHOLESKY

BOUNDS = [Variational(), PowerEP(0.5), PowerEP(1.0), Conditional()]


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
        slow(Halved(), "the free energy is the log evidence"),
        slow(Stopped(), "is that which finite differences find"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_bounds_that_break_the_contract_are_found(bound, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_local_bound(bound)


@pytest.mark.parametrize(  # one of which is a product with Normal-Wisharts
    "family", [slow(one) if one is expfam.NormalWishart else one for one in FAMILIES]
)
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


SGLD = samplers.AdaptiveSGLD(0.02, 4)
EXACT = [
    pvi.AnalyticUpdate(),
    pvi.FixedPointUpdate(),
    slow(pvi.FixedPointUpdate(steps=3, damping=0.5)),
    slow(LBFGS),
    slow(pvi.PowerEPUpdate(sweeps=4)),
    slow(pvi.PowerEPUpdate(alpha=0.5, sweeps=2, damping=1.0, sequential=True)),
    slow(pvi.StochasticEPUpdate()),
    pvi.StochasticNaturalGradientUpdate(batch_size=None),
]
NUTS = samplers.NUTS(8)
SAMPLED_AND_APPROXIMATE = [
    pvi.FixedPointUpdate(batch_size=4),
    pvi.StochasticNaturalGradientUpdate(4),
    slow(pvi.VariationalUpdate(epochs=2, batch_size=4)),
    slow(pvi.VariationalUpdate(optimiser=pvi.SGD())),
    slow(pvi.AssumedDensityUpdate()),
    pvi.DistributedEPUpdate(pvi.AnalyticUpdate()),
    pvi.SNEPUpdate(SGLD, sync=3),
    slow(pvi.MomentSharingUpdate(NUTS)),
    slow(pvi.SplitPriorUpdate(LBFGS, 0.5)),
]
MEAN_FIELD = [
    slow(pvi.VariationalUpdate(optimiser=pvi.VariationalOnlineNewton())),
    slow(pvi.AveragingUpdate(0.5, pvi.VariationalUpdate())),
    pvi.DownpourUpdate(sync=2),
    pvi.ElasticUpdate(sync=2),
]


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: type(rule).__name__)
def test_rules_that_are_exact_find_the_exact_posterior(rule):
    testing.check_update_rule(rule, tolerance=1e-5)


@pytest.mark.parametrize("rule", SAMPLED_AND_APPROXIMATE, ids=lambda rule: type(rule).__name__)
def test_other_rules_answer_as_the_loop_expects(rule):
    testing.check_update_rule(rule)


@pytest.mark.parametrize("rule", MEAN_FIELD, ids=lambda rule: type(rule).__name__)
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
        slow(Unseeded(3, optimise_locations=False), "one state and one seed lead to one result"),
        slow(Forgetful(4, budget=8), "12 points keep a budget of 8"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)  # fmt: skip
def test_strategies_that_break_the_contract_are_found(strategy, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_pseudo_points(strategy)


# ---- parts of one's own ----


@storable
@dataclass(frozen=True)
class DeterministicTraining(SparseBound):
    """The energy of DTC: f at the data is what the points say it is, without the trace term."""

    def free_energy(self, f):
        q = f.posterior()
        return f.expected_log_likelihood(q.mean, q.variance - q.left) - q.kl


@eager
def test_one_batch_has_the_dtc_energy(rng):
    """``log N(y; m, Q + σ² I)`` (Quiñonero-Candela & Rasmussen 2005, section 5)."""
    X, Y = smooth_data(rng, 20)
    points = sgp.PrivatePseudoPoints(6, optimise_locations=False)
    fitted = known_model(points, bound=DeterministicTraining())
    info = fitted.update((X, Y))
    Z = fitted.factors[info.batch_id].Z
    K_bb = fitted.kernel(Z).numpy() + info.nugget * np.eye(len(Z))
    K_bf = fitted.kernel(Z, X).numpy()
    C = K_bf.T @ np.linalg.solve(K_bb, K_bf) + NOISE * np.eye(len(X))
    centred = (Y - 2.0)[:, 0]
    quadratic = centred @ np.linalg.solve(C, centred)
    energy = -0.5 * (quadratic + np.linalg.slogdet(C)[1] + len(X) * np.log(2.0 * np.pi))
    assert info.free_energy == pytest.approx(energy, rel=THROUGH_CHOLESKY)
    assert isinstance(fitted.settings.bound, LocalBound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "labels"])
def test_a_bound_that_says_the_same_is_fitted_alike(rng, name):
    """Nothing is known of it: TensorFlow differentiates it."""
    batches = [smooth_data(rng, 20) if name == "regression" else labelled(rng, 20)] * 2
    found = []
    for bound in (Variational(), BoundOfOnesOwn()):
        make = gpflow.likelihoods.Gaussian if name == "regression" else gpflow.likelihoods.Bernoulli
        fitted = known_model(
            sgp.PrivatePseudoPoints(4), make(), sgp.PointHyperparameters(), bound=bound
        )
        infos = [fitted.update(batch) for batch in batches]
        found.append([*(info.free_energy for info in infos), *fitted.predict_f(batches[0][0])])
    assert_same_arrays(*found, PREDICTIONS_AT_OPTIMUM)


@storable
@dataclass(frozen=True)
class KMeansPoints(sgp.OwnPseudoPoints):
    """Points that start at the centres of clusters of the inputs."""

    def place(self, candidates):
        number = min(self.number, len(candidates.inputs))
        return KMeans(number, n_init=1, random_state=0).fit(candidates.inputs).cluster_centers_


STILL = KMeansPoints(4, optimise_locations=False)


def own_model(**options):
    options.setdefault("hyperparameters", sgp.VariationalHyperparameters(num_samples=2))
    return regressor(**options)


def test_points_start_where_the_strategy_says(rng):
    X, Y = smooth_data(rng, 20)
    fitted = own_model(pseudo_points=STILL)
    fitted.update((X, Y), learn=False)
    centres = KMeans(4, n_init=1, random_state=0).fit(X).cluster_centers_
    np.testing.assert_array_equal(fitted.factors["batch-0"].Z, centres)
    assert isinstance(STILL, PseudoPointStrategy)


def test_what_no_points_can_be_made_of_is_refused():
    with pytest.raises(InvalidDataError, match="positive integer, got 0"):
        KMeansPoints(0)
    with pytest.raises(InvalidDataError, match="budget must hold at least twice"):
        KMeansPoints(4, budget=7)
    with pytest.raises(TypeError, match="abstract"):
        sgp.OwnPseudoPoints(4)


@storable
@dataclass(frozen=True, eq=False)
class OwnNormal(expfam.Normal):
    """Gaussians with full covariance, by another name."""


def streamed(strategy):
    fitted, rng = own_model(pseudo_points=STILL, hyperparameters=strategy), np.random.default_rng(5)
    for _ in range(2):
        fitted.update(smooth_data(rng, 20))
    return fitted


@pytest.mark.slow
def test_a_family_of_ones_own_is_the_family_that_it_is(tmp_path):
    own, known = (
        streamed(sgp.VariationalHyperparameters(num_samples=2, **options))
        for options in ({"family": OwnNormal}, {"full_covariance": True})
    )
    assert type(own.hyperparameter_posterior) is OwnNormal
    assert_same_arrays(*(one.hyperparameter_posterior.natural for one in (own, known)), 0.0)
    assert_it_continues(own, tmp_path)


@pytest.mark.slow
def test_one_width_for_all_hyperparameters_is_a_family_too(tmp_path):
    family = expfam.IsotropicNormal
    fitted = streamed(sgp.VariationalHyperparameters(num_samples=2, family=family))
    q, prior = fitted.hyperparameter_posterior, fitted.prior().hyperparameters
    assert q.precision > prior.precision
    assert fitted.revisit("batch-0", smooth_data(np.random.default_rng(5), 20)).damping == 1.0
    assert_it_continues(fitted, tmp_path)


def assert_it_continues(fitted, folder):
    fresh = own_model()
    fitted.save(folder / "stream.npz")
    loaded = sgp.StreamingGP.load(folder / "stream.npz", fresh.kernel, fresh.likelihood)
    batch = smooth_data(np.random.default_rng(6), 20)
    for each in (fitted, loaded):
        each.update(batch)
    assert same(loaded.state, fitted.state)
    np.testing.assert_array_equal(*(predicted(each, batch[0])[1] for each in (fitted, loaded)))


@pytest.mark.slow
def test_a_bound_and_a_strategy_of_ones_own_serve_a_stream():
    testing.check_local_bound(DeterministicTraining())
    testing.check_pseudo_points(KMeansPoints(4, budget=9))
