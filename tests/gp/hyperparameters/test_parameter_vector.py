"""All trainable parameters as one vector."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

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
