"""Gaussian processes whose batches are clients of a server."""

import pickle
import warnings
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp import bnn, engines, expfam, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError, PrivacyWarning
from streaming_gp.gp import DataObservations, Process, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.structure import SMALLEST_NOISE
from tests.laws import eager
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    QUICK,
    assert_same_arrays,
    assert_same_predictions,
    exact_gp,
    known_model,
    predicted,
    regressor,
    thirds,
)
from tests.oracles.reference import smooth_data
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

CONVERGED = 1e-3
"""What is left between two schedules near their common fixed point, in units of f."""
SCHEDULES = {
    "sequential": pvi.Sequential(),
    "synchronous": pvi.Synchronous(damping=1.0),
    "asynchronous": pvi.Asynchronous(damping=1.0, durations=1.0),
}


def server_of(gp, shards, **options):
    return pvi.Server(gp.prior(), pvi.make_clients(gp, shards, sgp.GPUpdate(**options)))


def run(server, schedule, rounds=1, engine=None):
    history = pvi.fit(server, schedule, rounds, engine or engines.Serial())
    assert not history[-1].failed
    assert not history[-1].refused
    return server


@pytest.fixture(scope="module")
def few():
    return smooth_data(np.random.default_rng(3), 30)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_point_at_every_input_is_the_exact_gp_on_all_data(few, new_inputs, name):
    gp = known_model(EVERY_INPUT)
    gp.adopt(run(server_of(gp, thirds(*few)), SCHEDULES[name]).ledger)
    assert_same_predictions(gp, exact_gp(few), new_inputs)


def test_it_is_said_that_an_answer_holds_data_and_as_an_error_nothing_is_sent(few):
    def answered(points):
        return run(server_of(known_model(points), thirds(*few)), pvi.Synchronous(1.0), 1)

    with pytest.warns(PrivacyWarning, match="answer holds its inputs and targets"):
        answered(EVERY_INPUT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        assert len(answered(FirstInputs(5, optimise_locations=False)).factors) == 3
        with pytest.raises(NoAnswerError, match="answer holds its inputs and targets"):
            answered(EVERY_INPUT)


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.xdist_group("one cluster")
@pytest.mark.usefixtures("cluster")
def test_clients_of_a_cluster_are_the_exact_gp_on_all_data(few, new_inputs):
    gp = known_model(EVERY_INPUT)
    gp.adopt(run(server_of(gp, thirds(*few)), pvi.Synchronous(1.0), 1, engines.Ray()).ledger)
    assert_same_predictions(gp, exact_gp(few), new_inputs)


def test_one_sequential_round_is_the_stream_of_its_batches(few, new_inputs):
    """But for the random numbers, of which known hyperparameters need none."""
    gp, shards = known_model(sgp.PrivatePseudoPoints(4)), thirds(*few)
    served = run(server_of(gp, shards), pvi.Sequential()).ledger
    for name, shard in shards.items():
        gp.update(shard, batch_id=name)
    streamed = [predicted(gp, new_inputs), gp.predict_f(new_inputs, True)]
    gp.adopt(served)
    for full_cov, wanted in enumerate(streamed):
        assert_same_arrays(gp.predict_f(new_inputs, bool(full_cov)), wanted, THROUGH_CHOLESKY)
    assert gp.num_updates == 3


# ---- with a distribution over hyperparameters ----


@dataclass(frozen=True)
class FirstInputs(sgp.OwnPseudoPoints):
    """Points that no cavity has a say in."""

    def place(self, candidates):
        return candidates.inputs[: self.number]


def learning_gp(**options):
    return regressor(
        pseudo_points=FirstInputs(5, optimise_locations=False),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=4),
        optimiser=sgp.LocalOptimiser(max_iterations=50),
        **options,
    )


@pytest.mark.slow
def test_schedules_agree_where_they_converge(new_inputs):
    """Rounds come nearer by a constant factor each: 0.2 and 0.6 for these two halves."""
    X, Y = smooth_data(np.random.default_rng(3), 40)
    halves = {"even": (X[::2], Y[::2]), "odd": (X[1::2], Y[1::2])}
    gps = []
    for schedule, rounds in ((pvi.Sequential(), 6), (pvi.Synchronous(damping=0.7), 14)):
        gp = learning_gp()
        gp.adopt(run(server_of(gp, halves), schedule, rounds).ledger)
        gps.append(gp)
    assert_same_predictions(*gps, new_inputs, CONVERGED)


