"""Every built-in local bound passes the check that those of one's own are checked by."""

from dataclasses import dataclass

import pytest
import tensorflow as tf

from streaming_gp import testing
from streaming_gp.gp import Conditional, Exact, PowerEP, Variational
from streaming_gp.serialization import storable

BOUNDS = [Variational(), PowerEP(0.5), PowerEP(1.0), Exact(), Conditional()]


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_bounds_serve_local_fits(bound):
    testing.check_local_bound(bound)


@storable
@dataclass(frozen=True)
class Halved(Variational):
    """Counts the data half."""

    def expected(self, local, data, sites, c, problem):
        return 0.5 * super().expected(local, data, sites, c, problem)


@storable
@dataclass(frozen=True)
class Stopped(Variational):
    """Its gradient is half of what it should be."""

    def expected(self, local, data, sites, c, problem):
        value = super().expected(local, data, sites, c, problem)
        return 0.5 * (value + tf.stop_gradient(value))


@dataclass(frozen=True)
class Unregistered(Variational):
    pass


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (object(), "all methods of streaming_gp.gp.LocalBound"),
        (Unregistered(), "Unregistered is registered by streaming_gp.serialization.storable"),
        (Halved(), "the free energy is the log evidence"),
        pytest.param(Stopped(), "is that which finite differences find", marks=pytest.mark.slow),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_bounds_that_break_the_contract_are_found(bound, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_local_bound(bound)
