"""Shared pseudo-points."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.strategies import MERGED
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    NOISE,
    assert_same_predictions,
    evidence,
    exact_gp,
    kernel,
    known_model,
    mean_of_two,
    stream,
    thirds,
)
from tests.oracles.reference import smooth_data, svgp_at_optimum
from tests.tolerances import ALGEBRA, FREE_ENERGY_AT_OPTIMUM, THROUGH_CHOLESKY, THROUGH_NUGGET

EXACT_SITES = sgp.LocalOptimiser(rounds=1, site_steps=100)
VISITED_THRICE = 3e-5
"""Absolute error of a free energy after three passes, in nats."""


def test_fixed_shared_points_are_sgpr_on_all_data_and_stay_so(data, new_inputs):
    shards = thirds(*data)
    streamed = stream(known_model(sgp.SharedPseudoPoints(12, optimise_locations=False)), shards)
    oracle = gpflow.models.SGPR(
        data, kernel(), streamed.factors["client-0"].Z,
        mean_function=mean_of_two(), noise_variance=NOISE,
    )  # fmt: skip
    nugget = streamed.factors["client-0"].pseudo_observations[0].nugget
    with gpflow.config.as_context(gpflow.config.Config(jitter=nugget)):
        elbo = float(oracle.elbo())
        predicted = oracle.predict_f(new_inputs)
    for visit in range(2):
        assert evidence(streamed) == pytest.approx(elbo, rel=ALGEBRA)
        for a, b in zip(streamed.predict_f(new_inputs), predicted, strict=True):
            np.testing.assert_allclose(a, b, atol=THROUGH_CHOLESKY)
        if visit == 0:
            for name, shard in shards.items():
                streamed.revisit(name, shard)


@pytest.mark.slow
def test_revisits_on_shared_points_climb_to_svgp_on_all_data(data, new_inputs):
    X, labels = data[0], (data[1] > 0).astype(float)
    likelihood = gpflow.likelihoods.Bernoulli()
    points = sgp.SharedPseudoPoints(12, optimise_locations=False)
    streamed = sgp.StreamingGP(
        kernel(), likelihood, pseudo_points=points,
        hyperparameters=FIXED, optimiser=EXACT_SITES,
    )  # fmt: skip
    shards = thirds(X, labels)
    stream(streamed, shards)
    oracle, elbo = svgp_at_optimum(
        (X, labels), kernel(), likelihood, streamed.factors["client-0"].Z
    )
    after_one_pass = evidence(streamed)
    for _ in range(2):
        for name, shard in shards.items():
            streamed.revisit(name, shard)
    assert after_one_pass < elbo - 5e-5  # one pass is not enough
    assert evidence(streamed) == pytest.approx(elbo, abs=VISITED_THRICE)
    for a, b in zip(streamed.predict_f(new_inputs), oracle.predict_f(new_inputs), strict=True):
        np.testing.assert_allclose(a, b, atol=FREE_ENERGY_AT_OPTIMUM)


@pytest.mark.slow
def test_moving_shared_points_bound_the_evidence_from_below(data):
    X, Y = data
    order = np.argsort(X[:, 0])
    fitted = known_model(sgp.SharedPseudoPoints(25, kept_batches=2))
    free_energies = [fitted.update((X[i], Y[i])).free_energy for i in np.array_split(order, 4)]
    exact = exact_gp(data)
    truth = float(exact.log_marginal_likelihood())
    assert truth - 20.0 < sum(free_energies) < truth
    assert evidence(fitted) == pytest.approx(sum(free_energies), abs=THROUGH_CHOLESKY)
    assert list(fitted.factors) == [MERGED, "batch-2", "batch-3"]
    assert fitted.posterior_process.num_pseudo_points == 25
    with pytest.raises(InvalidDataError, match=r"no factor 'batch-0'.*merged"):
        fitted.revisit("batch-0", data)


def test_as_many_shared_points_as_data_are_exact(rng, new_inputs):
    X, Y = smooth_data(rng, 30)
    exact = stream(known_model(EVERY_INPUT), thirds(X, Y))
    to_the_end = sgp.LocalOptimiser(tolerance=0.0)
    shared = known_model(sgp.SharedPseudoPoints(30), optimiser=to_the_end)
    stream(shared, thirds(X, Y))
    assert_same_predictions(exact, shared, new_inputs, 10.0 * THROUGH_NUGGET, (False,))
    assert evidence(shared) == pytest.approx(evidence(exact), abs=100.0 * THROUGH_NUGGET)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood", ["regression", pytest.param("classification", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "hyperparameters",
    [
        sgp.VariationalHyperparameters(),
        pytest.param(sgp.PointHyperparameters(remember=True), marks=pytest.mark.slow),
    ],
    ids=["variational", "point"],
)
def test_shared_points_learn_hyperparameters(data, likelihood, hyperparameters):
    X, Y = data
    regression = likelihood == "regression"
    targets = Y if regression else (Y > 0).astype(float)
    fitted = sgp.StreamingGP(
        kernel(),
        gpflow.likelihoods.Gaussian(0.5) if regression else gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.SharedPseudoPoints(15), hyperparameters=hyperparameters,
        optimiser=sgp.LocalOptimiser(max_iterations=24, rounds=3),
    )  # fmt: skip
    for rows in np.array_split(np.argsort(X[:, 0]), 3):
        fitted.update((X[rows], targets[rows]))
    mean = np.asarray(fitted.predict_y(X)[0])
    if regression:
        assert np.mean((mean - Y) ** 2) < 0.1 * np.var(Y)
        assert 0.002 < float(fitted.likelihood.variance.numpy()) < 0.1
    else:
        assert np.mean((mean > 0.5) == (targets > 0.5)) > 0.9
