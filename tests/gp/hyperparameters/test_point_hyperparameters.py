"""ε as one value: fixed, by maximum likelihood, and MAP, against GPflow."""

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

import streaming_gp as sgp
from tests.gp.builders import kernel, model_of
from tests.reference import smooth_data

LONG = sgp.LocalOptimiser(max_iterations=300)
EVIDENCE, WHERE_IT_IS_FLAT = 1e-5, 2e-2
"""Relative differences of two optimisers: in the evidence, and in parameters at its flat top."""


def test_maximum_likelihood_is_that_of_the_exact_gp(rng):
    X, Y = smooth_data(rng)
    model = model_of(sgp.PointHyperparameters(), optimiser=LONG)
    info = model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(info.free_energy, oracle.log_marginal_likelihood(), rtol=EVIDENCE)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )


@pytest.mark.parametrize("prior_on", ["constrained", "unconstrained"])
def test_map_adds_gpflow_priors_once(rng, prior_on):
    X, Y = smooth_data(rng)

    def with_prior():
        k = kernel()
        k.lengthscales.prior = tfp.distributions.Normal(np.float64(3.0), np.float64(0.1))
        k.lengthscales.prior_on = prior_on
        return k

    model = model_of(sgp.PointHyperparameters(), with_prior(), optimiser=LONG)
    model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), with_prior(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )
    np.testing.assert_allclose(model.kernel.variance, oracle.kernel.variance, rtol=WHERE_IT_IS_FLAT)


def test_fixed_hyperparameters_stay(rng):
    model = model_of(sgp.FixedHyperparameters())
    before = model.parameter_vector.value()
    model.update(smooth_data(rng))
    np.testing.assert_array_equal(model.parameter_vector.value(), before)


def test_one_point_batches_do_not_trap_maximum_likelihood(rng):
    """One point's likelihood is largest without noise; later batches must find back from there."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(4), hyperparameters=sgp.PointHyperparameters(),
    )  # fmt: skip
    noise = []
    for size in (50, 1, 50, 50):
        X = rng.uniform(-3, 3, (size, 1))
        model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
        noise.append(model.likelihood.variance.numpy())
    assert noise[1] < 1e-3 < noise[-1] < 0.1
