"""What a synchronous round costs at the server grows with the number of its answers, not faster."""

import numpy as np
import pytest

from streaming_gp import linear, pvi
from streaming_gp.expfam import ExponentialFamily, MeanFieldNormal
from tests.oracles.reference import regression_data, server

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