@pytest.fixture(scope="module")
def learned(few):
    """A server after one round, and its clients' data."""
    return run(server_of(short_gp(), thirds(*few)), pvi.Synchronous()), thirds(*few)


def short_gp(**options):
    options.setdefault("hyperparameters", sgp.VariationalHyperparameters(num_samples=2))
    few = sgp.LocalOptimiser(max_iterations=3)
    return regressor(pseudo_points=sgp.PrivatePseudoPoints(3), optimiser=few, **options)


def test_a_server_goes_on_from_a_file_bit_for_bit(learned, tmp_path):
    server, shards = learned
    server.save(tmp_path / "server.npz")
    other = short_gp()
    loaded = pvi.Server.load(
        tmp_path / "server.npz", other.prior(), server_of(other, shards).clients
    )
    for each in (server, loaded):
        run(each, pvi.Synchronous())
    assert same(dict(loaded.factors), dict(server.factors))
    assert same(loaded.posterior, server.posterior)
    assert loaded.version == server.version


def test_a_client_that_has_travelled_answers_the_same(learned):
    server, _ = learned
    client = server.clients["client-0"]
    ask = server.ask("client-0")
    answers = [each.answer(ask) for each in (client, pickle.loads(pickle.dumps(client)))]
    assert same(*(answer.factor for answer in answers))


def spoiled(factor, **changes):
    (observations,) = factor.pseudo_observations
    return replace(factor, pseudo_observations=(replace(observations, **changes),))


def answer_to(ask, server, factor):
    return pvi.LocalResult(
        factor, client_id="client-1", sequence=ask.sequence, version=ask.version,
        num_data=server.clients["client-1"].num_data, nonce=ask.nonce,
    )  # fmt: skip


def wrong_family(factor):
    natural = np.zeros(4), np.eye(4)
    return replace(factor, hyperparameters=expfam.Factor(expfam.Normal, natural))


def improper(factor):
    precision_mean, precision = factor.hyperparameters.natural
    natural = precision_mean, precision - 1e6
    return replace(factor, hyperparameters=expfam.Factor(expfam.MeanFieldNormal, natural))


