"""Gaussian processes whose batches are clients of a server."""

import pickle
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import bnn, engines, expfam, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.gp import PseudoPointFactor
from tests.oracles.builders import (
    EVERY_INPUT,
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
from tests.tolerances import THROUGH_CHOLESKY

CONVERGED = 1e-3
"""What is left between two schedules near their common fixed point, in units of f."""
SCHEDULES = {
    "sequential": pvi.Sequential(),
    "synchronous": pvi.Synchronous(damping=1.0),
    "asynchronous": pvi.Asynchronous(damping=1.0, durations=1.0),
}


def server_of(gp, shards, **options):
    return pvi.Server(gp.prior(), pvi.make_clients(gp, shards, update=sgp.GPUpdate()), **options)


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


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.ray
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
    return regressor(pseudo_points=sgp.PrivatePseudoPoints(3), **options)


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


def wrong_family(factor):
    natural = np.zeros(4), np.eye(4)
    return replace(factor, hyperparameters=expfam.Factor(expfam.Normal, natural))


def improper(factor):
    precision_mean, precision = factor.hyperparameters.natural
    natural = precision_mean, precision - 1e6
    return replace(factor, hyperparameters=expfam.Factor(expfam.MeanFieldNormal, natural))


HOSTILE = {
    "text": (lambda factor: "text", "got a str"),
    "not finite": (
        lambda f: spoiled(f, precision_factor=np.full((1, 3, 3), np.nan)),
        "not finite",
    ),
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
    honest = server.clients["client-0"]
    factor = server.factors["client-1"]
    answer = pvi.LocalResult(
        spoil(factor),
        client_id="client-1",
        sequence=ask.sequence,
        version=ask.version,
        num_data=honest.num_data,
        nonce=ask.nonce,
    )
    outcome = server.accept([answer], pvi.Damping(1.0, 3))
    assert message in outcome.refused["client-1"]
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
    X = np.linspace(-3.0, 3.0, 90)[:, None]
    shards = {f"c{k}": (X[k::3], np.sin(2.0 * X[k::3])) for k in range(3)}  # of one region

    gp = known_model(sgp.PrivatePseudoPoints(3))

    def streamed(again):
        clients = pvi.make_clients(gp, shards, sgp.GPUpdate(keep_points=False))
        server = pvi.Server(gp.prior(), clients)
        gp.adopt(run(server, pvi.Arrivals([list(shards)], again)).ledger)
        places = np.concatenate([factor.Z for factor in gp.factors.values()])
        gaps = np.diff(np.sort(places[:, 0]))
        return gaps.min(), np.sqrt(np.mean((predicted(gp, X)[0] - np.sin(2.0 * X)) ** 2))

    (near, worse), (apart, better) = streamed(False), streamed(True)
    assert apart > 5.0 * near
    assert better < 0.7 * worse


def test_points_stay_unless_told_otherwise(few):
    gp = known_model(sgp.PrivatePseudoPoints(3))

    def places(**options):
        clients = pvi.make_clients(gp, thirds(*few), sgp.GPUpdate(**options))
        server = run(pvi.Server(gp.prior(), clients), pvi.Sequential())
        before = {name: factor.Z for name, factor in server.factors.items()}
        run(server, pvi.Sequential())
        return [np.array_equal(before[name], f.Z) for name, f in server.factors.items()]

    assert all(places())
    assert not any(places(keep_points=False))
