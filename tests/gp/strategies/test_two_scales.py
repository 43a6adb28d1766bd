"""Two scales of ε: which one a budget can hold."""

from dataclasses import replace
from functools import reduce
from operator import mul
from types import MappingProxyType

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import expfam, pvi
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.solver import Batch
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies import MERGED, every_input, merged_anew, two_scales
from streaming_gp.gp.strategies.two_scales import TwoScaleFactor
from tests.gp.builders import EVERY_INPUT, FIXED, NOISE, assert_same_arrays, evidence, known_model
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
    ledger = with_coarse(replace(merged, num_marked=60))
    np.testing.assert_allclose(two_scales.unexplained(ledger, NOISE, 0), wanted, rtol=1e-2)


def with_coarse(factor):
    some = expfam.MeanFieldNormal.from_mean_scale(np.zeros(1), np.eye(1))
    ledger = MappingProxyType({MERGED: replace(factor, coarse=some / some)})
    return pvi.Ledger(Process(()), ledger)


def test_what_is_lost_goes_on_to_grow_as_with_the_newest_targets():
    """Of 1,000 targets 0.2 nats each are lost, then 0.5 of 4,000: so it will be 1.1 of 10,000.

    The first ones do not say how it grows, as it need not have begun with nothing.
    """
    one = two_scales.marked(TwoScaleFactor((), lost=200.0, num_projected=1000))
    assert (one.growth, one.num_marked, one.lost_marked) == (0.0, 1000, 0.2)
    other = two_scales.marked(replace(one, lost=2000.0, num_projected=4000))
    np.testing.assert_allclose(other.growth, 0.3 / 3000, rtol=ALGEBRA)
    for number, wanted in ((0, 0.5), (4000, 0.5), (10_000, 1.1)):
        found = two_scales.unexplained(with_coarse(other), NOISE, number)
        np.testing.assert_allclose(found, 2.0 * NOISE * wanted, rtol=ALGEBRA)
    shrunk = two_scales.marked(replace(one, lost=400.0, num_projected=4000))
    found = two_scales.unexplained(with_coarse(shrunk), NOISE, 10_000)
    np.testing.assert_allclose(found, 2.0 * NOISE * 0.1, rtol=ALGEBRA)


def test_few_targets_say_nothing_of_how_fast_it_grows():
    one = two_scales.marked(TwoScaleFactor((), lost=200.0, num_projected=1000))
    few = two_scales.marked(replace(one, lost=900.0, num_projected=1010))
    assert (few.growth, few.num_marked) == (one.growth, 1000)
    assert two_scales.unexplained(with_coarse(one), NOISE) > 0.0
    assert two_scales.unexplained(with_coarse(few), NOISE) == 0.0


def test_a_cavity_of_noisier_data_is_that_of_the_coarse_ledger(data):
    model = known_model(EVERY_INPUT, hyperparameters=sgp.VariationalHyperparameters(num_samples=2))
    model.update(data)
    q = model.ledger.posterior.hyperparameters
    smoother = two_scales.noisier(model.ledger, "another", q, NOISE, 3.0 * NOISE)
    wanted = two_scales.made_coarse(model.ledger, NOISE, 3.0 * NOISE).posterior
    for a, b in zip(smoother.pseudo_observations, wanted.pseudo_observations, strict=True):
        assert_same_arrays(a.arrays, b.arrays, ALGEBRA)
    assert smoother.hyperparameters is q


def test_data_of_which_projections_left_much_more_than_the_noise_are_data_of_more_noise(data):
    models = [
        known_model(EVERY_INPUT, gpflow.likelihoods.Gaussian(v)) for v in (NOISE, 12.0 * NOISE)
    ]
    for each in models:
        each.update(data)
    (one,), (noisier,) = (each.factors.values() for each in models)
    number = one.pseudo_observations[0].pseudo_targets.size
    one = replace(two_scales.of_two_scales(one), num_projected=number)
    few, many = (replace(one, lost=nats * number) for nats in (5.0, 5.5))
    assert two_scales.widened(few, NOISE) is few
    found = two_scales.widened(many, NOISE)
    assert found.widened == pytest.approx(12.0)
    for ours, wanted in ((found, noisier), (two_scales.narrowed(found), one)):
        (said,), (as_wanted,) = ours.pseudo_observations, wanted.pseudo_observations
        assert_same_arrays(said.arrays, as_wanted.arrays, ALGEBRA)
        np.testing.assert_allclose(ours.log_scale, wanted.log_scale, rtol=ALGEBRA)


@pytest.mark.parametrize("hyperparameters", [FIXED, sgp.VariationalHyperparameters(num_samples=2)])
def test_a_budget_that_cannot_hold_the_function_makes_nothing_certain(rng, hyperparameters):
    """Nor are inputs told apart from those whose data were projected onto them."""
    X = rng.uniform(0.0, 10.0, (120, 1))
    Y = np.sin(3.0 * X) + 0.3 * np.sin(17.0 * X)
    model = sgp.StreamingGP(
        gpflow.kernels.Matern12(lengthscales=0.5),
        gpflow.likelihoods.Gaussian(1e-4),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=40),
        hyperparameters=hyperparameters,
    )
    for start in range(0, 120, 20):
        model.update((X[start : start + 20], Y[start : start + 20]))
    mean, variance = model.predict_y(X)
    assert np.max(np.abs(Y - mean) / np.sqrt(variance)) < 4.0
    assert np.mean((Y - mean) ** 2) < 0.1 * np.var(Y)