HOSTILE = {
    "text": (lambda factor: "text", "got a str"),
    "not finite": (lambda f: spoiled(f, precision_factor=np.full((1, 3, 3), np.nan)), "not finite"),
    "shapes": (
        lambda f: spoiled(f, pseudo_targets=np.zeros((1, 9, 1))),
        "not finite arrays of matching shapes",
    ),
    "not square": (
        lambda f: spoiled(f, precision_factor=np.zeros((1, 3, 9))),
        "not finite arrays of matching shapes",
    ),
    "nugget": (lambda f: spoiled(f, nugget=-1.0), "not finite arrays"),
    "no ε": (lambda f: replace(f, hyperparameters=None), "only one of process and factor"),
    "another family": (wrong_family, "no factor of the family MeanFieldNormal"),
    "improper": (improper, "improper"),
    "infinite": (lambda f: replace(f, log_scale=np.inf), "log constant is inf"),
    "nothing": (lambda f: PseudoPointFactor(()), "only one of process and factor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_refused_and_changes_nothing(learned, name):
    server, _ = learned
    spoil, message = HOSTILE[name]
    before, ask = server.ledger, server.ask("client-1")
    answer = answer_to(ask, server, spoil(server.factors["client-1"]))
    outcome = server.accept([answer], pvi.Damping(1.0, 3))
    assert message in outcome.refused["client-1"]
    assert server.ledger is before


def test_an_answer_of_data_weighs_no_more_than_the_data_of_its_client(few):
    server = run(server_of(known_model(EVERY_INPUT), thirds(*few)), pvi.Synchronous())
    before, ask = server.ledger, server.ask("client-1")
    heavy = spoiled(server.factors["client-1"], weights=np.full(10, 1.01))
    answer = answer_to(ask, server, heavy)
    outcome = server.accept([answer], pvi.Damping(1.0, 3))
    assert "weight of 10.1 data, at most 10" in outcome.refused["client-1"]
    assert server.ledger is before


def test_a_model_that_adopts_a_ledger_goes_on_with_it(learned, tmp_path):
    server, shards = learned
    gp = short_gp(journal=tmp_path / "journal")
    gp.adopt(server.ledger)
    assert list(gp.factors) == list(shards)
    np.testing.assert_array_equal(
        gp.parameter_vector.value(), np.asarray(server.posterior.hyperparameters.mean)
    )
    gp.update(shards["client-0"], batch_id="again")
    gp.revisit("client-1", shards["client-1"])
    again = short_gp()
    resumed = sgp.StreamingGP.resume(tmp_path / "journal", again.kernel, again.likelihood)
    assert same(resumed.state, gp.state)
    np.testing.assert_array_equal(*(predicted(m, shards["client-0"][0])[0] for m in (gp, resumed)))


def test_a_ledger_of_another_model_is_not_adopted(learned):
    server, _ = learned
    for gp in (known_model(EVERY_INPUT), short_gp(hyperparameters=FULL)):
        with pytest.raises(InvalidDataError, match="wanted a ledger of a"):
            gp.adopt(server.ledger)
        assert not gp.factors
    gp, stranger = short_gp(), pvi.Ledger(short_gp().prior()).replaced("a", PseudoPointFactor(()))
    with pytest.raises(InvalidDataError, match="factor 'a' is none of this model"):
        gp.adopt(stranger)


FULL = sgp.VariationalHyperparameters(full_covariance=True)
REFUSED = {
    "point hyperparameters": ({"hyperparameters": sgp.PointHyperparameters()}, "point hyperp"),
    "shared points": ({"pseudo_points": sgp.SharedPseudoPoints(3)}, "got SharedPseudoPoints"),
    "conditional points": (
        {"pseudo_points": sgp.ConditionalPseudoPoints(3)},
        "later factors rest on",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_strategies_whose_factors_rest_on_one_another_are_refused(few, name):
    options, message = REFUSED[name]
    server = server_of(regressor(**options), thirds(*few))
    ask = server.ask("client-0")
    with pytest.raises(InvalidDataError, match=message):
        server.clients["client-0"].answer(ask)
    with pytest.raises(NoAnswerError, match=message):
        pvi.fit(server, pvi.Synchronous(), 1)
    assert set(server.history[-1].failed) == set(server.clients)


def test_the_rule_is_for_gaussian_processes_alone(few):
    net = bnn.MeanFieldBNN([2, 1], gpflow.likelihoods.Gaussian())
    server = pvi.Server(net.prior(), pvi.make_clients(net, thirds(*few), sgp.GPUpdate()))
    with pytest.raises(NoAnswerError, match="clients of a StreamingGP, got a MeanFieldBNN"):
        pvi.fit(server, pvi.Synchronous(), 1)


def test_batches_that_come_at_once_and_are_asked_again_spend_their_points_on_different_inputs():
    X = np.c_[np.linspace(-3.0, 3.0, 45), np.zeros(45)]
    Y = np.sin(2.0 * X[:, :1])
    shards = thirds(X, Y)  # of one region
    gp = known_model(sgp.PrivatePseudoPoints(3), optimiser=QUICK)

    def streamed(again):
        server = server_of(gp, shards, keep_points=False)
        gp.adopt(run(server, pvi.Arrivals([list(shards)], again)).ledger)
        places = np.concatenate([factor.Z for factor in gp.factors.values()])
        gaps = np.diff(np.sort(places[:, 0]))
        return gaps.min(), np.sqrt(np.mean((predicted(gp, X)[0] - Y) ** 2))

    (near, worse), (apart, better) = streamed(False), streamed(True)
    assert apart > 5.0 * near
    assert better < 0.7 * worse


def test_points_stay_unless_told_otherwise(few):
    gp = known_model(sgp.PrivatePseudoPoints(3), optimiser=QUICK)

    def places(**options):
        server = run(server_of(gp, thirds(*few), **options), pvi.Sequential())
        before = {name: factor.Z for name, factor in server.factors.items()}
        run(server, pvi.Sequential())
        return [np.array_equal(before[name], f.Z) for name, f in server.factors.items()]

    assert all(places())
    assert not any(places(keep_points=False))


LEARNED = pvi.LikelihoodParameters()


def model(hyperparameters=FIXED, likelihood=None, noise=0.5, columns=1):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=0.7),
        likelihood or gpflow.likelihoods.Gaussian(noise), gpflow.functions.Constant(0.3),
        pseudo_points=EVERY_INPUT, hyperparameters=hyperparameters, num_latent_gps=columns,
    )  # fmt: skip


def data_of(rng, size, columns=1):
    X = rng.uniform(-3.0, 3.0, (size, 1))
    phases = np.arange(columns)
    return X, 1.0 + np.sin(2.0 * X + phases) + 0.2 * rng.standard_normal((size, columns))


def exact(data, noise=0.5):
    """GPflow's exact regression, at the hyperparameters that models start from."""
    kernel = gpflow.kernels.SquaredExponential(variance=0.7)
    likelihood = gpflow.likelihoods.Gaussian(noise, variance_lower_bound=SMALLEST_NOISE)
    return gpflow.models.GPR(data, kernel, gpflow.functions.Constant(0.3), likelihood=likelihood)


def free_energy(gp, q, shards):
    """Value and gradient by ε: a term of each client, and the prior's."""
    terms = [gp.data_term_by_hyperparameters(q, shard) for shard in shards.values()]
    terms.append(gp.prior_term_by_hyperparameters(q))
    return sum(one.value for one in terms), sum(one.gradient for one in terms)


def exact_factor(X, Y, noise=0.5):
    """The likelihood of Gaussian noise, as pseudo-observations of f at X."""
    root = np.eye(len(X)) / np.sqrt(noise)
    return PseudoObservations(X, root[None], (root @ Y)[None], 0.0)


def data_factor(X, Y):
    """The same as the data themselves, whose noise is that of ε."""
    nothing = np.zeros((len(X), 0))
    return DataObservations(X, Y, np.ones(len(X)), nothing, nothing, 1)


@eager
@pytest.mark.parametrize("factor", [exact_factor, data_factor])
def test_terms_of_clients_and_of_the_prior_add_up_to_the_log_evidence_and_its_gradient(rng, factor):
    """Where q is the exact posterior F is the log evidence, and q need not move with ε. One of the
    hyperparameters has a prior of its own.
    """
    data = data_of(rng, 9, columns=2)
    gp, shards, oracle = model(columns=2), thirds(*data), exact(data)
    q = Process(tuple(factor(*shard) for shard in shards.values()))
    for kernel in (gp.kernel, oracle.kernel):
        kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(3.0), np.float64(2.0))
    value, gradient = free_energy(gp, q, shards)
    with tf.GradientTape() as tape:
        log_evidence = oracle.log_posterior_density()
    variables = [
        oracle.kernel.lengthscales, oracle.kernel.variance, oracle.likelihood.variance,
        oracle.mean_function.c,
    ]  # fmt: skip
    wanted = tape.gradient(log_evidence, [one.unconstrained_variable for one in variables])
    assert value == pytest.approx(float(log_evidence), abs=THROUGH_CHOLESKY)
    np.testing.assert_allclose(gradient, np.ravel(wanted), atol=THROUGH_CHOLESKY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "noise"),
    [(pvi.Sequential(), 3.0), (pvi.Synchronous(), 0.003), (pvi.Asynchronous(), 3.0)],
)
def test_what_is_learned_is_most_likely_whatever_the_schedule(rng, schedule, noise):
    data = data_of(rng, 45)
    oracle, gp = exact(data, noise), model(noise=noise)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    server = server_of(gp, thirds(*data))
    history = pvi.fit(server, schedule, 28, hyperparameters=LEARNED)
    assert not any(one.refused or one.failed for one in history)
    for mine, best in (
        (gp.kernel.lengthscales, oracle.kernel.lengthscales),
        (gp.kernel.variance, oracle.kernel.variance),
        (gp.likelihood.variance, oracle.likelihood.variance),
        (gp.mean_function.c, oracle.mean_function.c),
    ):
        assert mine.numpy() == pytest.approx(best.numpy(), rel=0.01)
    before = gp.parameter_vector.value()
    gp.adopt(server.ledger)
    np.testing.assert_array_equal(gp.parameter_vector.value(), before)
    assert history[-1].metrics["gradient_norm"] < 1e-3


