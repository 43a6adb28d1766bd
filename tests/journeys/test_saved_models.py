"""Saved models: what a file may be, what must fit it, and streams that continue bit for bit; a
streaming GP as a SavedModel, for those who serve TensorFlow.
"""

import inspect
import os
import pickle
import subprocess
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import signature

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp import pvi
from streaming_gp import serialization as ser
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import QUICK
from tests.oracles.reference import smooth_data
from tests.oracles.saved_streams import (
    STREAMS,
    batch,
    begun,
    content,
    in_another_process,
    predictions,
    regression,
    small_disk,
)
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "stream.npz"
    begun("fixed").save(path)
    before = path.read_bytes()
    with small_disk(), pytest.raises(OSError, match="too large"):
        begun("variational").save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["stream.npz"]


def changed(name, edit):
    modules = regression(1.0)
    edit(modules[name])
    return modules


def with_exponential(kernel):
    kernel.variance = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(base="exp"))


def with_prior(kernel):
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))


def one_parameter_twice(kernel):
    kernel.variance = kernel.lengthscales


SE, GAUSSIAN = gpflow.kernels.SquaredExponential, gpflow.likelihoods.Gaussian


MISFITS = {
    "kernel": ({"kernel": gpflow.kernels.Matern32()},
               "kernel does not fit the file: wanted SquaredExponential, got Matern32"),
    "shape": ({"kernel": SE(lengthscales=[1.0, 1.0])},
              r"kernel\.lengthscales .* shape \[\].* shape \[2\]"),
    "columns": ({"kernel": SE(active_dims=[0])}, r"kernel\.active_dims"),
    "transform": (changed("kernel", with_exponential), r"kernel\.variance .*Softplus.*Exp"),
    "prior": (changed("kernel", with_prior), r"prior Gamma\(concentration=2.0, rate=1.0\)"),
    "sharing": (changed("kernel", one_parameter_twice), r"same as kernel"),
    "trainability": (changed("mean_function", lambda m: gpflow.set_trainable(m, True)),
                     r"mean_function\.c .*wanted fixed .*got trainable"),
    "mean function": ({"mean_function": None}, "mean_function .*wanted Constant, got Zero"),
    "lower bound": ({"likelihood": GAUSSIAN(variance_lower_bound=1e-2)}, "wanted 1e-12, got 0.01"),
    "parametrisation": ({"likelihood": GAUSSIAN(scale=0.3)}, r"likelihood\.variance .*got nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_modules_that_do_not_fit_are_refused_and_the_difference_is_named(tmp_path, name):
    given_modules, message = MISFITS[name]
    modules = {**regression(1.0), **given_modules}
    begun("fixed").save(tmp_path / "stream.npz")
    with pytest.raises(InvalidDataError, match=message):
        sgp.StreamingGP.load(tmp_path / "stream.npz", **modules)


def test_every_argument_of_the_model_is_stored():
    arguments = set(signature(sgp.StreamingGP).parameters)
    not_stored = {"kernel", "likelihood", "mean_function", "journal"}
    said_by_the_bound = {"alpha"}
    assert {
        field.name for field in fields(begun("fixed").settings)
    } == arguments - not_stored - said_by_the_bound


def test_every_strategy_is_registered():
    no_settings = {
        "Candidates",
        "GPUpdate",
        "LocalBound",
        "LocalFunction",
        "Progress",
        "UpdateInfo",
    }
    strategies = {
        value for name, value in vars(sgp.gp).items()
        if is_dataclass(value) and not inspect.isabstract(value) and name not in no_settings
    } | {pvi.RaiseImproper, pvi.BacktrackDamping, pvi.LargestProperFraction}  # fmt: skip
    assert strategies <= set(ser.registered_classes().values())


def test_a_strategy_that_is_not_registered_is_named(tmp_path):
    @dataclass(frozen=True)
    class Mine(sgp.FixedHyperparameters):
        pass

    with pytest.raises(InvalidDataError, match=r"settings\.hyperparameters is of type Mine"):
        begun("fixed", hyperparameters=Mine()).save(tmp_path / "stream.npz")
    assert not os.listdir(tmp_path)


LONG_STREAMS = ["labels", "mixed"]


def continue_streams(folder):
    """In another process: load every stream, learn one more batch."""
    for name, (modules, _) in STREAMS.items():
        model = sgp.StreamingGP.load(f"{folder}/{name}.npz", **modules(2.0))
        loaded = predictions(model)
        model.update(batch(name, 2))
        model.save(f"{folder}/{name} continued.npz")
        np.savez(f"{folder}/{name} predictions.npz", loaded=loaded, continued=predictions(model))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder, and what saves a model there after two batches."""
    folder = tmp_path_factory.mktemp("streams")

    @cache
    def model_of(name):
        model = begun(name)
        for index in range(2):
            model.update(batch(name, index))
        model.save(folder / f"{name}.npz")
        return model

    return folder, model_of


@pytest.fixture(scope="module")
def streams(saved):
    """Models that were saved after two batches, and a folder where they were continued."""
    folder, model_of = saved
    models = {name: model_of(name) for name in STREAMS}
    child = in_another_process(continue_streams, folder, stderr=subprocess.PIPE)
    _, complaints = child.communicate()
    assert child.returncode == 0, complaints
    return folder, models


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_continues_bit_for_bit_in_another_process(streams, tmp_path, name):
    folder, models = streams
    there, model = np.load(folder / f"{name} predictions.npz"), models[name]
    np.testing.assert_array_equal(there["loaded"], predictions(model))
    model.update(batch(name, 2))
    np.testing.assert_array_equal(there["continued"], predictions(model))
    model.save(tmp_path / "here.npz")
    there_bytes = (folder / f"{name} continued.npz").read_bytes()
    assert (tmp_path / "here.npz").read_bytes() == there_bytes


@pytest.mark.parametrize(
    "name",
    ["variational", "fixed", *(pytest.param(n, marks=pytest.mark.slow) for n in LONG_STREAMS)],
)
def test_a_state_is_a_value(saved, name):
    """It can be pickled, as scikit-learn does, and makes the same model again."""
    model = saved[1](name)
    state = model.state
    copy = sgp.StreamingGP.from_state(pickle.loads(pickle.dumps(state)), **STREAMS[name][0](2.0))
    assert same(copy.state, state)
    assert float(copy.training_loss()) == float(model.training_loss())


OTHERS = {
    "shared": {"pseudo_points": sgp.SharedPseudoPoints(3)},
    "conditional": {"pseudo_points": sgp.ConditionalPseudoPoints(2)},
    "full covariance": {"hyperparameters": sgp.VariationalHyperparameters(full_covariance=True)},
    "policy": {"policy": pvi.BacktrackDamping(shrink=0.7)},
    "power EP": {"alpha": 0.5, "pseudo_points": sgp.PrivatePseudoPoints(3, budget=6)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_strategies_continue_bit_for_bit(tmp_path, name):
    model = begun("variational", **OTHERS[name])
    for index in range(3):
        model.update(batch("", index))
    model.save(tmp_path / "stream.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "stream.npz", **regression(2.0))
    np.testing.assert_array_equal(predictions(loaded), predictions(model))
    for each in (model, loaded):
        each.update(batch("", 3))
    np.testing.assert_array_equal(predictions(loaded), predictions(model))
    assert content(loaded, tmp_path) == content(model, tmp_path)


def test_data_are_not_stored(saved):
    folder, model_of = saved
    model_of("variational")
    X, Y = batch("variational", 0)
    with np.load(folder / "variational.npz") as archive:
        stored = np.concatenate([archive[name].ravel() for name in archive.files])
    assert not np.isin(np.concatenate([X, Y]), stored).any()


@pytest.mark.slow
def test_a_saved_model_predicts_inputs_of_any_number(rng, tmp_path):
    """With learned parameters, of which it holds the draws, and one that is fixed."""
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(likelihood, False)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), likelihood,
        pseudo_points=sgp.PrivatePseudoPoints(4), optimiser=QUICK,
    )  # fmt: skip
    model.update(smooth_data(rng, 20))
    inputs = tf.TensorSpec([None, 2], tf.float64)
    served = tf.Module()
    served.parts = [model.kernel, model.mean_function, model.likelihood]
    served.predict_f = tf.function(model.predict_f, input_signature=[inputs])
    served.predict_y = tf.function(model.predict_y, input_signature=[inputs])
    tf.saved_model.save(served, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for number in (1, 7):
        X = rng.uniform(-2.0, 2.0, (number, 2))
        ours = *loaded.predict_f(tf.constant(X)), *loaded.predict_y(tf.constant(X))
        for a, b in zip(ours, (*model.predict_f(X), *model.predict_y(X)), strict=True):
            np.testing.assert_allclose(a, b, rtol=ALGEBRA)
