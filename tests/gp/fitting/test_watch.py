"""What a model warns of while it learns; tests/attack has warnings of too small errors."""

import warnings

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import PoorFitWarning


def shuffled(rng, depends=True):
    """A hundred data all over eight dimensions."""
    X = rng.standard_normal((100, 8))
    Y = np.sin(X).sum(axis=1, keepdims=True) if depends else rng.standard_normal((100, 1))
    return X, (Y - Y.mean()) / Y.std()


def model_on(points, hyperparameters=None):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(8))
    return sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        hyperparameters=hyperparameters,
    )  # fmt: skip


def warnings_of(model, data):
    """What an update warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.update(data)
    return [str(one.message) for one in said]


FEW = [
    sgp.SharedPseudoPoints(20, growth=2),
    pytest.param(sgp.PrivatePseudoPoints(2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("points", FEW, ids=["shared", "private"])
def test_points_too_few_to_tell_a_function_from_noise(rng, points):
    model = model_on(points)
    with pytest.warns(PoorFitWarning, match="batch-0.*2 pseudo-points.*wanted more points"):
        model.update(shuffled(rng))
    assert warnings_of(model, shuffled(rng)) == []  # it is said once


def test_with_points_enough_for_the_function_nothing_is_said(rng):
    model = model_on(sgp.SharedPseudoPoints(30))
    assert warnings_of(model, shuffled(rng)) == []


@pytest.mark.slow
def test_a_batch_that_is_noise_at_every_input_needs_no_more_points(rng):
    model = model_on(sgp.PrivatePseudoPoints("all"))
    assert warnings_of(model, shuffled(rng, depends=False)) == []


def test_hyperparameters_that_are_known_have_learned_nothing(rng):
    model = model_on(sgp.PrivatePseudoPoints(2), sgp.FixedHyperparameters())
    model.kernel.variance.assign(1e-4)
    assert warnings_of(model, shuffled(rng)) == []
