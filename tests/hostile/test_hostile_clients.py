"""Broken and hostile clients: what they answer is refused, and the others go on."""

import re
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest

from streaming_gp import bnn, datasets, metrics, mixture, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError, NumericalError
from streaming_gp.expfam import Factor, Normal, Renyi
from streaming_gp.pvi.guards import FailedError, checks_of, read
from streaming_gp.pvi.task import describe, encode_answer, failure_of, means_a_misfit
from tests.oracles.reference import assert_same, conjugate_model, regression_data, server
from tests.tolerances import ALGEBRA


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
        lambda factor: Factor(factor.family, (factor.natural[0] + 1e6, factor.natural[1])),
        "standard deviations",
    ),
    "negative": (scaled(-1.0), r"takes away .* begin elsewhere \(Server.warm_start\)"),
}


@pytest.mark.parametrize("name", POISONS)
def test_a_spoiled_answer_is_refused_and_the_others_go_on(rng, name):
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 4)
    clients = pvi.make_clients(model, shards, pvi.AnalyticUpdate())
    how, message = POISONS[name]
    clients["c1"] = replace(clients["c1"], update=Spoiled(pvi.AnalyticUpdate(), how))
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, pvi.Synchronous(damping=1.0), 2)
    assert set(history[-1].refused) == {"c1"}
    assert re.search(message, history[-1].refused["c1"])
    honest = pvi.Server(model.prior(), {k: c for k, c in clients.items() if k != "c1"})
    pvi.fit(honest, pvi.Synchronous(damping=1.0), 2)
    assert_same(found.posterior, honest.posterior, ALGEBRA)


def wide(factor):
    natural = tuple(np.asarray(eta, np.float64) for eta in factor.natural)
    return Factor(factor.family, natural)


def test_an_answer_in_wider_numbers_leaves_the_others_theirs(rng):
    """Nor does a start in wider ones: a network of float32 cannot be fitted under float64."""
    X = rng.standard_normal((20, 2))
    net = bnn.MeanFieldBNN([2, 3, 1], gpflow.likelihoods.Gaussian(0.1))
    rule = pvi.VariationalUpdate(batch_size=None)
    clients = pvi.make_clients(net, [(X, X[:, :1])] * 2, rule)
    clients["c1"] = replace(clients["c1"], update=Spoiled(rule, wide))
    found = pvi.Server(net.prior(), clients)
    found.warm_start(wide(net.initial(0).as_factor()).normalised())
    history = pvi.fit(found, rounds=2)
    assert [one.accepted for one in history] == [2, 2]
    assert found.posterior.precision.dtype == np.float32


def test_limits_are_the_server_s_or_the_model_s_or_the_rule_s(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    lax, clutter = pvi.Checks(max_shift=np.inf), mixture.ClutterModel(mixture.Clutter([[1.0]]), 1.0)

    def limits(model, data, rule, checks=None):
        return checks_of(server(model, [data], rule).clients["c0"], checks)

    natural = pvi.FixedPointUpdate()
    assert limits(model, (X, Y), natural).max_precision_loss == 1e-3
    assert limits(model, (X, Y), pvi.FixedPointUpdate(divergence=Renyi(0.5))) == pvi.Checks()
    assert limits(model, (X, Y), pvi.AnalyticUpdate()) == pvi.Checks()
    assert limits(model, (X, Y), pvi.StochasticNaturalGradientUpdate()) == pvi.NO_LIMITS
    assert limits(model, (X, Y), natural, checks=lax) == lax
    assert limits(clutter, (None, Y), natural) == clutter.checks


@dataclass(frozen=True)
class Late:
    """A rule that fails unless the ledger has changed before."""

    def __call__(self, task):
        if task.own is None and np.allclose(task.posterior.precision, task.model.prior().precision):
            raise NumericalError("too early")
        return pvi.AnalyticUpdate()(task)


def test_a_run_in_which_no_client_is_heard_warns_and_then_raises(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 5), Late())
    spoiled = Spoiled(pvi.AnalyticUpdate(), scaled(np.nan))
    clients["c3"] = replace(clients["c3"], update=spoiled)
    found = pvi.Server(model.prior(), clients)
    named = "'c0', 'c1', 'c2' and 1 more failed: NumericalError: too early; 'c3' was refused: "
    with (
        pytest.warns(UserWarning, match=f"no answer was accepted in round 1: {named}") as warned,
        pytest.raises(NoAnswerError, match=r"in any of 3 rounds.* in round 3: .*'c4'") as raised,
    ):
        pvi.fit(found, pvi.Synchronous(durations=1.0), 3)
    assert len(warned) == 1
    assert raised.value.reasons.keys() == clients.keys()
    assert "too early" in raised.value.reasons["c4"]
    assert [one.accepted for one in found.history] == [0, 0, 0]
    assert_same(found.posterior, found.prior, ALGEBRA)


