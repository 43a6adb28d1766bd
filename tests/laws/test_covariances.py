"""Covariances do not lose their digits where inputs lie far from zero."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk

import streaming_gp as sgp
from streaming_gp.gp.export import describe_kernel
from streaming_gp.gp.process.prior import (
    among,
    between,
    covariance,
    depends_on_differences,
    prior_mean,
)
from streaming_gp.runtime import kernel_of
from tests.tolerances import ALGEBRA

FAR = 1e6
STATIONARY = {
    "squared exponential": gk.SquaredExponential(lengthscales=0.3),
    "sum": gk.Matern52() + gk.White(0.2) + gk.Bias(0.1),
    "product": gk.Matern32() * gk.RationalQuadratic(),
}


def columns_near_and_far(rng):
    """Inputs [5, 2] whose second column never changes, and those without it."""
    near = rng.uniform(-1.0, 1.0, (5, 1))
    return near, np.concatenate([near, np.full((5, 1), FAR)], axis=1)


@pytest.mark.parametrize("kernel", STATIONARY.values(), ids=STATIONARY)
def test_a_column_that_never_changes_says_nothing(kernel, rng):
    near, far = columns_near_and_far(rng)
    assert depends_on_differences(kernel)
    for some in (slice(None), slice(2)):
        wanted = covariance(kernel, near, near[some])
        np.testing.assert_allclose(covariance(kernel, far, far[some]), wanted, atol=ALGEBRA)
    np.testing.assert_allclose(covariance(kernel, far), covariance(kernel, near), atol=ALGEBRA)
    exported = kernel_of(describe_kernel(kernel, 2))
    exported.centre(far[0])
    found = exported.covariance(far, far[:2])
    np.testing.assert_allclose(found, covariance(kernel, near, near[:2])[0], atol=ALGEBRA)


@pytest.mark.parametrize(
    "kernel",
    [
        gk.Linear(),
        gk.SquaredExponential() + gk.Linear(),
        gk.ChangePoints([gk.Matern32(), gk.Matern52()], locations=[0.3]),
    ],
)
def test_kernels_of_places_see_the_inputs_as_they_are(kernel, rng):
    assert not depends_on_differences(kernel)
    X = rng.uniform(0.0, 1.0, (4, 1))
    np.testing.assert_array_equal(covariance(kernel, X)[0], kernel(X))


def test_a_kernel_for_each_function_is_moved_on_its_own(rng):
    parts = [gk.SquaredExponential(lengthscales=0.3), gk.Linear()]
    near, far = columns_near_and_far(rng)
    found = covariance(gpflow.kernels.SeparateIndependent(parts), far)
    np.testing.assert_allclose(found[0], parts[0](near), atol=ALGEBRA)
    np.testing.assert_array_equal(found[1], parts[1](far))


@pytest.mark.parametrize("lengthscale", [1e-6, 1e-9, 1e-12])
def test_covariances_are_no_larger_than_variances_at_any_lengthscale(lengthscale, rng):
    """Rounding makes squares of distances negative there, and GPflow's covariances infinite."""
    kernel = gk.SquaredExponential(variance=2.0, lengthscales=lengthscale)
    X = rng.standard_normal((30, 50))
    found, other = among(kernel, X)[0], between(kernel, X, X[:9])[0]
    np.testing.assert_array_equal(np.diagonal(found), 2.0)
    assert np.abs(found).max() == 2.0
    assert np.abs(other).max() <= 2.0


def test_a_first_batch_of_few_data_in_many_dimensions(rng):
    """The prior of a lengthscale that starts long reaches to next to nothing."""
    X = rng.standard_normal((20, 50))
    model = sgp.StreamingGP(
        gk.SquaredExponential(lengthscales=np.full(50, 7.0)), gpflow.likelihoods.Gaussian(), seed=0
    )
    model.update((X, X[:, :1]))
    assert np.isfinite(model.predict_f(X)).all()


def test_a_zero_mean_has_one_column_or_one_for_each_function():
    X = tf.zeros([4, 2], tf.float64)
    for width in (1, 3):
        found = prior_mean(gpflow.functions.Zero(width), X, 3)
        np.testing.assert_array_equal(found, np.zeros((4, 3)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        prior_mean(gpflow.functions.Zero(2), X, 3)
