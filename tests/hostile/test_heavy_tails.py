"""Student's t: data far from what is expected are outliers, or the first of what is new."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp.bounds.sites import LEAST_WEIGHT, SMALLEST_RESIDUAL, fixed_point_sites
from tests.oracles.builders import EVERY_INPUT, FIXED

SCALE, DF = 0.1, 3.0


def heavy_tails():
    return gpflow.likelihoods.StudentT(scale=SCALE, df=DF)


def sites_at(residuals, variance):
    mean = tf.fill([len(residuals), 1], tf.constant(0.3, tf.float64))
    Y = mean + np.reshape(residuals, mean.shape)
    variances = tf.fill(mean.shape, tf.constant(variance, tf.float64))
    sites = fixed_point_sites(heavy_tails(), mean, mean, variances, Y)
    return Y, *(part.numpy() for part in sites)


def test_where_f_is_known_sites_have_curvatures_near_it_and_weights_of_expectations_far_off():
    residuals = np.array([-3.0, -0.2, -0.1, 0.05, 0.5, 20.0])
    Y, precision_mean, precision = sites_at(residuals, 1e-12)
    width = DF * SCALE**2
    weights = (DF + 1.0) / (width + residuals**2)
    curvatures = weights * (width - residuals**2) / (width + residuals**2)
    is_near = np.abs(residuals) < 0.15
    expected = np.where(is_near, curvatures, LEAST_WEIGHT * weights)
    np.testing.assert_allclose(precision[:, 0], expected, rtol=1e-5)
    pull = precision_mean - precision * (Y - residuals[:, None])  # ∂E[log p]/∂μ
    np.testing.assert_allclose(pull[:, 0], weights * residuals, rtol=1e-5)


@pytest.mark.parametrize("variance", [1e-4, 0.1, 10.0])
def test_precisions_are_positive_and_continuous(variance):
    residuals = np.array([0.0, 0.5 * SMALLEST_RESIDUAL, 1e-5, 0.1, 1.0, 30.0])
    _, _, precision = sites_at(residuals, variance)
    assert np.all(precision > 0.0)
    np.testing.assert_allclose(precision[:2, 0], precision[2, 0], rtol=1e-4)


@pytest.mark.parametrize(
    "points",
    [EVERY_INPUT, sgp.ConditionalPseudoPoints(20)],
    ids=["all", "conditional"],
)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_function_is_found_among_outliers(points, seed):
    """Not left wherever the prior was by data that are too far from it to count."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (150, 1))
    F = 2.0 * np.sin(X)
    kernel = gpflow.kernels.SquaredExponential(variance=4.0)
    model = sgp.StreamingGP(kernel, heavy_tails(), pseudo_points=points, hyperparameters=FIXED)
    info = model.update((X, F + 0.1 * rng.standard_t(2, F.shape)))
    mean, _ = model.predict_f(X)
    assert np.sqrt(np.mean((mean - F) ** 2)) < 0.07
    assert info.clipped_sites == 0
