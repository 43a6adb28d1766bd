"""Likelihoods that are not Gaussian, at the limit where the approximation is exact."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from tests.oracles.builders import FIXED, rough_kernel
from tests.oracles.reference import smooth_data, svgp_at_optimum
from tests.tolerances import (
    FREE_ENERGY_AT_OPTIMUM,
    PREDICTIONS_AT_OPTIMUM,
    THROUGH_CHOLESKY,
    THROUGH_NUGGET,
)

PROBABILITIES = 2e-3
"""By how much Monte Carlo probabilities of all classes together may miss one."""
FREE_ENERGY_BY_DRAWS = 1e-2
"""Relative error of a free energy whose expectations are Monte Carlo estimates."""


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


LIKELIHOODS = {
    "probit": (lambda: gpflow.likelihoods.Bernoulli(), lambda f: f > 0),
    "logit": (lambda: gpflow.likelihoods.Bernoulli(invlink=tf.math.sigmoid), lambda f: f > 0),
    "poisson": (lambda: gpflow.likelihoods.Poisson(), lambda f: np.round(np.exp(f))),
    "student": (lambda: gpflow.likelihoods.StudentT(scale=0.3, df=4.0), lambda f: f),
}


@pytest.mark.parametrize("name", ["probit", *map(slow, ["logit", "poisson", "student"])])
@pytest.mark.parametrize("number", [slow(12), "all"])
def test_one_batch_is_svgp_at_its_optimum(rng, name, number):
    make, observe = LIKELIHOODS[name]
    X, F = smooth_data(rng, 70, noise=0.3)
    Y = observe(F).astype(float)
    model = sgp.StreamingGP(
        rough_kernel(), make(), pseudo_points=sgp.PrivatePseudoPoints(number), hyperparameters=FIXED
    )
    info = model.update((X, Y))
    oracle, elbo = svgp_at_optimum((X, Y), rough_kernel(), make(), model.factors[info.batch_id].Z)
    np.testing.assert_allclose(info.free_energy, elbo, rtol=FREE_ENERGY_AT_OPTIMUM)
    Xnew = rng.uniform(-2, 2, (20, 2))
    for a, b in zip(model.predict_y(Xnew), oracle.predict_y(Xnew), strict=True):
        np.testing.assert_allclose(a, b, atol=PREDICTIONS_AT_OPTIMUM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (gpflow.likelihoods.Softmax, 0.03),  # Monte Carlo on both sides
        (gpflow.likelihoods.MultiClass, 0.08),  # not log-concave: clipped sites miss the optimum
    ],
)
def test_several_classes_agree_with_svgp(rng, make, tolerance):
    X, F = smooth_data(rng, 90, 3)
    Y = np.argmax(F, axis=1)[:, None]
    se = lambda: gpflow.kernels.SquaredExponential(variance=2.0)  # noqa: E731
    model = sgp.StreamingGP(
        se(), make(3), pseudo_points=sgp.PrivatePseudoPoints(10), hyperparameters=FIXED
    )
    info = model.update((X, Y))
    assert model.num_latent_gps == 3
    many_draws = make(3)  # GPflow's Softmax draws anew at each call
    many_draws.num_monte_carlo_points = 2000
    oracle, elbo = svgp_at_optimum((X, Y), se(), many_draws, model.factors[info.batch_id].Z)
    np.testing.assert_allclose(info.free_energy, elbo, rtol=FREE_ENERGY_BY_DRAWS)
    probability = np.asarray(model.predict_y(X)[0])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, atol=PROBABILITIES)
    np.testing.assert_allclose(probability, oracle.predict_y(X)[0], atol=tolerance)


@pytest.mark.slow
def test_several_binary_outputs_are_several_models(rng):
    X, F = smooth_data(rng, 50, 2)
    Y = (F > 0).astype(float)
    se = lambda: gpflow.kernels.SquaredExponential()  # noqa: E731
    points = sgp.PrivatePseudoPoints(8, optimise_locations=False)
    make = lambda: sgp.StreamingGP(  # noqa: E731
        se(), gpflow.likelihoods.Bernoulli(), pseudo_points=points, hyperparameters=FIXED
    )
    joint, apart = make(), [make(), make()]
    joint_info = joint.update((X, Y))
    infos = [model.update((X, Y[:, i : i + 1])) for i, model in enumerate(apart)]
    total = sum(info.free_energy for info in infos)
    np.testing.assert_allclose(joint_info.free_energy, total, rtol=THROUGH_CHOLESKY)
    mean = np.asarray(joint.predict_f(X)[0])
    for i, model in enumerate(apart):
        np.testing.assert_allclose(mean[:, i : i + 1], model.predict_f(X)[0], atol=THROUGH_NUGGET)


def test_likelihoods_by_monte_carlo_are_evaluated_at_fixed_points(data, new_inputs):
    """GPflow's stochastic Gaussian, made deterministic, agrees with the closed form."""
    stochastic, exact = (
        sgp.StreamingGP(
            rough_kernel(), make(0.5), pseudo_points=sgp.PrivatePseudoPoints("all"),
            hyperparameters=FIXED,
        )
        for make in (gpflow.likelihoods.GaussianMC, gpflow.likelihoods.Gaussian)
    )  # fmt: skip
    infos = [model.update(data) for model in (stochastic, exact)]
    np.testing.assert_allclose(*(info.free_energy for info in infos), rtol=THROUGH_CHOLESKY)
    for found, wanted in zip(
        stochastic.predict_y(new_inputs), exact.predict_y(new_inputs), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=FREE_ENERGY_AT_OPTIMUM)
