"""Merged factors that are fitted anew from all data that are remembered."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.anew import Anew
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies import MERGED, every_input, merged_anew, remembered, two_scales
from tests.gp.builders import NOISE, known_model, mean_of_two, sparse_bound
from tests.reference import smooth_data
from tests.tolerances import ALGEBRA

BUDGET = 40


def streamed(X, Y, forgetting_factor=1.0, before=lambda model: None):
    """A model that has merged most of sixty data."""
    q = sgp.VariationalHyperparameters(num_samples=2, forgetting_factor=forgetting_factor)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=BUDGET), hyperparameters=q)
    before(model)
    for start in range(0, 60, 4):
        part = slice(start, start + 4)
        model.update((X[part], Y[part]), learn=False)
    return model


def fine(rng, **options):
    """Compiled fits of such a model, and its ledger."""
    model = streamed(*smooth_data(rng, 60), **options)
    return model._compiled.fitter, model.ledger


def coarse(rng, **options):
    """The same at a coarse ε."""
    fitter, ledger = fine(rng, **options)
    return fitter, two_scales.made_coarse(ledger, NOISE, NOISE)


def test_the_merged_factor_is_what_sparse_regression_on_its_data_says(rng):
    fitter, ledger = coarse(rng)
    after = merged_anew.fitted(fitter, ledger, move=True)
    merged, epsilon = after.factors[MERGED], fitter.location(after.posterior)
    data = merged.remembered.data
    assert len(data[0]) == merged.num_projected > BUDGET // 2
    found = fitter.factorisations.at(epsilon, Process(merged.pseudo_observations))
    nugget = merged.pseudo_observations[0].nugget
    wanted = sparse_bound(data, merged.Z, epsilon, mean_of_two(), nugget)
    np.testing.assert_allclose(found.log_normaliser + merged.log_scale, wanted, rtol=1e-6)
    before = ledger.factors[MERGED].Z, fitter.location(ledger.posterior)
    assert wanted > sparse_bound(data, *before, mean_of_two(), nugget)


def test_the_posterior_moves_to_the_new_hyperparameters_as_wide_as_it_was(rng, monkeypatch):
    fitter, ledger = coarse(rng)
    wanted = fitter.location(ledger.posterior) + 0.3
    monkeypatch.setattr(Anew, "best", lambda self, data, at, *_, **__: (at.Z, wanted))
    after = merged_anew.fitted(fitter, ledger, move=True)
    q, before = (one.posterior.hyperparameters for one in (after, ledger))
    np.testing.assert_allclose(q.mean, wanted, rtol=ALGEBRA)
    np.testing.assert_allclose(q.scale, before.scale, rtol=ALGEBRA)


def test_batches_that_are_apart_are_data_of_the_new_noise(rng, monkeypatch):
    fitter, ledger = coarse(rng)
    before = fitter.location(ledger.posterior)
    wanted = before + np.array([0.0, 0.0, 0.0, 0.5, 0.0])
    monkeypatch.setattr(Anew, "best", lambda self, data, at, *_, **__: (at.Z, wanted))
    after = merged_anew.fitted(fitter, ledger, move=True)
    name = list(after.factors)[-1]
    (one,) = after.factors[name].pseudo_observations
    precision = fitter.local.noise_precision(fitter.location(after.posterior), one.Z)
    np.testing.assert_allclose(np.diag(one.precision[0]), precision[:, 0], rtol=ALGEBRA)


def test_it_is_done_again_when_the_stream_has_grown_by_half(rng, monkeypatch):
    fitter, ledger = coarse(rng)
    asked = []
    best = Anew.best

    def asks(self, data, at, epsilon, iterations, *, move, hold_noise, report):
        asked.append((iterations, move, hold_noise))
        return best(self, data, at, epsilon, iterations, move, hold_noise, report=report)

    monkeypatch.setattr(Anew, "best", asks)
    once = merged_anew.fitted(fitter, ledger, move=False)
    assert once.factors[MERGED].num_fitted == 60
    assert merged_anew.fitted(fitter, once, move=False) is once
    assert asked == [(1, False, True)]  # of a short stream: one iteration, and the noise is held
    fewer = once.replaced(MERGED, replace(once.factors[MERGED], num_fitted=40))
    monkeypatch.setattr(merged_anew, "LONG_STREAM", 60)
    assert merged_anew.fitted(fitter, fewer, move=True).factors[MERGED].num_fitted == 60
    assert asked[1:] == [(merged_anew.ITERATIONS, True, False)]


def test_it_reports_its_progress(rng):
    seen = []
    merged_anew.fitted(*coarse(rng), move=True, report=lambda *one: seen.append(one))
    assert [iteration for iteration, _ in seen] == list(range(1, 1 + len(seen)))
    assert seen
    assert np.isfinite(seen[-1][1])


@pytest.mark.parametrize(
    ("start", "step"), [(coarse, merged_anew.fitted), (fine, merged_anew.on_better_points)]
)
def test_where_rounding_forbids_it_all_stays(rng, monkeypatch, start, step):
    def fails(*_, **__):
        raise NumericalError("not positive")

    fitter, ledger = start(rng)
    monkeypatch.setattr(Anew, "best", fails)
    after = step(fitter, ledger, move=True)
    assert after.factors[MERGED].num_fitted == 60  # and it is not tried with every batch
    for name, factor in after.factors.items():
        assert factor.pseudo_observations is ledger.factors[name].pseudo_observations


# ---- at the fine ε, where points move alone ----


@pytest.mark.parametrize("move", [True, False])
def test_at_the_fine_scale_the_factor_is_what_the_data_say_on_better_points(rng, move):
    fitter, ledger = fine(rng)
    before, after = ledger.factors[MERGED], merged_anew.on_better_points(fitter, ledger, move)
    merged, epsilon = after.factors[MERGED], fitter.location(ledger.posterior)
    assert np.array_equal(merged.Z, before.Z) is not move
    found = fitter.factorisations.at(epsilon, Process(merged.pseudo_observations))
    nugget = merged.pseudo_observations[0].nugget
    data, prior = before.remembered.data, mean_of_two()
    wanted = sparse_bound(data, merged.Z, epsilon, prior, nugget)
    np.testing.assert_allclose(found.log_normaliser + merged.log_scale, wanted, rtol=1e-6)
    assert bool(wanted > sparse_bound(data, before.Z, epsilon, prior, nugget)) is move


def test_at_the_fine_scale_nothing_else_changes(rng):
    fitter, ledger = fine(rng)
    after = merged_anew.on_better_points(fitter, ledger, move=True)
    assert after.posterior.hyperparameters.mean.tolist() == (
        ledger.posterior.hyperparameters.mean.tolist()
    )
    assert not two_scales.is_coarse(after)
    for name, factor in ledger.factors.items():
        assert name == MERGED or after.factors[name] is factor


def test_at_the_fine_scale_it_is_done_when_the_stream_has_grown_by_half(rng):
    fitter, ledger = fine(rng)
    once = merged_anew.on_better_points(fitter, ledger, move=True)
    assert once.factors[MERGED].num_fitted == 60
    assert merged_anew.on_better_points(fitter, once, move=True) is once
    again = once.replaced(MERGED, replace(once.factors[MERGED], num_fitted=40))
    assert merged_anew.on_better_points(fitter, again, move=True) is not again


def test_points_stay_where_they_cannot_help_or_data_are_lost(rng):
    fitter, ledger = fine(rng)
    merged = ledger.factors[MERGED]
    lost = 1.01 * merged_anew.MOST_LOST * merged.num_projected
    fewer = merged.remembered.rows(np.arange(merged.num_projected - 1))
    for changed in (
        replace(merged, lost=lost),
        replace(merged, remembered=fewer),
        replace(merged, remembered=None),
    ):
        other = ledger.replaced(MERGED, changed)
        assert merged_anew.on_better_points(fitter, other, move=True) is other
    forgets = fine(rng, forgetting_factor=0.9)
    assert merged_anew.on_better_points(*forgets, move=True) is forgets[1]


def test_it_serves_where_all_data_are_remembered_and_nothing_is_forgotten(rng, monkeypatch):
    fitter, ledger = coarse(rng)
    assert merged_anew.serves(fitter, ledger)
    merged = ledger.factors[MERGED]
    for share, serves in ((0.85, False), (0.95, True)):
        some = merged.remembered.rows(np.arange(int(share * merged.num_projected)))
        sample = ledger.replaced(MERGED, replace(merged, remembered=some))
        assert merged_anew.serves(fitter, sample) is serves
    assert not merged_anew.serves(fitter, ledger.replaced(MERGED, replace(merged, remembered=None)))
    assert not merged_anew.serves(*coarse(rng, forgetting_factor=0.9))
    monkeypatch.setattr(merged_anew, "MOST_POINTS", len(merged.Z))
    assert merged_anew.serves(fitter, ledger)
    monkeypatch.setattr(merged_anew, "MOST_POINTS", len(merged.Z) - 1)
    assert not merged_anew.serves(fitter, ledger)


@pytest.mark.parametrize("forgetting_factor", [1.0, 0.9])
def test_at_the_coarse_scale_only_what_is_fitted_to_is_remembered(rng, forgetting_factor):
    model = streamed(*smooth_data(rng, 60), forgetting_factor=forgetting_factor)
    model.adopt(two_scales.made_coarse(model.ledger, NOISE, NOISE))
    for _ in range(2):
        model.update(smooth_data(rng, 4), learn=False)
    forgets = forgetting_factor < 1.0
    assert (model.factors[MERGED].remembered is None) is forgets


def test_two_outputs_count_twice(rng):
    X, Y = smooth_data(rng, 60)
    merged = streamed(X, np.hstack([Y, Y**2])).factors[MERGED]
    assert len(merged.remembered.Z) * 2 == merged.num_projected
    assert remembered.is_complete(merged)


def test_a_summary_of_data_that_were_merged_is_never_taken_for_data(rng):
    """Three points for thirty data would be too few to be missed among what is remembered."""

    def compressed(model):
        model.update(smooth_data(rng, 30), learn=False)
        model.compress(3)

    merged = streamed(*smooth_data(rng, 60)).factors[MERGED]
    assert remembered.is_complete(merged)
    assert not streamed(*smooth_data(rng, 60), before=compressed).factors[MERGED].is_of_data
    assert not remembered.is_complete(replace(merged, is_of_data=False))


@pytest.mark.slow
def test_a_stream_beyond_what_is_remembered_goes_on_to_learn_from_batches(rng, monkeypatch):
    monkeypatch.setattr(two_scales, "unexplained", lambda ledger, noise: np.inf)
    monkeypatch.setattr(every_input, "COARSER", 0.0)
    scores = cycle([1.0, 0.0])
    monkeypatch.setattr(Fitter, "log_density", lambda self, process, batch: next(scores))
    X, Y = smooth_data(rng, 200)
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=BUDGET),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )
    most, kept, learned = remembered.most(BUDGET, 2), [], []
    for start in range(0, 200, 20):
        info = model.update((X[start : start + 20], Y[start : start + 20]))
        kept.append(model.factors[MERGED].remembered if MERGED in model.factors else None)
        learned.append(info.iterations > 0)
    num_kept = [0 if one is None else len(one.Z) for one in kept]
    assert (max(num_kept), num_kept[-1]) == (most, 0)
    assert learned == [True] * 3 + [False] * 3 + [True] * 4
