"""Figures of a model show what it says."""

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import streaming_gp as sgp
from streaming_gp import plotting
from streaming_gp.errors import InvalidDataError


@pytest.fixture(scope="module")
def model():
    found = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0]),
        gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Constant(1.0),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        optimiser=sgp.LocalOptimiser(max_iterations=2),
    )
    rng = np.random.default_rng(2)
    for number in (5, 8):
        X = rng.uniform(-1.0, 1.0, (number, 2))
        found.update((X, X[:, :1]), learn=False)
    return found


@pytest.fixture
def figure():
    return Figure()


def test_a_posterior_is_the_models_along_one_input(model, figure):
    axes = figure.subplots()
    data = np.zeros((3, 2)), np.full((3, 1), 0.5)
    assert plotting.posterior(model, axes, limits=(-2.0, 2.0), dimension=1, data=data) is axes
    mean, dots, ticks = axes.lines
    Z = np.concatenate([factor.Z for factor in model.factors.values()])
    at = np.stack([np.full(200, np.median(Z[:, 0])), mean.get_xdata()], axis=1)
    np.testing.assert_allclose(mean.get_ydata(), model.predict_f(at)[0][:, 0], rtol=1e-9)
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    predicted, variance = map(np.asarray, model.predict_f(at))
    np.testing.assert_allclose(high, (predicted + 2.0 * np.sqrt(variance)).max(), rtol=1e-9)
    np.testing.assert_allclose(low, (predicted - 2.0 * np.sqrt(variance)).min(), rtol=1e-9)
    assert dots.get_ydata().tolist() == [0.5] * 3
    np.testing.assert_array_equal(ticks.get_xdata(), Z[:, 1])
    assert axes.get_xlim() == (-2.0, 2.0)


def test_a_ledger_has_a_bar_for_each_factor(model, figure):
    axes = plotting.ledger(model, figure.subplots())
    assert [bar.get_width() for bar in axes.patches] == [5, 8]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["batch-0", "batch-1"]
    assert axes.get_title() == "prior × 2 factors, 13 points"


def test_every_hyperparameter_has_its_axes(model, figure):
    axes = plotting.hyperparameters(model, figure, num_samples=50)
    samples = model.hyperparameter_samples(50)
    assert len(axes) == sum(values[0].size for values in samples.values())
    by_title = {ax.get_title(): ax for ax in axes}
    assert by_title["kernel.lengthscales[1]"].get_xscale() == "log"
    assert by_title["mean_function.c"].get_xscale() == "linear"
    span = by_title["kernel.lengthscales[1]"].lines[0].get_xdata()
    np.testing.assert_allclose(
        span[[0, -1]], np.sort(samples["kernel.lengthscales"][:, 1])[[0, -1]]
    )


def test_without_axes_new_ones_are_made(model):
    plt.switch_backend("Agg")
    for draw in (plotting.posterior, plotting.ledger):
        assert draw(model).figure in map(plt.figure, plt.get_fignums())
    plt.close("all")


def test_what_cannot_be_drawn_is_refused(model, figure):
    empty = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1))
    with pytest.raises(InvalidDataError, match="wanted a model that has learned something"):
        plotting.posterior(empty)
    with pytest.raises(InvalidDataError, match="dimension must be from 0 to 1, got 2"):
        plotting.posterior(model, dimension=2)
    with pytest.raises(InvalidDataError, match="output must be from 0 to 0, got 1"):
        plotting.posterior(model, output=1)
    gpflow.set_trainable(empty.kernel, False)
    gpflow.set_trainable(empty.likelihood, False)
    with pytest.raises(InvalidDataError, match="no hyperparameters that are trainable"):
        plotting.hyperparameters(empty, figure)
