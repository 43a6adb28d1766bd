"""Kernels, models and data that the tests of Gaussian processes share."""

from dataclasses import dataclass, replace

import gpflow
import numpy as np

import streaming_gp as sgp
from streaming_gp.gp import SparseBound
from streaming_gp.gp.process.observations import DataObservations
from streaming_gp.serialization import storable
from tests.oracles.reference import smooth_data
from tests.tolerances import THROUGH_CHOLESKY

NOISE = 0.05
MERGED = "merged"
"""Name of the factor that holds the batches that have lost theirs."""
QUICK = sgp.LocalOptimiser(max_iterations=10, rounds=2)
FIXED = sgp.FixedHyperparameters()
EVERY_INPUT = sgp.PrivatePseudoPoints("all")


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])


def rough_kernel():
    return gpflow.kernels.Matern52(lengthscales=[0.7, 1.1]) + gpflow.kernels.Linear(variance=0.3)


def mean_of_two():
    return gpflow.functions.Constant(2.0)


@storable
@dataclass(frozen=True)
class BoundOfOnesOwn(SparseBound):
    """The variational bound as TensorFlow differentiates it, with nothing in closed form."""

    is_evidence_bound = True

    def free_energy(self, f):
        q = f.posterior()
        return f.expected_log_likelihood(q.mean, q.variance) - q.kl


def classifier(**options):
    options.setdefault("hyperparameters", sgp.PointHyperparameters())
    options.setdefault("likelihood", gpflow.likelihoods.Bernoulli())
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(5))
    return sgp.StreamingGP(gpflow.kernels.SquaredExponential(), optimiser=QUICK, **options)


def regressor(**options):
    options.setdefault("hyperparameters", sgp.VariationalHyperparameters())
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(5))
    options.setdefault("optimiser", QUICK)
    return sgp.StreamingGP(kernel(), gpflow.likelihoods.Gaussian(0.1), **options)


def known_model(pseudo_points, likelihood=None, hyperparameters=FIXED, **options):
    """A model around 2, whose hyperparameters are known unless others are given."""
    return sgp.StreamingGP(
        kernel(), likelihood or gpflow.likelihoods.Gaussian(NOISE), mean_of_two(),
        pseudo_points=pseudo_points, hyperparameters=hyperparameters, **options,
    )  # fmt: skip


def exact_gp(data, noise=NOISE):
    """GPflow's own regression, which :func:`known_model` tends to."""
    return gpflow.models.GPR(data, kernel(), mean_function=mean_of_two(), noise_variance=noise)


def sparse_bound(data, Z, epsilon, mean=None, jitter=1e-6):
    """GPflow's bound at an ε of :func:`regressor`, or with a mean of :func:`known_model`."""
    k, noise = kernel(), gpflow.likelihoods.Gaussian()
    parameters = [k.lengthscales, k.variance, noise.variance, *(mean.parameters if mean else ())]
    for one, piece in zip(
        parameters, np.split(epsilon, [2, 3, 4][: len(parameters) - 1]), strict=True
    ):
        one.unconstrained_variable.assign(piece.reshape(one.shape))
    with gpflow.config.as_context(gpflow.config.Config(jitter=jitter)):
        return gpflow.models.SGPR(data, k, Z, mean_function=mean, likelihood=noise).elbo()


def labelled(rng, num=60):
    X, F = smooth_data(rng, num)
    return X, (F > 0).astype(float)


def thirds(X, Y):
    return {f"client-{i}": (X[i::3], Y[i::3]) for i in range(3)}


def stream(fitted, shards):
    for name, data in shards.items():
        fitted.update(data, batch_id=name)
    return fitted


def evidence(fitted):
    return float(fitted.maximum_log_likelihood_objective())


def assert_same_arrays(ones, others, tolerance):
    for a, b in zip(ones, others, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


def assert_same_predictions(one, other, X, tolerance=THROUGH_CHOLESKY, full_cov=(False, True)):
    """Of f at X, by two models: mean, variance and covariance."""
    for full in full_cov:
        assert_same_arrays(one.predict_f(X, full), other.predict_f(X, full), tolerance)


def assert_unchanged(model, X, before):
    """Predictions at X are those ``before``, bit for bit."""
    for a, b in zip(model.predict_f(X), before, strict=True):
        np.testing.assert_array_equal(a, b)


def as_pseudo_observations(one, likelihood):
    """Data under a likelihood as pseudo-observations, with R as matrices; others as they are."""
    if not isinstance(one, DataObservations):
        return one
    noise = 1.0 / likelihood.conditional_variance(one.Z, one.Y).numpy() if one.is_gaussian else None
    found = one.observed(noise)
    return replace(found, precision_factor=found.square)


def observed(model):
    """What a model with noise NOISE is conditioned on as pseudo-observations, and the log of the
    constant that they leave out.
    """
    found, constant = [], 0.0
    for one in model.posterior_process.pseudo_observations:
        if isinstance(one, DataObservations):
            constant -= 0.5 * one.weights.sum() * one.Y.shape[1] * np.log(2.0 * np.pi * NOISE)
        found.append(as_pseudo_observations(one, model.likelihood))
    return found, constant


def predicted(model, X):
    return [np.asarray(part) for part in model.predict_f(X)]


def model_of(hyperparameters, the_kernel=None, **options):
    """A point at every input: what is learned about ε has no other approximation beside it."""
    return sgp.StreamingGP(
        the_kernel or kernel(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=EVERY_INPUT, hyperparameters=hyperparameters, **options,
    )  # fmt: skip
