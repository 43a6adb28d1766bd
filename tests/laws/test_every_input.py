"""A pseudo-point at every input, while a budget lasts."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.strategies import MERGED
from tests.oracles.builders import (
    EVERY_INPUT,
    assert_same_predictions,
    exact_gp,
    known_model,
    labelled,
    model_of,
    thirds,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


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


def test_rounds_within_a_budget_are_refused(data):
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    with pytest.raises(InvalidDataError, match="merges batches"):
        model.synchronous_round({"a": data})
