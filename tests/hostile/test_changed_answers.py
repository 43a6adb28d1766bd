"""What somebody changes between two updates is refused, or seen by copies and files as well."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.hostile.streams import FIXED, QUICK

X = np.random.default_rng(0).uniform(-1.0, 1.0, (8, 2))
Y = np.sin(2.0 * X[:, :1])


class Offset(gpflow.functions.MeanFunction):
    """Holds a plain variable."""

    def __init__(self):
        super().__init__()
        self.offset = tf.Variable([[0.5]], dtype=tf.float64, trainable=False)

    def __call__(self, X):
        return tf.zeros_like(X[:, :1]) + self.offset


def modules():
    kernel = gpflow.kernels.SquaredExponential(active_dims=[0])
    return {
        "kernel": kernel,
        "likelihood": gpflow.likelihoods.Gaussian(0.1),
        "mean_function": Offset(),
    }


@pytest.fixture(scope="module")
def learned():
    model = sgp.StreamingGP(
        **modules(), pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED,
        optimiser=QUICK, num_prediction_samples=2,
    )  # fmt: skip
    model.update((X, Y), learn=False)
    return model


@pytest.fixture
def model(learned):
    return copy.deepcopy(learned)


def test_settings_cannot_be_replaced(model):
    with pytest.raises(InvalidDataError, match="settings cannot be changed"):
        model.settings = replace(model.settings, num_prediction_samples=4)
    with pytest.raises(FrozenInstanceError):
        model.settings.num_prediction_samples = 4
    with pytest.raises(FrozenInstanceError):
        model.settings.pseudo_points.number = 4


def columns(model):
    model.kernel.active_dims = [1]


def prior(model):
    model.kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))


def another_setting(model):
    model.likelihood.variance_lower_bound = 1e-3


CHANGES = {"columns": columns, "prior": prior, "setting": another_setting}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_was_learned_with_is_refused(model, tmp_path, name):
    model.predict_f(X)  # compiled
    before = np.stack(model.predict_f(X))
    CHANGES[name](model)
    with pytest.raises(InvalidDataError, match="has changed since the model last learned"):
        model.update((X, Y))
    with pytest.raises(InvalidDataError, match="has changed since the model last learned"):
        model.save(tmp_path / "model.npz")
    for take in (copy.deepcopy, copy.copy, pickle.dumps):  # it predicts by what was there before
        with pytest.raises(InvalidDataError, match="has changed since the model last learned"):
            take(model)
    np.testing.assert_array_equal(np.stack(model.predict_f(X)), before)
    assert model.num_updates == 1


def test_a_plain_variable_is_seen_by_all(model, tmp_path):
    before = np.stack(model.predict_f(X))
    model.mean_function.offset.assign([[-0.5]])
    live = np.stack(model.predict_f(X))
    assert np.abs(live - before).max() > 0.01
    np.testing.assert_array_equal(np.stack(copy.deepcopy(model).predict_f(X)), live)
    model.save(tmp_path / "model.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "model.npz", **modules())
    np.testing.assert_array_equal(np.stack(loaded.predict_f(X)), live)


def test_arrays_of_factors_are_read_only(model):
    for factor in model.factors.values():
        for array in factor.pseudo_observations[0].arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0.0
    with pytest.raises(TypeError):
        model.factors["batch-0"] = None
