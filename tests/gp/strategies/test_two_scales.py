"""Two scales of ε: which one a budget can hold."""

from dataclasses import replace
from functools import reduce
from operator import mul

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import expfam
from streaming_gp.gp.strategies import MERGED, two_scales
from streaming_gp.gp.strategies.two_scales import TwoScaleFactor
from tests.gp.builders import EVERY_INPUT, NOISE, assert_same_arrays, evidence, known_model
from tests.reference import smooth_data
from tests.tolerances import ALGEBRA


def test_coarse_data_are_data_of_more_noise(data):
    X, Y = data
    model, noisier = (
        known_model(EVERY_INPUT, gpflow.likelihoods.Gaussian(v)) for v in (NOISE, 3.0 * NOISE)
    )
    for each in (model, noisier):
        each.update((X, Y))
    coarse = two_scales.made_coarse(model.ledger, NOISE, 3.0 * NOISE)
    (found,), (wanted,) = coarse.factors.values(), noisier.factors.values()
    (one,), (other,) = found.pseudo_observations, wanted.pseudo_observations
    assert_same_arrays(one.arrays, other.arrays, ALGEBRA)
    np.testing.assert_allclose(found.log_scale, wanted.log_scale, rtol=ALGEBRA)
    assert found.is_coarse


def test_what_points_that_stay_cannot_say_is_unexplained(rng):
    """Every input comes twice: 30 points miss half the squared difference of each pair."""
    X, Y = smooth_data(rng, 30, noise=0.3)
    again = Y + 0.3 * rng.standard_normal(Y.shape)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=30))
    model.update((X, Y))
    model.update((X[::-1], again[::-1]))
    assert model.factors[MERGED].num_projected == 60
    wanted = np.sum((Y - again) ** 2) / 2.0 / 60.0
    (merged,) = model.factors.values()
    some = expfam.MeanFieldNormal.from_mean_scale(np.zeros(1), np.eye(1))
    ledger = model.ledger.replaced(MERGED, replace(merged, coarse=some / some))
    np.testing.assert_allclose(two_scales.unexplained(ledger, NOISE), wanted, rtol=1e-2)


def test_products_and_powers_know_both_scales(rng):
    X, Y = smooth_data(rng, 20)
    model = known_model(EVERY_INPUT, hyperparameters=sgp.VariationalHyperparameters(num_samples=2))
    model.update((X, Y))
    (plain,) = model.factors.values()
    fine = plain.hyperparameters
    one = TwoScaleFactor(plain.pseudo_observations, fine, 1.0, fine, 3.0, 5)
    other = TwoScaleFactor(plain.pseudo_observations, fine, 2.0, fine**2.0, 4.0, 7, True)
    product = reduce(mul, (plain, one, other))
    assert (product.lost, product.num_projected, product.is_coarse) == (7.0, 12, True)
    for found, wanted in ((product.coarse, fine**3.0), ((one**0.5).coarse, fine**0.5)):
        for a, b in zip(found.natural, wanted.natural, strict=True):
            np.testing.assert_allclose(a, b)
    assert (one**0.5).lost == 3.0
    assert other.faded(0.0).coarse is other.faded(0.5).coarse is other.coarse


@pytest.mark.slow
def test_the_coarse_scale_takes_over_once_projections_lose_too_much(rng):
    X, Y = smooth_data(rng, 60)
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=20),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=5),
    )
    for rows in (slice(0, 15), slice(15, 30), slice(30, 45)):
        model.update((X[rows], Y[rows]))
    merged = model.factors[MERGED]
    assert not merged.is_coarse
    noise = float(model.likelihood.variance.numpy())
    assert two_scales.unexplained(model.ledger, noise) < 10.0 * noise
    model.adopt(model.ledger.replaced(MERGED, replace(merged, lost=1e6)))
    model.update((X[45:], Y[45:]))
    after = model.factors[MERGED]
    assert after.is_coarse
    assert np.linalg.norm(after.precision) < np.linalg.norm(merged.precision)
    assert np.isfinite(evidence(model))
