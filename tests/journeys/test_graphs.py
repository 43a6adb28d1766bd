"""Compiled functions: traced once, freed with their model."""

import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.oracles.builders import QUICK, regressor
from tests.oracles.reference import smooth_data


class CountingKernel(gpflow.kernels.SquaredExponential):
    """Python calls it, or a copy of it, only while a function is traced."""

    calls = 0

    def K(self, X, X2=None):
        type(self).calls += 1
        return super().K(X, X2)


def counting_model(**options):
    return sgp.StreamingGP(
        CountingKernel(), gpflow.likelihoods.Gaussian(0.1), optimiser=QUICK,
        pseudo_points=sgp.PrivatePseudoPoints(5), **options,
    )  # fmt: skip


def test_updates_of_any_size_trace_nothing_after_the_first(rng):
    model, calls = counting_model(), []
    for size in [30, 1, 17, 30, 8, 55, 2, 41]:
        X, Y = smooth_data(rng, size)
        model.update((X, Y))
        model.predict_f(X)
        calls.append(model.kernel.calls)
    assert calls == [calls[0]] * len(calls)
    assert calls[0] > 0


def test_absorbing_batches_of_any_size_traces_nothing_after_the_first(rng):
    model, calls = counting_model(), []
    for number, size in enumerate([30, 1, 17, 30, 8, 55, 2, 41]):
        X, Y = smooth_data(rng, size)
        model.update((X, Y), learn=number % 3 == 0)
        calls.append(model.kernel.calls)
    assert calls[1:] == [calls[1]] * len(calls[1:])


def count_graphs():
    gc.collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


@pytest.mark.slow
def test_a_model_that_is_dropped_leaves_no_graphs(rng):
    """Its parameters have exponential transforms: the gradient of TFP's softplus keeps graphs."""
    logarithmic = replace(gpflow.config.config(), positive_bijector="exp")
    before = count_graphs()
    with gpflow.config.as_context(logarithmic):
        model = regressor()
    X, Y = smooth_data(rng, 20)
    for _ in range(2):
        model.update((X, Y))
        assert np.isfinite(model.predict_y(X)[0]).all()
    assert count_graphs() > before
    del model
    assert count_graphs() <= before


ROOT = Path(__file__).resolve().parents[2]
LONG_STREAM = """
import gpflow, numpy as np, psutil, streaming_gp as sgp
from tests.journeys.test_graphs import CountingKernel

resident = lambda: psutil.Process().memory_info().rss / 2**20
rng = np.random.default_rng(0)
model = sgp.StreamingGP(
    CountingKernel(), gpflow.likelihoods.Gaussian(0.1),
    pseudo_points=sgp.PrivatePseudoPoints(1), hyperparameters=sgp.PointHyperparameters(),
    optimiser=sgp.LocalOptimiser(max_iterations=20),
)
for batch in range(210):
    X = rng.uniform(-3, 3, (rng.integers(1, 80), 1))
    model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
    model.predict_f(X)
    if batch == 9:
        start, calls = resident(), model.kernel.calls
print(resident() - start, model.kernel.calls - calls)
"""


@pytest.mark.slow
def test_two_hundred_updates_do_not_leak():
    """One point a batch keeps the ledger, whose matrices may grow, small beside a leak; the process
    is its own, so that nothing else allocates."""
    run = subprocess.run(
        [sys.executable, "-c", LONG_STREAM], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    grown, traces = run.stdout.split()
    assert float(grown) < 30.0
    assert int(traces) == 0