def test_a_client_that_is_never_heard_is_named_once_while_others_are(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    clients["c1"] = replace(clients["c1"], update=Spoiled(pvi.AnalyticUpdate(), scaled(np.nan)))
    with pytest.warns(UserWarning, match="data of 'c1': its first 3 .* not finite") as warned:
        pvi.fit(pvi.Server(model.prior(), clients), rounds=6)
    assert len(warned) == 1


def test_a_client_that_is_never_heard_in_a_single_round_is_named_at_its_end(rng):
    """As where one pass over conjugate clients is all that is wanted, and one has large units."""
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 3)
    shards[1] = (1e5 * shards[1][0], shards[1][1])
    found = server(model, shards, pvi.AnalyticUpdate())
    said = "learned from the data of 'c1', .*prior precisions for each data point.*scale the inputs"
    with pytest.warns(UserWarning, match=said) as warned:
        pvi.fit(found, pvi.Sequential(), rounds=1)
    assert len(warned) == 1
    assert set(found.factors) == {"c0", "c2"}


def test_a_run_in_which_one_client_is_heard_once_goes_on(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 2), Late())
    found = pvi.Server(model.prior(), clients)
    with pytest.warns(UserWarning, match="round 1"):
        history = pvi.fit(
            found, pvi.Sequential(), 3, callback=lambda one: one.round == 1 and waken(found)
        )
    assert history.column("accepted") == [0, 2, 2]


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        (pvi.Synchronous(), 1),
        (pvi.Sequential(), 1),
        (pvi.Asynchronous(jitter=0.0), 1),
        (pvi.Synchronous(fraction=1 / 3, seed=2), 3),  # c2, c0, c1
    ],
)
def test_a_rule_that_does_not_fit_ends_the_run_once_all_clients_have_said_so(rng, schedule, rounds):
    """Averaging is for mean-field posteriors, and this one has a full covariance."""
    (X, Y), model = regression_data(rng), conjugate_model()
    rule = pvi.AveragingUpdate(1 / 3, pvi.VariationalUpdate())
    found = server(model, datasets.partition_iid(X, Y, 3), rule)
    with (
        pytest.warns(UserWarning, match="no answer was accepted in round 1"),
        pytest.raises(NoAnswerError, match=f"in any of {rounds} rounds.*got a Normal"),
    ):
        pvi.fit(found, schedule, 50)
    assert set().union(*(one.failed for one in found.history)) == set(found.clients)


def test_a_client_whose_rule_does_not_fit_ends_nothing_for_the_others(rng):
    """Also where it is the only one that the first round asks."""
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    averaging = pvi.AveragingUpdate(1 / 3, pvi.VariationalUpdate())
    clients["c2"] = replace(clients["c2"], update=averaging)
    found = pvi.Server(model.prior(), clients)
    with pytest.warns(UserWarning, match="round 1: 'c2' failed"):
        history = pvi.fit(found, pvi.Synchronous(fraction=1 / 3, seed=2), 4)
    assert len(history) == 4
    assert set(found.factors) == {"c0", "c1"}


@pytest.mark.parametrize(
    ("error", "is_misfit"), [(InvalidDataError("no"), True), (NumericalError("no"), False)]
)
def test_an_error_is_known_by_its_name_after_a_journey_as_well(error, is_misfit):
    for is_open in (True, False):  # with its text, and by its code alone
        message = encode_answer(failure_of(error, "c0", is_open, is_discreet=False))
        with pytest.raises(FailedError) as failed:
            read(pvi.Delivery("c0", message))
        assert (str(failed.value) == describe(error)) is is_open
        assert means_a_misfit(str(failed.value)) is is_misfit
    assert not means_a_misfit("no answer within 5 s")


def waken(server):
    """A posterior that is no longer the prior."""
    server.warm_start(Normal.from_mean_covariance(np.zeros(3), 0.5 * np.eye(3)).as_arrays())


def test_an_answer_counts_once(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    rule = pvi.Damping(0.5, 2)
    stale = found.ask("c0")
    fresh = found.ask("c0")
    answers = [found.clients["c0"].answer(ask) for ask in (stale, fresh)]
    outcome = found.accept(answers, rule)
    assert outcome.refused == {"c0": "question 0 is not open: answered before, or out of date"}
    assert outcome.accepted == 1
    assert list(found.factors) == ["c0"]
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


def test_an_answer_to_a_question_from_before_its_client_was_removed_is_refused(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    pvi.fit(found, pvi.Sequential())
    ask = found.ask("c1")
    answer = found.clients["c1"].answer(ask)
    found.remove("c1")
    assert "no such client" in found.accept([answer], pvi.Damping(None, 2)).refused["c1"]
    assert list(found.factors) == ["c0"]
