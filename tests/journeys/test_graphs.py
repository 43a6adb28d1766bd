"""Compiled functions: traced once, shared by models of one kind, freed with them."""

import gc
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from gpflow.utilities import positive

import streaming_gp as sgp
from tests.oracles.builders import EVERY_INPUT, regressor
from tests.oracles.reference import smooth_data

BRIEF = sgp.LocalOptimiser(max_iterations=2, rounds=1)


class CountingKernel(gk.SquaredExponential):
    """Python calls it, or a copy of it, only while a function is traced."""

    calls = 0

    def K(self, X, X2=None):
        type(self).calls += 1
        return super().K(X, X2)


def test_updates_of_any_size_trace_nothing_after_the_first_of_their_kind(rng):
    """Whether they learn hyperparameters or not."""
    model, calls = model_of(CountingKernel(), pseudo_points=sgp.PrivatePseudoPoints(5)), []
    for number, size in enumerate([30, 1, 55, 8]):
        X, Y = smooth_data(rng, size)
        model.update((X, Y), learn=number % 2 == 0)
        model.predict_f(X)
        calls.append(model.kernel.calls)
    assert calls[1:] == [calls[1]] * len(calls[1:])
    assert calls[0] > 0


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


class OwnKernel(gk.SquaredExponential):
    """Of a library that is not known: its graphs are its model's own."""


class Link:
    def of(self, f):
        return tf.sigmoid(f)


def model_of(kernel=None, likelihood=None, optimiser=BRIEF, **options):
    kernel, likelihood = kernel or gk.SquaredExponential(), likelihood or gl.Gaussian(0.1)
    return sgp.StreamingGP(kernel, likelihood, optimiser=optimiser, **options)


def graphs(model, dims=(2, 1)):
    return model._functions().of(model._store.state, dims).local.graphs_of_fits


def shares(one, other):
    return graphs(one) is graphs(other)


def kernel_with(**settings):
    kernel, given = gk.SquaredExponential(), {"transform": positive(), **settings}
    kernel.lengthscales = gpflow.Parameter(1.0, **given)
    return kernel


def tied(first, second):
    kernel = gk.SquaredExponential() + gk.Matern32()
    kernel.kernels[second].variance = kernel.kernels[first].lengthscales
    return kernel


def prior(scale):
    return tfp.distributions.LogNormal(np.float64(0.0), np.float64(scale))


