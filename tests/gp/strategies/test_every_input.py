"""A pseudo-point at every input, while a budget lasts."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.strategies import MERGED, every_input, learning_sample, together
from streaming_gp.gp.strategies.learning_sample import LearningSample, fine
from tests.gp.builders import (
    EVERY_INPUT,
    assert_same_predictions,
    exact_gp,
    known_model,
    labelled,
    model_of,
    thirds,
)
from tests.reference import smooth_data
from tests.tolerances import ALGEBRA, FREE_ENERGY_AT_OPTIMUM, THROUGH_CHOLESKY


def test_a_budget_that_is_never_reached_changes_nothing(data, new_inputs):
    X, Y = data
    models = [
        known_model(points) for points in (EVERY_INPUT, sgp.PrivatePseudoPoints("all", budget=90))
    ]
    for model in models:
        for i in range(3):
            model.update((X[i::3], Y[i::3]))
    assert list(models[1].factors) == ["batch-0", "batch-1", "batch-2"]
    assert_same_predictions(*models, new_inputs, ALGEBRA)


def test_a_point_at_every_input_needs_no_nugget(data, new_inputs):
    model = model_of(sgp.PointHyperparameters())
    info = model.update(data)
    assert info.iterations > 0
    assert info.nugget == 0.0
    exact = gpflow.models.GPR(data, model.kernel, likelihood=model.likelihood)
    for ours, theirs in zip(model.predict_f(new_inputs), exact.predict_f(new_inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=THROUGH_CHOLESKY)


@pytest.mark.parametrize("size", [200, 40, pytest.param(4, marks=pytest.mark.slow)])
def test_within_a_budget_the_exact_gp_is_hardly_lost(rng, size):
    X, Y = smooth_data(rng, 200)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    for start in range(0, 200, size):
        model.update((X[start : start + size], Y[start : start + size] + 2.0))
        assert model.posterior_process.num_pseudo_points <= 60
    exact = exact_gp((X, Y + 2.0))
    new, _ = smooth_data(rng, 100, noise=0.0)
    mean, variance = model.predict_f(new)
    exact_mean, exact_variance = exact.predict_f(new)
    assert np.max(np.abs(mean - exact_mean)) < 0.02
    assert np.mean(np.abs(variance / exact_variance - 1.0)) < 0.2
    assert next(iter(model.factors)) == ("batch-0" if size == 200 else MERGED)
    lost = float(exact.log_marginal_likelihood() - model.maximum_log_likelihood_objective())
    assert 0.0 < lost < 1.0  # the projection is a bound


def test_the_newest_small_batches_stay_apart(rng):
    X, Y = smooth_data(rng, 120)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    for start in range(0, 120, 3):
        model.update((X[start : start + 3], Y[start : start + 3]))
    newest = list(model.factors)[-1]
    model.revisit(newest, (X[-3:], Y[-3:]))
    model.remove(newest)
    assert newest not in model.factors


def test_merged_points_stay_where_newer_batches_lie_as_well():
    """Those will be merged later on, and then their points may go."""
    alone, beside = 20.0 * np.arange(40.0), 20.0 * np.arange(10.0) + 0.5
    X = np.concatenate([alone, beside])[:, None]
    model = known_model(sgp.PrivatePseudoPoints("all", budget=50, optimise_locations=False))
    model.update((X, np.sin(X)))
    model.update((X[30:35], np.sin(X[30:35])))
    assert list(model.factors) == [MERGED, "batch-1"]
    assert set(X[30:35, 0]) <= set(model.factors[MERGED].Z[:, 0])


def test_labels_keep_their_points_within_a_budget(rng):
    X, Y = labelled(rng, 90)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=40),
        hyperparameters=sgp.FixedHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=6, rounds=2),
    )  # fmt: skip
    for data in thirds(X, Y).values():
        model.update(data)
    assert model.posterior_process.num_pseudo_points <= 40
    assert np.mean((np.asarray(model.predict_y(X)[0]) > 0.5) == (Y > 0.5)) > 0.85


@pytest.mark.slow
def test_labels_are_taken_in_at_the_point_that_was_learned(rng, new_inputs):
    X, Y = labelled(rng, 40)
    learner = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(),
        pseudo_points=EVERY_INPUT, hyperparameters=sgp.PointHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=8, rounds=2, site_steps=200),
    )  # fmt: skip
    learner.update((X, Y))
    known = sgp.StreamingGP(
        learner.kernel, gpflow.likelihoods.Bernoulli(), pseudo_points=EVERY_INPUT,
        hyperparameters=sgp.FixedHyperparameters(),
        optimiser=sgp.LocalOptimiser(rounds=1, site_steps=200),
    )  # fmt: skip
    known.update((X, Y))
    assert_same_predictions(learner, known, new_inputs, 1e-6)  # where steps on the sites rest


def test_a_sample_of_everything_learns_from_everything(data, monkeypatch):
    """The sample is the batch and the cavity it is fitted under where both are small."""
    monkeypatch.setattr(together, "ENOUGH", 1)
    monkeypatch.setattr(together, "WORTH_LEARNING", 1)
    X, Y = data
    models = [
        model_of(sgp.VariationalHyperparameters(num_samples=2)),
        sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
            gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.PrivatePseudoPoints(
                "all", sample=LearningSample(num_data=45, num_points=45, num_earlier=45)
            ),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
            optimiser=sgp.LocalOptimiser(full_effort_points=44),
        ),
    ]
    first, second = ([model.update((X[i::2], Y[i::2])) for i in range(2)] for model in models)
    np.testing.assert_allclose(first[0].free_energy, second[0].free_energy, rtol=ALGEBRA)
    np.testing.assert_allclose(
        first[1].free_energy, second[1].free_energy, atol=FREE_ENERGY_AT_OPTIMUM
    )


@pytest.mark.slow
def test_a_part_of_a_batch_finds_the_hyperparameters_of_all(rng):
    X, Y = smooth_data(rng, 240)
    found = []
    for sample in (LearningSample(), LearningSample(num_data=80, num_points=20, num_earlier=30)):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
            gpflow.likelihoods.Gaussian(1.0),
            pseudo_points=sgp.PrivatePseudoPoints("all", sample=sample),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        )
        for rows in (slice(0, 120), slice(120, 240)):
            model.update((X[rows], Y[rows]))
        found.append(float(model.likelihood.variance.numpy()))
    assert abs(np.log(found[1] / found[0])) < 0.5


def test_rounds_within_a_budget_are_refused(data):
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    with pytest.raises(InvalidDataError, match="merges batches"):
        model.synchronous_round({"a": data})


def test_a_budget_must_be_a_positive_integer():
    with pytest.raises(InvalidDataError, match="budget must be a positive integer, got 0"):
        sgp.PrivatePseudoPoints("all", budget=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_data": 0}, "num_data"),
        ({"num_points": -1}, "num_points"),
        ({"num_neighbours": 0}, "num_neighbours"),
        ({"alpha": 2.0}, "alpha"),
    ],
)
def test_samples_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidDataError, match=message):
        LearningSample(**options)


def test_a_small_batch_has_fewer_points_to_learn_from():
    """As many as a larger one would show a finer structure than a budget can hold."""
    found = [fine(number).num_points for number in (10, 100, 150, 500)]
    assert found == [40, 40, 60, 70]


def test_few_points_are_looked_at_once_the_budget_is_exceeded(data, monkeypatch):
    X, Y = data
    seen = []
    fitted = every_input.fitted

    def noted(fitter, cavity, batch, sample, most, known):
        seen.append(sample.num_points)
        return fitted(fitter, cavity, batch, sample, most, known)

    monkeypatch.setattr(every_input, "fitted", noted)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    for i in range(3):
        model.update((X[i::3], Y[i::3]))
    assert seen == [None, None, fine(100).num_points]


@pytest.mark.parametrize(("num_points", "before"), [(None, "neighbours"), (5, "nearby")])
def test_epsilon_answers_to_neighbours_until_points_are_merged(
    rng, monkeypatch, num_points, before
):
    """And where a sample is looked at on few points, never."""
    X, Y = smooth_data(rng, 120)
    asked = []

    def noted(owner, name):
        found = getattr(owner, name)

        def asks(*arguments):
            asked.append(name)
            return found(*arguments)

        monkeypatch.setattr(owner, name, asks)

    noted(learning_sample, "neighbours")
    noted(Fitter, "nearby")
    sample = LearningSample(10, num_points, num_earlier=20, num_neighbours=2)
    points = sgp.PrivatePseudoPoints("all", budget=60, sample=sample)
    model = known_model(points, hyperparameters=sgp.PointHyperparameters(remember=False))
    for start, wanted in ((0, []), (30, [before]), (60, [before]), (90, ["nearby"])):
        asked.clear()
        model.update((X[start : start + 30], Y[start : start + 30]))
        assert asked == wanted


def test_what_the_newest_batches_say_of_epsilon_alone_need_be_no_distribution(rng):
    """An older factor, and a newer one that takes back a part of it: only the product is proper."""
    X, Y = smooth_data(rng, 28)
    points = sgp.PrivatePseudoPoints("all", budget=60)
    model = known_model(points, hyperparameters=sgp.VariationalHyperparameters())
    for rows in (slice(0, 24), slice(24, 28)):
        model.update((X[rows], Y[rows]), learn=False)
    first, newest = model.factors
    q = model.prior().hyperparameters
    sure = (type(q).from_mean_scale(q.mean, 0.1 * np.asarray(q.scale)) / q).as_arrays()
    ledger = model._now.ledger.with_factors(
        {
            first: replace(model.factors[first], hyperparameters=sure),
            newest: replace(model.factors[newest], hyperparameters=(sure**-0.5).as_arrays()),
        }
    )
    with pytest.raises(ImproperError):
        _ = ledger.without(first).posterior
    epsilon = model.parameter_vector.value()
    found = every_input.within(model._compiled.fitter, ledger, epsilon, budget=20, move=True)
    assert found.posterior.num_pseudo_points == 20
