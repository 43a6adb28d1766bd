"""A streaming GP as a SavedModel, for those who serve TensorFlow."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from tests.oracles.builders import QUICK
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA


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