@pytest.mark.slow
def test_with_another_likelihood_it_is_the_gradient_of_what_a_fit_reaches(rng):
    """The free energy of a fit at ε, by differences: q is at its optimum, and need not move."""
    X, Y = data_of(rng, 20)
    data, step = (X, (Y > 1.0).astype(float)), 1e-3
    gp = model(likelihood=gpflow.likelihoods.Bernoulli())
    start = gp.parameter_vector.value()

    def reached(epsilon):
        gp.parameter_vector.assign(epsilon)
        energy = gp.update(data, batch_id="all").free_energy
        q = gp.posterior_process
        gp.remove("all")
        return energy, q

    energy, q = reached(start)
    value, gradient = free_energy(gp, q, {"all": data})
    assert value == pytest.approx(energy, abs=1e-4)
    wanted = [
        (reached(start + h)[0] - reached(start - h)[0]) / (2.0 * step)
        for h in step * np.eye(len(start))
    ]
    np.testing.assert_allclose(gradient, wanted, atol=0.01)


def test_factors_that_speak_of_epsilon_are_no_point(rng):
    shards = thirds(*data_of(rng, 6))
    gp = model(sgp.VariationalHyperparameters())
    for term in (
        lambda: gp.data_term_by_hyperparameters(gp.prior(), shards["client-0"]),
        lambda: gp.prior_term_by_hyperparameters(gp.prior()),
    ):
        with pytest.raises(InvalidDataError, match=r"wants a model with FixedHyperparameters\(\)"):
            term()


