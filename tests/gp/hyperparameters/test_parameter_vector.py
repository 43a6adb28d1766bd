"""All trainable parameters as one vector."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.gp import ParameterVector
from tests.gp.builders import kernel


def test_any_kernel_reads_from_the_substituted_vector(rng):
    shared = gpflow.kernels.SquaredExponential()
    k = gpflow.kernels.Periodic(shared, period=2.0) * gpflow.kernels.Linear() + shared
    vector, X = ParameterVector(k), rng.standard_normal((6, 1))
    epsilon = vector.value() + 0.3
    with vector.substituted(tf.constant(epsilon)):
        substituted = k(X).numpy()
    assert np.abs(substituted - k(X)).max() > 1e-3
    vector.assign(epsilon)
    np.testing.assert_allclose(substituted, k(X))


def test_substitution_ends_even_where_the_block_raises():
    k = kernel()
    vector = ParameterVector(k)
    with pytest.raises(RuntimeError), vector.substituted(tf.constant(vector.value() + 1.0)):
        raise RuntimeError
    np.testing.assert_allclose(k.lengthscales, 1.0)


def test_widths_stay_finite_at_the_lower_bound_of_a_parameter():
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    likelihood.variance.unconstrained_variable.assign(-700.0)
    np.testing.assert_array_equal(ParameterVector(likelihood).unit_log_widths(), [2.0])


def test_mixing_weights_have_a_prior_by_which_outputs_are_like_the_functions():
    W = np.array([[1.0, -3.0, 0.0, 0.5], [0.2, 0.0, 7.0, 1.0]])
    mixing = gpflow.kernels.LinearCoregionalization([kernel() for _ in range(4)], W)
    for part in mixing.kernels:
        gpflow.set_trainable(part, False)
    prior = sgp.VariationalHyperparameters(prior_log_scale=3.0).prior(ParameterVector(mixing))
    np.testing.assert_array_equal(prior.mean, W.ravel())
    np.testing.assert_allclose(prior.variance, 0.25)
    mixing.W.prior = tfp.distributions.Normal(np.float64(0.0), np.float64(2.0))
    prior = sgp.VariationalHyperparameters().prior(ParameterVector(mixing))
    np.testing.assert_allclose(prior.mean, 0.0, atol=0.1)
    np.testing.assert_allclose(prior.variance, 4.0, rtol=0.05)
