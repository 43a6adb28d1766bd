"""A distribution over ε, against NUTS and its own algebra."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.gp import ParameterVector
from tests.oracles.builders import EVERY_INPUT, FIXED, kernel, model_of
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA

LONG = sgp.LocalOptimiser(max_iterations=300)
OF_A_FAMILY = 0.3
"""By how many standard deviations, or what share of them, a Gaussian may miss the posterior."""
BY_DRAWS = 0.02
"""Relative error of moments of some ten thousand draws."""


def variables_of(q, location, scale):
    """Optimiser variables of a Gaussian."""
    white = (np.linalg.solve(scale, part) for part in (q.mean - location, q.scale))
    return np.ravel(type(q).from_mean_scale(*white).unconstrained())


@pytest.mark.parametrize("full_covariance", [False, True])
def test_variables_of_a_gaussian_are_read_as_it(rng, full_covariance):
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    prior = strategy.prior(ParameterVector(kernel()))
    E = len(prior.mean)
    root = np.eye(E) + (0.3 * np.tril(rng.normal(size=(E, E))) if full_covariance else 0.0)
    q = type(prior).from_mean_scale(rng.normal(size=E), 0.3 * root)
    location, scale = strategy.location_scale(prior, None)
    found = strategy.posterior(variables_of(q, location, scale), location, scale)
    np.testing.assert_allclose(found.mean, q.mean, rtol=ALGEBRA)
    np.testing.assert_allclose(
        found.scale @ np.transpose(found.scale),
        q.scale @ np.transpose(q.scale),
        rtol=ALGEBRA,
        atol=ALGEBRA,
    )


def nuts(log_density, start, scale, num_samples=600, seed=3):
    """Draws from ``log_density`` by NUTS, preconditioned by ``scale``."""
    kernel_ = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(log_density, step_size=0.3 * scale, max_tree_depth=6), 300
    )

    @tf.function(autograph=False)
    def run():
        return tfp.mcmc.sample_chain(
            num_samples, start, kernel=kernel_, num_burnin_steps=400, trace_fn=None,
            seed=tf.constant([seed, 0], tf.int32),
        )  # fmt: skip

    return run().numpy()


@pytest.mark.slow
def test_the_variational_posterior_of_exact_regression_is_that_of_nuts(rng):
    """With Z = X the structured q(ε) is plain VI on the exact marginal likelihood."""
    X, Y = smooth_data(rng, 100, noise=0.3)
    model = model_of(sgp.VariationalHyperparameters(full_covariance=True), optimiser=LONG)
    prior = model.hyperparameter_posterior
    model.update((X, Y))
    q = model.hyperparameter_posterior

    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    vector = ParameterVector(oracle)
    assert list(vector.parameters) == list(model.parameter_vector.parameters)

    def log_density(epsilon):
        with vector.substituted(epsilon):
            log_prior = tfp.distributions.MultivariateNormalTriL(prior.mean, prior.scale)
            return oracle.log_marginal_likelihood() + log_prior.log_prob(epsilon)

    draws = nuts(log_density, tf.constant(q.mean), np.sqrt(q.variance))
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    assert (np.abs(q.mean - mean) < OF_A_FAMILY * sd).all()
    ratio = np.sqrt(q.variance) / sd
    assert (ratio > 1.0 - OF_A_FAMILY).all()
    assert (ratio < 1.0 + OF_A_FAMILY).all()


@pytest.mark.parametrize("full_covariance", [False, True])
def test_a_step_that_makes_epsilon_too_narrow_to_be_squared_is_none(full_covariance):
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    parameters = ParameterVector(kernel())
    zeros, unit = np.zeros(parameters.size), np.eye(parameters.size)

    def penalty(width):
        widths = unit.copy()
        widths[-1, -1] = width
        q = type(strategy.prior(parameters)).from_mean_scale(zeros, widths)
        return strategy.penalty(tf.constant(variables_of(q, zeros, unit)), parameters).numpy()

    assert penalty(1e-14) == pytest.approx(-np.log(1e-14) - 0.5)
    assert penalty(1e-16) == np.inf


def test_gpflow_priors_become_the_prior_of_epsilon():
    k = kernel()
    k.variance.prior = tfp.distributions.Gamma(np.float64(80.0), np.float64(20.0))
    k.lengthscales.prior = tfp.distributions.Normal(np.float64(-1.0), np.float64(0.2))
    k.lengthscales.prior_on = "unconstrained"
    model = model_of(sgp.VariationalHyperparameters(), k)
    paths = list(model.parameter_vector.parameters)
    q = model.hyperparameter_posterior
    i = paths.index("kernel.lengthscales")
    np.testing.assert_allclose(q.mean[i : i + 2], -1.0, atol=0.5 * BY_DRAWS)
    np.testing.assert_allclose(np.sqrt(q.variance)[i : i + 2], 0.2, rtol=BY_DRAWS)
    draws = model.hyperparameter_samples(50_000)["kernel.variance"]
    np.testing.assert_allclose(draws.mean(), 4.0, rtol=0.5 * BY_DRAWS)
    np.testing.assert_allclose(draws.std(), 80.0**0.5 / 20.0, rtol=BY_DRAWS)


def test_the_default_prior_is_as_wide_in_the_logarithm_as_asked():
    k = gpflow.kernels.SquaredExponential(variance=1e-3, lengthscales=[30.0, 1.0])
    model = model_of(sgp.VariationalHyperparameters(prior_log_scale=0.05), k)
    for path, draws in model.hyperparameter_samples(50_000).items():
        np.testing.assert_allclose(
            np.std(np.log(draws), axis=0), 0.05, rtol=2.5 * BY_DRAWS, err_msg=path
        )


def test_earlier_batches_say_less_of_epsilon_and_the_same_of_f(rng):
    """What a batch finds is prior × Π t_a(ε)^(λ^age) over ε, and all of f as it was."""
    share = 0.5
    model = model_of(sgp.VariationalHyperparameters(forgetting_factor=share))
    prior = model.ledger.prior.hyperparameters
    written = []
    for number in range(3):
        X, Y = smooth_data(rng, 12)
        before = model.factors
        model.update((X, Y))
        newest = model.factors[f"batch-{number}"].hyperparameters
        written = [factor**share for factor in written] + [newest]
        for name, factor in before.items():
            assert model.factors[name].pseudo_observations is factor.pseudo_observations
    q = model.hyperparameter_posterior
    expected = prior.times(written)
    np.testing.assert_allclose(q.mean, expected.mean, rtol=ALGEBRA)
    np.testing.assert_allclose(q.variance, expected.variance, rtol=ALGEBRA)


@pytest.mark.slow
def test_epsilon_follows_a_change_that_exact_memory_averages_over(rng):
    """The noise rises tenfold halfway: with a forgetting factor the model comes to believe it."""

    def noise_believed_in(share):
        model = sgp.StreamingGP(
            kernel(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=sgp.PrivatePseudoPoints(8),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=4, forgetting_factor=share),
            optimiser=sgp.LocalOptimiser(max_iterations=15),
        )  # fmt: skip
        for scale in [0.1] * 3 + [1.0] * 2:
            X = rng.uniform(-2, 2, (60, 2))
            Y = np.sin(X.sum(axis=1, keepdims=True)) + scale * rng.standard_normal((60, 1))
            model.update((X, Y))
        return float(np.mean(model.hyperparameter_samples(1000)["likelihood.variance"]))

    assert 0.7 < noise_believed_in(0.1) < 1.4
    assert noise_believed_in(1.0) < 0.5


@pytest.mark.slow
def test_predictions_integrate_over_epsilon(rng):
    X, Y = smooth_data(rng, 30)
    model = model_of(sgp.VariationalHyperparameters())
    model.update((X, Y))
    Xnew = rng.uniform(-3, 3, (7, 2))
    vector = model.parameter_vector
    means, variances, log_densities = [], [], []
    Ynew = rng.standard_normal((7, 1))
    of_f = replace(model.factors["batch-0"], hyperparameters=None)
    for epsilon in model.prediction_draws:
        known = sgp.StreamingGP(
            model.kernel, model.likelihood, pseudo_points=EVERY_INPUT,
            hyperparameters=FIXED, num_latent_gps=1,
        )  # fmt: skip
        known.adopt(known.ledger.replaced("batch-0", of_f))
        before = vector.value()
        vector.assign(epsilon)
        mean, variance = known.predict_f(Xnew)
        log_densities.append(known.predict_log_density((Xnew, Ynew)))
        vector.assign(before)
        means.append(mean)
        variances.append(variance)
    mean, variance = model.predict_f(Xnew)
    np.testing.assert_allclose(mean, np.mean(means, axis=0), rtol=10.0 * ALGEBRA)
    total = np.mean(variances, axis=0) + np.var(means, axis=0)
    np.testing.assert_allclose(variance, total, rtol=10.0 * ALGEBRA)
    mixture = np.log(np.mean(np.exp(log_densities), axis=0))
    np.testing.assert_allclose(
        model.predict_log_density((Xnew, Ynew)), mixture, rtol=10.0 * ALGEBRA
    )


PERIODS = {
    "periodic": lambda: gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential(), period=1.02),
    "cosine": lambda: gpflow.kernels.Cosine(lengthscales=1.02),
}


@pytest.mark.parametrize("repeats", PERIODS)
def test_a_period_is_found_in_many_of_them(rng, repeats):
    """As by maximum likelihood of all data at once, from one start. With one as wide as that of
    other parameters the log density is below -2.
    """
    X = np.sort(rng.uniform(0.0, 20.0, size=(220, 1)), axis=0)
    f = 3.0 * np.sin(2.0 * np.pi * X) + 0.5 * X
    Y = f + 0.3 * rng.normal(size=X.shape)
    (X, X_new), (Y, Y_new) = np.split(X, [200]), np.split(Y, [200])

    def seasons():
        trend = gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=10.0)
        return trend + PERIODS[repeats]()

    gp = sgp.StreamingGP(seasons(), gpflow.likelihoods.Gaussian(0.5), seed=0)
    gp.update((X, Y))
    exact = gpflow.models.GPR((X, Y), seasons(), noise_variance=0.5)
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    found, wanted = (np.mean(m.predict_log_density((X_new, Y_new))) for m in (gp, exact))
    assert found > wanted - 0.3