def test_a_model_without_trainable_parameters_has_nothing_to_learn(rng):
    gp = model()
    gpflow.set_trainable(gp, False)
    with pytest.raises(InvalidDataError, match="no trainable_variables to learn"):
        pvi.fit(server_of(gp, thirds(*data_of(rng, 6))), hyperparameters=LEARNED)


@pytest.fixture
def five_sites(data):
    X, Y = data
    slices = np.array_split(np.argsort(X[:, 0]), 5)
    return {f"site-{number}": (X[rows], Y[rows]) for number, rows in enumerate(slices)}


def test_with_a_point_at_every_input_one_pass_is_the_exact_gp(data, five_sites, new_inputs):
    together = known_model(EVERY_INPUT)
    together.synchronous_round(five_sites, damping=1.0)
    assert_same_predictions(together, exact_gp(data), new_inputs, ALGEBRA, (False,))


def test_synchronous_rounds_refuse_what_they_cannot_do(five_sites):
    still = {"optimise_locations": False}
    own = sgp.PrivatePseudoPoints(5, **still)
    for refused, message in (
        (known_model(sgp.SharedPseudoPoints(5)), "need pseudo-points of their own, got Shared"),
        (known_model(sgp.ConditionalPseudoPoints(5)), "of their own, got Conditional"),
        (known_model(sgp.PrivatePseudoPoints(5, budget=20, **still)), "no room .* 25 of a budget"),
        (known_model(sgp.PrivatePseudoPoints("all", budget=60)), "merges batches"),
        (known_model(own, hyperparameters=sgp.PointHyperparameters()), "differ in point hyperp"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            refused.synchronous_round(five_sites)
        assert not refused.factors
    willing = known_model(own)
    with pytest.raises(InvalidDataError, match="at least one shard"):
        willing.synchronous_round({})
    X, Y = five_sites["site-0"]
    with pytest.raises(InvalidDataError, match=r"X must have shape \[N, 2\].*got \[18, 1\]"):
        willing.synchronous_round({"a": (X, Y), "b": (X[:, :1], Y)})
    assert not willing.factors


def test_shards_of_a_round_have_random_numbers_of_their_own(few):
    """Data that differ by next to nothing say by more another thing of ε."""
    (X, Y), fitted = few, short_gp()
    fitted.synchronous_round({"a": (X, Y), "b": (X + 1e-12, Y), "c": (X - 1e-12, Y)})
    a, b, c = (one.hyperparameters.natural[0] for one in fitted.factors.values())
    assert min(np.abs(one - other).max() for one, other in ((a, b), (b, c), (c, a))) > 1e-3
