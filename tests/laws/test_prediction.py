"""Shapes, samples and gradients of predictions."""

import sys

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Process, prediction
from streaming_gp.gp.process import dense
from tests.laws import eager
from tests.oracles.builders import predicted, regressor
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, STANDARD_ERRORS, THROUGH_CHOLESKY

NARROW = sgp.VariationalHyperparameters(prior_log_scale=0.3)
"""A prior of ε that predictions average over as over any other q(ε)."""


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(2)
    model = sgp.StreamingGP(
        gpflow.kernels.Matern32(lengthscales=[1.0, 1.0]), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(6), hyperparameters=NARROW,
    )  # fmt: skip
    for _ in range(2):
        model.update(smooth_data(rng, 40, 3), learn=False)
    return model


@pytest.fixture
def Xnew(rng):
    return rng.uniform(-2, 2, (5, 2))


def test_covariance_shapes_are_those_of_gpflow_and_agree(model, Xnew):
    joint = model.predict_f(Xnew, True, True)[1].numpy()
    assert joint.shape == (5, 3, 5, 3)
    n, p = np.arange(5), np.arange(3)
    for full_cov, full_output_cov, expected in (
        (False, False, joint[n[:, None], p, n[:, None], p]),
        (True, False, np.stack([joint[:, i, :, i] for i in p])),
        (False, True, np.stack([joint[i, :, i, :] for i in n])),
    ):
        mean, cov = model.predict_f(Xnew, full_cov, full_output_cov)
        assert (mean.shape, cov.shape) == ((5, 3), expected.shape)
        np.testing.assert_allclose(cov, expected, atol=0.1 * ALGEBRA)


def test_the_joint_covariance_is_positive_definite(model, Xnew):
    joint = model.predict_f(Xnew, True, True)[1].numpy().reshape(15, 15)
    assert np.linalg.eigvalsh(joint).min() > 0.0
    assert np.abs(joint.reshape(5, 3, 5, 3)[0, 0, 0, 1]) > 0.0  # ε moves all outputs together


@pytest.mark.parametrize("full_cov", [True, False])
def test_samples_have_the_predicted_moments(model, Xnew, full_cov):
    number = 16_000
    samples = model.predict_f_samples(Xnew, number, full_cov=full_cov).numpy()
    assert samples.shape == (number, 5, 3)
    mean, variance = (np.asarray(t) for t in model.predict_f(Xnew))
    error = np.sqrt(variance / number)
    assert (np.abs(samples.mean(axis=0) - mean) < STANDARD_ERRORS * error).all()
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=0.06)
    correlation = np.corrcoef(samples[:, 0, 0], samples[:, 1, 0])[0, 1]
    predicted = model.predict_f(Xnew, full_cov=True)[1].numpy()[0]
    if full_cov:
        expected = predicted[0, 1] / np.sqrt(predicted[0, 0] * predicted[1, 1])
        assert abs(correlation - expected) < 0.05


def test_samples_of_a_function_that_is_known_are_that_function():
    X, Xnew = np.linspace(0.0, 3.0, 100)[:, None], np.linspace(0.0, 3.0, 200)[:, None]
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(1e-4),
        hyperparameters=sgp.FixedHyperparameters(),
    )  # fmt: skip
    model.likelihood.variance.assign(1e-10)
    model.update((X, np.sin(X)))
    deviation = np.sqrt(model.predict_f(Xnew)[1])
    for samples in (
        model.predict_f_samples(Xnew, 3),
        tf.function(lambda X: model.predict_f_samples(X, 3))(tf.constant(Xnew)),
    ):
        assert (np.abs(samples - np.sin(Xnew)) < STANDARD_ERRORS * deviation).all()


def test_samples_follow_their_seed(model, Xnew):
    a, b = model.predict_f_samples(Xnew, 3), model.predict_f_samples(Xnew, 3)
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - model.predict_f_samples(Xnew, 3, seed=9)).max() > 1e-3
    assert model.predict_f_samples(Xnew).shape == (5, 3)


def test_predict_y_adds_the_noise_and_its_uncertainty(model, Xnew):
    f_mean, f_var = model.predict_f(Xnew)
    y_mean, y_var = model.predict_y(Xnew)
    np.testing.assert_allclose(y_mean, f_mean)
    vector = model.parameter_vector
    draws = vector.constrained(model.prediction_draws)["likelihood.variance"]
    np.testing.assert_allclose(y_var - f_var, np.mean(draws), rtol=THROUGH_CHOLESKY)


@pytest.mark.parametrize(("module", "converted"), [(dense, np.asarray), (prediction, tf.constant)])
def test_predictions_in_chunks_are_the_same(model, rng, monkeypatch, module, converted):
    X = converted(rng.uniform(-2, 2, (300, 2)))
    whole = [np.asarray(t) for t in model.predict_f(X)]
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1)
    for a, b in zip(whole, model.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA, atol=1e-3 * ALGEBRA)


