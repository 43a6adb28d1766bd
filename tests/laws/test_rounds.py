"""What a run counts, costs, and replays, and when it stops."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, plotting, pvi
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Factor, MeanFieldNormal
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
)
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


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


@pytest.mark.parametrize(
    "rule",
    [
        pvi.Damping(None, NUM_CLIENTS), pvi.OpinionPool(), pvi.Momentum(), pvi.FedAvg(0.1),
        pvi.FedAdam(), pvi.MaskedAveraging(), pvi.ServerAdam(),
    ],
    ids=lambda rule: type(rule).__name__,
)  # fmt: skip
def test_all_factors_of_a_round_enter_one_new_ledger(second_round, monkeypatch, rule):
    found, answers = second_round
    made, init = [], pvi.Ledger.__init__

    def counting(self, *arguments, **settings):
        made.append(self)
        init(self, *arguments, **settings)

    monkeypatch.setattr(pvi.Ledger, "__init__", counting)
    before = {name: np.asarray(factor.natural[0]) for name, factor in found.factors.items()}
    outcome = found.accept(answers, rule, progress=0.5)
    assert outcome.accepted == NUM_CLIENTS
    assert made == [found.ledger]
    assert not any(np.array_equal(found.factors[name].natural[0], before[name]) for name in before)


RULE = pvi.VariationalUpdate(epochs=3, batch_size=7, learning_rate=0.05)


def test_peers_go_where_sequential_pvi_goes_visit_by_visit(rng):
    """With a rule that draws minibatches, and with damping."""
    model = linear.logistic_regression(3)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, RULE), seed=4)
    peers = pvi.make_peers(model, shards, RULE, damping=0.7, seed=4)
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
