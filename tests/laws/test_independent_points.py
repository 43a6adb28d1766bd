"""Shared points that are independent of ε in the posterior (PVI 2018, app. C.3)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.strategies import MERGED
from tests.oracles.builders import (
    FIXED,
    assert_same_arrays,
    assert_same_predictions,
    evidence,
    known_model,
    predicted,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import THROUGH_NUGGET

STILL = {"optimise_locations": False}


def test_at_one_epsilon_they_are_shared_points(rng):
    """Whether q(b) depends on ε makes no difference where there is one ε."""
    X, Y = smooth_data(rng, 60)
    independent = known_model(sgp.IndependentPseudoPoints(12, **STILL))
    shared = known_model(sgp.SharedPseudoPoints(12, **STILL))
    data = [(X[:30], Y[:30]), (X[:30], Y[30:])]  # at the same inputs the points are the same
    for batch in data:
        one, other = (model.update(batch) for model in (independent, shared))
        assert one.free_energy == pytest.approx(other.free_energy, abs=100.0 * THROUGH_NUGGET)
    assert_same_predictions(independent, shared, X, 10.0 * THROUGH_NUGGET)
    assert evidence(independent) == pytest.approx(evidence(shared), abs=100.0 * THROUGH_NUGGET)


@pytest.fixture(scope="module")
def learned():
    """A model of two hyperparameters after three batches, and the data."""
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-3, 3, (90, 1)), axis=0)
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.5),
        pseudo_points=sgp.IndependentPseudoPoints(15, growth=6),
        hyperparameters=sgp.VariationalHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=20),
    )  # fmt: skip
    thirds = np.split(np.arange(90), 3)
    numbers = [model.update((X[rows], Y[rows])).num_pseudo_points for rows in thirds]
    return model, (X, Y), numbers


@pytest.mark.slow
def test_they_learn_hyperparameters_and_the_newest_factor_holds_all_points(learned):
    model, (X, Y), numbers = learned
    assert numbers == [6, 12, 15]
    assert list(model.factors) == [MERGED, "batch-2"]
    assert not model.factors[MERGED].pseudo_observations
    assert model.posterior_process.num_pseudo_points == 15
    assert np.mean((np.asarray(model.predict_f(X)[0]) - Y) ** 2) < 0.1 * np.var(Y)


def test_nothing_can_be_taken_apart(rng):
    X, Y = smooth_data(rng, 40)
    model = known_model(sgp.IndependentPseudoPoints(6, **STILL))
    for i in range(2):
        model.update((X[i::2], Y[i::2]), learn=False)
    before = predicted(model, X)
    for refused, message in (
        (lambda: model.revisit("batch-1", (X[1::2], Y[1::2])), "no factor can be revisited"),
        (lambda: model.remove("batch-1"), "no factor can be revisited or removed"),
        (lambda: model.compress(3), "cannot be compressed"),
        (lambda: model.fade(0.5), "nothing can be forgotten"),
        (lambda: model.synchronous_round({"a": (X, Y)}), "need pseudo-points of their own"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            refused()
    assert_same_arrays(model.predict_f(X), before, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperparameters": sgp.PointHyperparameters()}, "for a point there are SharedPseudo"),
        ({"hyperparameters": FIXED, "alpha": 0.5}, "takes no other bound"),
    ],
)
def test_what_they_are_not_for_is_refused(options, message):
    with pytest.raises(InvalidDataError, match=message):
        known_model(sgp.IndependentPseudoPoints(5), **options)