def test_predictions_have_gradients_in_the_input(model, Xnew):
    point = tf.Variable(Xnew)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(model.predict_f(point)[0])
    gradient = tape.gradient(value, point).numpy()
    step = 1e-5 * np.eye(1, 10, 3).reshape(5, 2)
    ahead, behind = (np.sum(model.predict_f(Xnew + s)[0]) for s in (step, -step))
    np.testing.assert_allclose(gradient[1, 1], (ahead - behind) / 2e-5, rtol=1e-4)


def test_asking_for_the_evidence_keeps_no_number(model, monkeypatch):
    """TensorFlow would keep a tensor for every Python number, for good."""
    compact = model.posterior_process.compact
    monkeypatch.setattr(Process, "compact", compact)
    before = sys.getrefcount(compact.log_scale)
    found = model.maximum_log_likelihood_objective()
    after = sys.getrefcount(compact.log_scale)
    assert np.isfinite(found)
    assert after == before


def test_tensors_and_arrays_are_predicted_alike(model, Xnew):
    for full_cov in (False, True):
        arrays = model.predict_f(Xnew, full_cov)
        tensors = model.predict_f(tf.constant(Xnew), full_cov)
        for one, other in zip(arrays, tensors, strict=True):
            np.testing.assert_allclose(one, other, atol=THROUGH_CHOLESKY)


def test_before_any_data_predictions_are_the_prior(rng):
    kernel = gpflow.kernels.SquaredExponential(variance=2.0)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), gpflow.functions.Constant(3.0),
        hyperparameters=sgp.FixedHyperparameters(),
    )  # fmt: skip
    mean, variance = model.predict_f(rng.standard_normal((4, 3)))
    np.testing.assert_allclose(mean, 3.0)
    np.testing.assert_allclose(variance, 2.0)


@eager
def test_changing_a_fixed_parameter_changes_predictions(rng):
    """What was factorised for other values is not used again."""
    kernel = gpflow.kernels.SquaredExponential()
    gpflow.set_trainable(kernel.variance, False)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), hyperparameters=sgp.FixedHyperparameters()
    )
    X, Y = smooth_data(rng, 20)
    model.update((X, Y))
    before = np.asarray(model.predict_f(X)[1])
    kernel.variance.assign(4.0)
    between = np.asarray(model.predict_f(X)[1])
    kernel.lengthscales.assign(0.3)
    assert np.abs(before - between).max() > 1e-4
    assert np.abs(between - model.predict_f(X)[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0.0]], r"\[N, 2\].*got \[1, 1\]"),
        ([[np.nan, 0.0]], "finite"),
        ([], "shape"),
        ([["a", "b"]], "real"),
    ],
)
def test_bad_inputs_are_refused(model, bad, message):
    with pytest.raises(InvalidDataError, match=message):
        model.predict_f(bad)


def test_log_density_refuses_what_update_refuses(model, Xnew):
    with pytest.raises(InvalidDataError, match="as many rows"):
        model.predict_log_density((Xnew, np.zeros((2, 3))))


def test_joint_observations_are_refused_as_in_gpflow(model, Xnew):
    with pytest.raises(NotImplementedError):
        model.predict_y(Xnew, full_cov=True)
    with pytest.raises(NotImplementedError):
        model.predict_f_samples(Xnew, full_cov=True, full_output_cov=True)


class CountingInputs:
    """An array-like that counts how often it is converted."""

    def __init__(self, X):
        self.X = X
        self.conversions = 0

    def __array__(self, dtype=None, copy=None):
        self.conversions += 1
        return np.asarray(self.X, dtype)


PREDICTIONS = {
    "f": lambda model, X, Y: model.predict_f(X),
    "covariance of f": lambda model, X, Y: model.predict_f(X, full_cov=True),
    "y": lambda model, X, Y: model.predict_y(X),
    "log density": lambda model, X, Y: model.predict_log_density((X, Y)),
    "samples": lambda model, X, Y: model.predict_f_samples(X),
}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_inputs_are_converted_once(model, Xnew, name):
    X = CountingInputs(Xnew)
    PREDICTIONS[name](model, X, np.zeros((5, 3)))
    assert X.conversions == 1


def test_many_points_are_predicted_with_fewer_values_of_the_hyperparameters(data, monkeypatch):
    X, Y = data
    model = regressor(hyperparameters=NARROW)
    model.update((X, Y), learn=False)
    many = predicted(model, X)
    assert len(model.prediction_draws) == 16
    monkeypatch.setattr(prediction, "MOST_FACTORISED", 4 * 5**2)
    assert len(model.prediction_draws) == 4
    few = predicted(model, X)
    monkeypatch.setattr(prediction, "MOST_FACTORISED", 5**2)
    assert len(model.prediction_draws) == 1
    one = predicted(model, X)
    for found in (few, one):
        error = np.mean((found[0] - many[0]) ** 2)
        assert 0.0 < error < 0.05 * np.var(Y)
