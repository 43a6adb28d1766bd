"""Every built-in pseudo-point strategy passes the check that those of one's own are checked by."""

from dataclasses import dataclass

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import testing
from streaming_gp.serialization import storable

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
class Unregistered(FirstInputs):
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
        (Unregistered(3), "Unregistered is registered by streaming_gp.serialization.storable"),
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
