"""All trainable parameters as one vector."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.gp import ParameterVector
from tests.oracles.builders import kernel


def test_any_kernel_reads_from_the_substituted_vector(rng):
    shared = gpflow.kernels.SquaredExponential()
    k = gpflow.kernels.Periodic(shared, period=2.0) * gpflow.kernels.Linear() + shared
    vector, X = ParameterVector(k), rng.standard_normal((6, 1))
    epsilon = vector.value() + np.linspace(0.1, 0.5, vector.size)  # none like another
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


def test_periods_are_told_from_other_parameters():
    seasons = gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential())
    waves = gpflow.kernels.Cosine(lengthscales=[1.0, 2.0])
    vector = ParameterVector(seasons * gpflow.kernels.Matern32() + waves)
    of_entries = [path for path, p in vector.parameters.items() for _ in np.ravel(p)]
    found = [path for path, is_one in zip(of_entries, vector.are_periods(), strict=True) if is_one]
    of_waves = "kernels[1].lengthscales"
    assert found == ["kernels[0].kernels[0].period", of_waves, of_waves]
    alone = ParameterVector(waves)
    np.testing.assert_array_equal(alone.are_periods(), [True, True, False])


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


class Modules(tf.Module):
    """What a model has parameters of."""

    def __init__(self, kernel, mean_function):
        super().__init__()
        self.kernel, self.mean_function = kernel, mean_function


@pytest.mark.parametrize(
    ("offset", "unit"),
    [(0.0, 2.0), (-1.0, 2.0), (7.0, 7.0), (-7.0, 7.0), (30.0, 20.0), (1e5, 20.0)],
)
def test_an_offset_counts_as_known_to_some_standard_deviations_of_f(offset, unit):
    k = gpflow.kernels.SquaredExponential(variance=3.0) + gpflow.kernels.Matern12(variance=1.0)
    gpflow.set_trainable(k.kernels[1].variance, False)
    vector = ParameterVector(Modules(k, gpflow.functions.Constant(offset)))
    mean, scale = vector.prior_moments(3.0)
    assert mean[-1] == offset
    np.testing.assert_allclose(scale[-1], 3.0 * unit)
    np.testing.assert_allclose(vector.unit_log_widths()[-1], unit)


def test_the_units_of_offsets_follow_the_variance_that_is_asked_about():
    k = gpflow.kernels.SquaredExponential(variance=4.0)
    vector = ParameterVector(Modules(k, gpflow.functions.Constant(0.0)))
    at = vector.value()
    k.variance.assign(9.0)
    np.testing.assert_allclose(vector.unit_log_widths()[-1], 3.0)
    np.testing.assert_allclose(vector.unit_log_widths(at)[-1], 2.0)
    linear = Modules(gpflow.kernels.Cosine(), gpflow.functions.Constant(0.0))
    gpflow.set_trainable(linear.kernel, False)
    np.testing.assert_allclose(ParameterVector(linear).unit_log_widths(), [1.0])


def test_a_stream_far_from_zero_is_learned_with_a_constant_that_starts_there(rng):
    X = rng.uniform(-3.0, 3.0, (100, 1))
    Y = 1e5 + np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Constant(1e5),
    )
    for rows in (slice(0, 50), slice(50, 100)):
        model.update((X[rows], Y[rows]))
    at = np.linspace(-2.5, 2.5, 20)[:, None]
    np.testing.assert_allclose(model.predict_f(at)[0], 1e5 + np.sin(2.0 * at), atol=0.15)
    assert 0.005 < model.likelihood.variance.numpy() < 0.02
