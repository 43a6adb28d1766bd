"""Warnings of a model while it learns; ``test_overconfidence.py`` has those of small errors."""

import warnings

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import PoorFitWarning


def shuffled(rng, depends=True):
    """A hundred data all over eight dimensions."""
    X = rng.standard_normal((100, 8))
    Y = np.sin(X).sum(axis=1, keepdims=True) if depends else rng.standard_normal((100, 1))
    return X, (Y - Y.mean()) / Y.std()


def model_on(points, hyperparameters=None):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(8))
    return sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        hyperparameters=hyperparameters,
    )  # fmt: skip


def warnings_of(model, data):
    """What an update warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.update(data)
    return [str(one.message) for one in said]


FEW = [
    sgp.SharedPseudoPoints(20, growth=2),
    pytest.param(sgp.PrivatePseudoPoints(2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("points", FEW, ids=["shared", "private"])
def test_points_too_few_to_tell_a_function_from_noise(rng, points):
    model = model_on(points)
    with pytest.warns(PoorFitWarning, match="batch-0.*2 pseudo-points.*wanted more points"):
        model.update(shuffled(rng))
    assert warnings_of(model, shuffled(rng)) == []  # it is said once


def test_with_points_enough_for_the_function_nothing_is_said(rng):
    model = model_on(sgp.SharedPseudoPoints(30))
    assert warnings_of(model, shuffled(rng)) == []


@pytest.mark.slow
def test_a_batch_that_is_noise_at_every_input_needs_no_more_points(rng):
    model = model_on(sgp.PrivatePseudoPoints("all"))
    assert warnings_of(model, shuffled(rng, depends=False)) == []


def test_hyperparameters_that_are_known_have_learned_nothing(rng):
    model = model_on(sgp.PrivatePseudoPoints(2), sgp.FixedHyperparameters())
    model.kernel.variance.assign(1e-4)
    assert warnings_of(model, shuffled(rng)) == []


def warned_of_inputs(kernel, X, strategy=None):
    """What is said of inputs at the first update of a model with this kernel."""
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=strategy or sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=1),
    )  # fmt: skip
    said = warnings_of(model, (X, np.sin(X).sum(axis=1, keepdims=True)))
    return [one for one in said if "inputs lie" in one]


def on_a_line(scale=1.0, number=20):
    return scale * np.linspace(0.0, 10.0, number)[:, None]


SAID = r"inputs lie \d+(\.\d+)? lengthscales from their nearest.*standardised inputs"


def test_inputs_that_say_nothing_of_one_another():
    model = sgp.StreamingGP(
        gpflow.kernels.Matern32(), gpflow.likelihoods.Bernoulli(),
        optimiser=sgp.LocalOptimiser(max_iterations=1),
    )  # fmt: skip
    X = on_a_line(1e3)
    with pytest.warns(PoorFitWarning, match=SAID):
        model.update((X, np.float64(X > 5e3)))


@pytest.mark.parametrize("kernel", ["SquaredExponential", "Periodic", "Linear"])
def test_inputs_in_units_of_lengthscales_are_nothing_to_warn_of(kernel):
    periodic = gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential())
    made = periodic if kernel == "Periodic" else getattr(gpflow.kernels, kernel)()
    assert warned_of_inputs(made, on_a_line(1e3 if kernel != "SquaredExponential" else 1.0)) == []


def product(lengthscale=1.0):
    far = gpflow.kernels.Matern12(active_dims=[1], lengthscales=lengthscale)
    return gpflow.kernels.SquaredExponential(active_dims=[0]) * far


def test_inputs_are_looked_at_where_a_distribution_has_lengthscales_to_learn():
    X = np.hstack([on_a_line(), on_a_line(1e4)])
    assert len(warned_of_inputs(product(), X)) == 1
    assert warned_of_inputs(product(1e3), X) == []  # they start at the spread
    assert warned_of_inputs(product(), X[:19]) == []  # too few to tell
    assert warned_of_inputs(product(), np.repeat(X[:1], 30, axis=0)) == []


@pytest.mark.slow
def test_lengthscales_that_are_not_learned_are_nothing_to_warn_of():
    X = np.hstack([on_a_line(), on_a_line(1e4)])
    assert warned_of_inputs(product(), X, sgp.PointHyperparameters()) == []
    chosen = product()
    gpflow.set_trainable(chosen.kernels[1].lengthscales, False)
    assert warned_of_inputs(chosen, X) == []
    chosen.kernels[1].lengthscales = np.float64(1.0)  # no parameter any more
    assert warned_of_inputs(chosen, X) == []


def test_targets_that_are_all_at_the_prior_mean_have_no_size_to_warn_of():
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        optimiser=sgp.LocalOptimiser(max_iterations=1),
    )  # fmt: skip
    assert warnings_of(model, (on_a_line(), np.zeros((20, 1)))) == []
