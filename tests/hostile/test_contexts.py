"""Within graphs and under eager functions: it works, or there is one clear error."""

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import ForkedError, InvalidDataError
from streaming_gp.serialization import storable
from tests.hostile.streams import FIXED, QUICK, dates, targets
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


def test_predictions_within_a_function_are_those_outside(unchanged):
    wanted = unchanged.predict_f(dates())
    found = tf.function(unchanged.predict_f, autograph=True)(tf.constant(dates()))
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
        tf.function(lambda: CHANGES[name](unchanged))()


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("name", ["update", "predict_f"])
def test_a_forked_process_is_refused_at_once(unchanged, name):
    """TensorFlow's threads are not there: whoever waited for them would wait for ever."""
    given = (dates(), targets(dates())) if name == "update" else dates()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            getattr(unchanged, name)(given)
        except ForkedError:
            os._exit(7)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_what_was_imported_before_tensorflow_ran_works_in_a_forked_process():
    code = """
import os
import gpflow, numpy as np, streaming_gp as sgp

child = os.fork()
if child == 0:
    X = np.linspace(0.0, 5.0, 20)[:, None]
    model = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1))
    model.update((X, np.sin(X)), learn=False)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def means(model, X):
    return model.predict_f(X)[0].numpy()


@pytest.mark.parametrize(
    "backend", ["threading", *(pytest.param(n, marks=pytest.mark.slow) for n in ("loky", "spawn"))]
)
def test_workers_of_a_pool_give_the_same_answers(unchanged, backend):
    joblib = pytest.importorskip("joblib")
    wanted = means(unchanged, dates())
    if backend == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.starmap(means, [(unchanged, dates())] * 2)
    else:
        call = joblib.delayed(means)(unchanged, dates())
        found = joblib.Parallel(n_jobs=2, backend=backend)([call] * 2)
    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=ALGEBRA)


CELL = """
@storable
@dataclass(frozen=True)
class MyPoints(sgp.OwnPseudoPoints):
    def place(self, candidates):
        return candidates.inputs[: self.number]

model = sgp.StreamingGP(
    gpflow.kernels.SquaredExponential(lengthscales=30.0), gpflow.likelihoods.Gaussian(0.1),
    hyperparameters=FIXED, pseudo_points=MyPoints(3, optimise_locations=False),
)
model.update((X, Y), batch_id="monday")
"""


def test_a_cell_that_runs_again_gives_the_same_model_and_a_named_batch_counts_once():
    cell = {
        "sgp": sgp, "gpflow": gpflow, "FIXED": FIXED, "storable": storable, "dataclass": dataclass,
        "X": dates(), "Y": targets(dates()), "__name__": __name__,
    }  # fmt: skip
    exec(CELL, cell)
    first = cell["model"]
    exec(CELL, cell)
    np.testing.assert_array_equal(means(first, dates()), means(cell["model"], dates()))
    assert means(copy.deepcopy(cell["model"]), dates()).shape == (len(dates()), 1)
    with pytest.raises(InvalidDataError, match="monday"):
        exec(CELL.splitlines()[-1], cell)
