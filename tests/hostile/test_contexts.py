"""Within graphs and under eager functions: it works, or there is one clear error."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.hostile.streams import FIXED, QUICK, dates, targets
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


def test_predictions_within_a_function_are_those_outside(unchanged):
    wanted = unchanged.predict_f(dates())
    found = tf.function(lambda X: unchanged.predict_f(X))(tf.constant(dates()))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=ALGEBRA)


def test_predictions_within_a_pipeline_of_data_are_those_outside(unchanged):
    rows = tf.data.Dataset.from_tensor_slices(dates()).batch(len(dates()))
    (found,) = rows.map(lambda X: unchanged.predict_f(X)[0])
    np.testing.assert_allclose(found, unchanged.predict_f(dates())[0], rtol=ALGEBRA)


CHANGES = {
    "update": lambda model: model.update((dates(), targets(dates()))),
    "remove": lambda model: model.remove("batch-0"),
    "fade": lambda model: model.fade(0.5),
    "compress": lambda model: model.compress(2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_does_not_learn_while_a_graph_is_built(unchanged, name):
    with tf.Graph().as_default(), pytest.raises(InvalidDataError, match=f"{name} wants values"):
        CHANGES[name](unchanged)
    with pytest.raises(InvalidDataError, match=f"{name} wants values"):
        tf.function(lambda: CHANGES[name](unchanged), autograph=False)()


def test_a_graph_without_values_is_named(unchanged):
    with tf.Graph().as_default(), pytest.raises(InvalidDataError, match="wants values"):
        unchanged.predict_f(dates())


def learned():
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=30.0), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(2), optimiser=QUICK, num_prediction_samples=2,
        hyperparameters=FIXED,
    )  # fmt: skip
    model.update((dates(), targets(dates())), learn=False)
    return np.stack(model.predict_f(dates()))


@pytest.mark.slow
def test_functions_may_be_run_eagerly(unchanged):
    wanted = learned()
    tf.config.run_functions_eagerly(True)
    try:
        found = learned()
        optimised = gpflow.utilities.deepcopy(unchanged)
        optimised.update((dates(), targets(dates())))
        assert np.isfinite(optimised.predict_f(dates())[0]).all()
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(found, wanted, rtol=THROUGH_CHOLESKY)