ALIKE = {
    "values": lambda: (
        model_of(gk.SquaredExponential(2.0, 0.3), gl.Gaussian(0.2)), model_of(seed=3)
    ),
    "sums": lambda: [
        model_of(gk.SquaredExponential(active_dims=[1]) * gk.Periodic(gk.Matern12()))
        for _ in range(2)
    ],
    "parameters": lambda: (model_of(), model_of(kernel_with())),
    "priors": lambda: [model_of(kernel_with(prior=prior(2.0))) for _ in range(2)],
    "labels": lambda: [model_of(likelihood=gl.Bernoulli()) for _ in range(2)],
    "tied": lambda: [model_of(tied(0, 1)) for _ in range(2)],
    "outputs": lambda: [
        model_of(gpflow.kernels.SharedIndependent(gk.Matern52(), output_dim=3)) for _ in range(2)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_models_of_a_kind_share_graphs(name):
    assert shares(*ALIKE[name]())


OTHERS = {
    "kernel": lambda: model_of(gk.Matern32()),
    "lengthscales": lambda: model_of(gk.SquaredExponential(lengthscales=[1.0, 1.0])),
    "columns": lambda: model_of(gk.SquaredExponential(active_dims=[0])),
    "transform": lambda: model_of(kernel_with(transform=tfp.bijectors.Exp())),
    "prior": lambda: model_of(kernel_with(prior=prior(1.0))),
    "likelihood": lambda: model_of(likelihood=gl.StudentT()),
    "bound of noise": lambda: model_of(likelihood=gl.Gaussian(0.1, variance_lower_bound=1e-3)),
    "mean": lambda: model_of(mean_function=gpflow.functions.Constant()),
    "hyperparameters": lambda: model_of(hyperparameters=sgp.PointHyperparameters()),
    "conditional": lambda: model_of(pseudo_points=sgp.ConditionalPseudoPoints(3)),
}


@pytest.fixture(scope="module")
def plain():
    return graphs(model_of())


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_have_other_graphs(name, plain):
    assert graphs(OTHERS[name]()) is not plain


def test_what_is_learned_of_epsilon_is_nothing_to_predictions():
    two = [model_of(hyperparameters=how) for how in (None, sgp.PointHyperparameters())]
    first, second = (model._functions().of(model._store.state, (2, 1)).local for model in two)
    assert first.graphs is second.graphs
    assert first.graphs is not first.graphs_of_fits


def test_what_else_models_differ_in(plain):
    with gpflow.config.as_context(replace(gpflow.config.config(), jitter=1e-5)):
        assert graphs(model_of()) is not plain
    assert graphs(model_of(), dims=(1, 1)) is not plain
    sums = tied(0, 1), tied(1, 0), gk.SquaredExponential() + gk.Matern32()
    assert len({id(kept) for kept in [graphs(model_of(one)) for one in sums]}) == 3
    pairs = [[gl.StudentT(df=df) for df in values] for values in ((1.0, 2.0), (3.0, 4.0))]
    for two in [*pairs, [gl.Bernoulli(invlink=link) for link in (tf.sigmoid, tf.exp)]]:
        assert not shares(*(model_of(likelihood=one) for one in two))


def fixed():
    kernel = gk.SquaredExponential()
    gpflow.set_trainable(kernel.variance, False)
    return kernel


@pytest.mark.parametrize(
    "make",
    [
        lambda: model_of(OwnKernel()),
        lambda: model_of(fixed()),
        lambda: model_of(likelihood=gl.MultiClass(3)),
        lambda: model_of(likelihood=gl.Bernoulli(invlink=lambda f: tf.sigmoid(f))),
        lambda: model_of(likelihood=gl.Bernoulli(invlink=Link().of)),
    ],
    ids=["own class", "fixed value", "fixed value of a link", "own function", "own method"],
)
def test_what_may_change_unseen_is_not_shared(make):
    assert not shares(make(), make())


AT_A_POINT = {"pseudo_points": EVERY_INPUT, "hyperparameters": sgp.PointHyperparameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        AT_A_POINT,
        {"pseudo_points": sgp.PrivatePseudoPoints(5)},
        {"pseudo_points": sgp.ConditionalPseudoPoints(5)},
    ],
    ids=["at every input", "private", "conditional"],
)
def test_what_is_shared_gives_what_own_graphs_do(options, rng):
    """Of other values, with other data, in another order of calls."""
    before = model_of(**options)
    before.update(smooth_data(rng, 12))
    batches = [smooth_data(rng, size) for size in (15, 9)]
    found = []
    for kernel in (gk.SquaredExponential(1.7, 0.6), OwnKernel(1.7, 0.6)):
        model = model_of(kernel, gl.Gaussian(0.3), **options)
        assert shares(model, before) == (type(kernel) is not OwnKernel)
        for batch in batches:
            model.update(batch)
        X, Y = batches[0]
        values = *model.predict_y(X), model.predict_log_density((X, Y)), *model.predict_f(X)
        found.append([np.asarray(value) for value in values])
    for shared, own in zip(*found, strict=True):
        np.testing.assert_array_equal(shared, own)


def test_graphs_keep_no_model(rng):
    model = regressor(pseudo_points=EVERY_INPUT, optimiser=BRIEF)
    X, Y = smooth_data(rng, 10)
    model.update((X, Y))
    model.predict_y(X)
    kept, gone = weakref.ref(graphs(model)), weakref.ref(model)
    held = weakref.ref(model._store.compiled.posteriors._newest)
    del model
    gc.collect()
    assert kept() is not None
    assert gone() is None
    assert held() is None
