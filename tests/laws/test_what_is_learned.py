"""Whatever is trainable is learned: mean functions, unusual kernels, nothing at all."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import EVERY_INPUT, FIXED, kernel, model_of, regressor
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA


def test_parameters_that_are_not_trainable_stay(rng):
    k = kernel()
    gpflow.set_trainable(k.variance, False)
    model = model_of(sgp.VariationalHyperparameters(), k)
    model.update(smooth_data(rng))
    assert k.variance.numpy() == 1.0
    assert "kernel.variance" not in model.hyperparameter_samples(3)


@pytest.mark.parametrize(
    "strategy",
    [
        sgp.VariationalHyperparameters(),
        pytest.param(sgp.PointHyperparameters(), marks=pytest.mark.slow),
    ],
    ids=["VI", "ML"],
)
def test_mean_functions_are_learned(rng, strategy):
    """Their parameters have no transform, and start at zero."""
    X = rng.uniform(-2, 2, (60, 2))
    Y = 2.0 * X[:, :1] + 3.0 + 0.1 * rng.standard_normal((60, 1))
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=0.1), gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Linear(np.zeros((2, 1)), np.zeros(1)), hyperparameters=strategy,
    )  # fmt: skip
    for rows in (slice(0, 30), slice(30, 60)):
        model.update((X[rows], Y[rows]))
    far = model.predict_f(np.array([[20.0, 0.0]]))[0]
    np.testing.assert_allclose(far, [[43.0]], atol=3.0)


def coregionalised():
    return gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Coregion(2, 1, active_dims=[1])


def changing():
    pieces = [gpflow.kernels.Matern12(), gpflow.kernels.RationalQuadratic()]
    return gpflow.kernels.ChangePoints(pieces, [0.0])


def mixed():
    product = gpflow.kernels.Linear() * gpflow.kernels.White()
    periodic = gpflow.kernels.Periodic(gpflow.kernels.RBF(), period=3.0)
    return periodic + product + gpflow.kernels.ArcCosine()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [coregionalised, *(pytest.param(k, marks=pytest.mark.slow) for k in (changing, mixed))]
)
def test_unusual_kernels_learn_a_distribution(rng, make):
    X = rng.uniform(-2, 2, (40, 1))
    if make is coregionalised:
        X = np.c_[X, rng.integers(0, 2, 40)]
    Y = np.sin(2.0 * X[:, :1]) * (1.0 - 2.0 * X[:, 1:].sum(axis=1, keepdims=True))
    points = sgp.PrivatePseudoPoints(8, optimise_locations=False)
    model = sgp.StreamingGP(
        make(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        optimiser=sgp.LocalOptimiser(max_iterations=50),
    )  # fmt: skip
    for rows in (slice(0, 20), slice(20, 40)):
        model.update((X[rows], Y[rows]))
    assert np.mean((model.predict_f(X)[0] - Y) ** 2) < 0.7 * np.var(Y)


@pytest.mark.parametrize("full_covariance", [False, True])
def test_nothing_to_learn_is_allowed(rng, full_covariance):
    k, likelihood = kernel(), gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(k, False)
    gpflow.set_trainable(likelihood, False)
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    data = smooth_data(rng, 30)
    means = []
    for hyperparameters in (strategy, FIXED):
        model = sgp.StreamingGP(
            k, likelihood, pseudo_points=EVERY_INPUT, hyperparameters=hyperparameters
        )
        model.update(data)
        means.append(model.predict_f(data[0])[0])
    np.testing.assert_allclose(*means, rtol=10.0 * ALGEBRA)


def test_what_is_trainable_cannot_change_under_a_distribution(rng):
    model = regressor(pseudo_points=EVERY_INPUT)
    model.update(smooth_data(rng))
    gpflow.set_trainable(model.kernel.variance, False)
    with pytest.raises(InvalidDataError, match="trainable"):
        model.update(smooth_data(rng))