def test_products_and_powers_know_both_scales(rng):
    X, Y = smooth_data(rng, 20)
    model = known_model(EVERY_INPUT, hyperparameters=sgp.VariationalHyperparameters(num_samples=2))
    model.update((X, Y))
    (plain,) = model.factors.values()
    fine = plain.hyperparameters
    one = TwoScaleFactor(plain.pseudo_observations, fine, 1.0, fine, 3.0, 5)
    other = TwoScaleFactor(plain.pseudo_observations, fine, 2.0, fine**2.0, 4.0, 7, is_coarse=True)
    product = reduce(mul, (plain, one, other))
    assert (product.lost, product.num_projected, product.is_coarse) == (7.0, 12, True)
    for found, wanted in ((product.coarse, fine**3.0), ((one**0.5).coarse, fine**0.5)):
        for a, b in zip(found.natural, wanted.natural, strict=True):
            np.testing.assert_allclose(a, b)
    assert (one**0.5).lost == 3.0
    assert other.faded(0.0).coarse is other.faded(0.5).coarse is other.coarse


def test_both_scales_are_scored_by_what_the_model_itself_predicts(data, rng):
    """Two outputs of their own kernels; few of the data are looked at where a batch is large."""
    X, Y = data
    kernel = gpflow.kernels.SeparateIndependent(
        [gpflow.kernels.SquaredExponential(lengthscales=each) for each in (0.5, 2.0)]
    )
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(NOISE), hyperparameters=sgp.FixedHyperparameters(),
        pseudo_points=EVERY_INPUT,
    )  # fmt: skip
    model.update((X, np.hstack([Y, Y**2])))
    new = rng.uniform(-3.0, 3.0, (20, 2)), rng.standard_normal((20, 2))
    found = model._compiled.fitter.log_density(model.ledger.posterior, Batch("", new, seed=0))
    wanted = np.mean(np.asarray(model.predict_log_density(new))) / 2.0
    np.testing.assert_allclose(found, wanted, rtol=ALGEBRA)


def walk(rng, number, height):
    """Batch of a walk along a wave, and ripples on it; forty points hold those of four batches."""
    x = rng.uniform(5.0 * number, 5.0 * number + 5.0, (300, 1))
    Y = np.sin(x / 6.0) + height * np.sin(4.0 * x) + 0.02 * rng.standard_normal((300, 1)) + 2.0
    return np.hstack([x, np.zeros_like(x)]), Y


@pytest.mark.slow
def test_the_coarse_scale_takes_over_where_a_budget_cannot_hold_the_function(rng):
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=40),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )
    for number in range(8):
        model.update(walk(rng, number, 0.3))
        if number == 3:
            assert not model.factors[MERGED].is_coarse
    assert model.factors[MERGED].is_coarse
    smooth = [walk(rng, number, 0.0) for number in range(8)]
    error = np.mean([(np.asarray(model.predict_f(X)[0]) - Y) ** 2 for X, Y in smooth])
    assert error < 0.02
    assert np.isfinite(evidence(model))


@pytest.mark.parametrize(("ratio", "turns_coarse"), [(0.0, True), (1e9, False)])
def test_where_both_scales_see_the_same_noise_the_fine_one_stays(
    rng, monkeypatch, ratio, turns_coarse
):
    """Although projections lose much, and the coarse one predicts better."""
    X, Y = smooth_data(rng, 90)
    scores = iter([1.0, 0.0])
    monkeypatch.setattr(two_scales, "unexplained", lambda ledger, noise: np.inf)
    monkeypatch.setattr(Fitter, "log_density", lambda self, process, batch: next(scores))
    monkeypatch.setattr(every_input, "COARSER", ratio)
    fitted: list[bool] = []
    monkeypatch.setattr(
        merged_anew, "_fitted", lambda fitter, ledger, *_: fitted.append(True) or ledger
    )
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=40),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )
    for start in range(0, 60, 20):
        model.update((X[start : start + 20], Y[start : start + 20]), learn=False)
    model.update((X[60:], Y[60:]))
    assert model.factors[MERGED].is_coarse is turns_coarse
    assert bool(fitted) is turns_coarse  # at once, although points had moved just before
    assert model.factors[MERGED].num_fitted == 60


def test_all_targets_are_counted_whether_projected_or_not(rng):
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=40), hyperparameters=sgp.FixedHyperparameters()
    )
    for number, size in enumerate((30, 35, 12)):
        X, Y = walk(rng, number, 0.3)
        model.update((X[:size], Y[:size]))
        assert two_scales.num_data(model.ledger) == [30, 65, 77][number]


@pytest.mark.slow
def test_the_coarse_scale_is_learned_under_as_few_points_as_will_be_left(rng, monkeypatch):
    batches, found = [walk(rng, number, 0.3) for number in range(2)], []
    for per_datum in (lambda budget: 0.7, lambda budget: 1.0, lambda budget: 9.0):
        monkeypatch.setattr(every_input, "points_per_datum", per_datum)
        model = known_model(
            sgp.PrivatePseudoPoints("all", budget=260),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        )
        for batch in batches:
            model.update(batch)
        found.append(np.asarray(two_scales.coarse_epsilon(model.ledger, "").mean))
    few, enough, all_of_them = found
    np.testing.assert_array_equal(enough, all_of_them)
    assert np.max(np.abs(few - enough)) > 1e-3
