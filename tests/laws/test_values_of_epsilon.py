"""At how many values of ε a bound is averaged: more where little is known of many."""

from dataclasses import dataclass, field

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.hyperparameters import ParameterVector, num_uncertain
from tests.oracles.builders import EVERY_INPUT

DIMS = 19
SIZE = DIMS + 2


@dataclass(frozen=True)
class Recording(sgp.VariationalHyperparameters):
    """Writes down at how many values of ε a bound is averaged; a blank problem has the seed 0."""

    numbers: list = field(default_factory=list)

    def noise(self, size, seed, *rest):
        found = super().noise(size, seed, *rest)
        if seed and len(found) not in self.numbers[-1:]:
            self.numbers.append(len(found))
        return found


def stream(rng, number, noise, **settings):
    """A model of data that depend on one input of many."""
    X = rng.standard_normal((number, DIMS))
    Y = X[:, :1] + noise * rng.standard_normal((number, 1))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(DIMS, DIMS**0.5))
    settings = {"pseudo_points": EVERY_INPUT, "seed": 0} | settings
    model = sgp.StreamingGP(kernel, gpflow.likelihoods.Gaussian(0.1), **settings)
    return model, model.update((X, Y))


def test_the_default_is_eight_and_more_where_little_is_known_of_more():
    default, four = sgp.VariationalHyperparameters(), sgp.VariationalHyperparameters(num_samples=4)
    assert len(default.noise(SIZE, 0)) == 8
    assert len(default.noise(SIZE, 0, full=False)) == len(default.noise(3, 0, False, 3.0)) == 4
    assert len(default.noise(SIZE, 0, True, 8.0)) == 8
    assert len(default.noise(SIZE, 0, False, 8.1)) == SIZE + 1  # pairs
    assert len(four.noise(SIZE, 0, True, 8.1)) == 4
    both = sgp.VariationalHyperparameters(full_covariance=True)
    assert len(both.noise(3, 0)) == 8
    assert len(both.noise(SIZE, 0)) == 2 * SIZE


def test_a_parameter_known_to_within_a_factor_of_e_is_not_known_well():
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[0.01, 1.0])
    vector = ParameterVector(kernel)
    mean = vector.value()
    unit = vector.unit_log_widths()
    deviation = unit * np.array([1.0, 0.25, 7.0])
    assert num_uncertain(vector, mean, deviation) == pytest.approx(2.25)
    vector.assign(mean + 1.0)  # it is asked for at a mean, wherever the parameters are
    assert num_uncertain(vector, mean, deviation) == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, [8, SIZE + 1]), ({"prior_log_scale": 0.1}, [8]), ({"num_samples": 6}, [6])],
    ids=["many uncertain", "few", "a number that is given"],
)
def test_a_fit_that_leaves_many_uncertain_is_done_over_as_many_values(rng, options, wanted):
    strategy = Recording(**options)
    _, info = stream(rng, 30, 0.5, hyperparameters=strategy)
    assert strategy.numbers[: len(wanted)] == wanted
    assert info.iterations > 0
