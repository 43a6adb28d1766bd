"""Kernels and mean functions in NumPy, against GPflow's own."""

import gpflow
import numpy as np
import pytest
from gpflow import functions as gf
from gpflow import kernels as gk

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.export import describe_kernel, describe_mean_function
from streaming_gp.runtime import KERNELS, MEAN_FUNCTIONS, kernel_of
from streaming_gp.runtime.predictor import mean_function_of
from tests.tolerances import EXPORTED

D = 4
ALL, BY_NUMBER, SLICE, FROM_THE_END = None, [2, 0], slice(1, 3), slice(-2, None)
ISOTROPIC = [
    "SquaredExponential", "RationalQuadratic", "Exponential", "Matern12", "Matern32", "Matern52",
]  # fmt: skip


def per_column(value, ard, columns):
    number = D if columns is None else 2
    return value * np.linspace(1.0, 1.7, number) if ard else value


def stationary(name, **options):
    def made(ard, columns):
        lengthscales = per_column(0.83, ard, columns)
        cls = getattr(gk, name)
        return cls(variance=1.37, lengthscales=lengthscales, active_dims=columns, **options)

    return made


def periodic(base):
    def made(ard, columns):
        return gk.Periodic(SIMPLE[base](ard, columns), period=per_column(1.9, ard, columns))

    return made


SIMPLE = {
    **{name: stationary(name) for name in ISOTROPIC},
    "RationalQuadratic": stationary("RationalQuadratic", alpha=0.61),
    "Cosine": stationary("Cosine"),
    "Linear": lambda ard, columns: gk.Linear(per_column(0.29, ard, columns), columns),
    "Polynomial": lambda ard, columns: gk.Polynomial(
        2.5, per_column(0.29, ard, columns), 40.0, columns
    ),
    "Periodic": periodic("SquaredExponential"),
    "Periodic of r": periodic("Matern32"),
    "Constant": lambda ard, columns: gk.Bias(0.43, columns),
    "White": lambda ard, columns: gk.White(0.07, columns),
}
COMBINED = {
    "Sum": lambda: SIMPLE["Matern52"](True, ALL) + gk.Linear(0.3, [3]) + gk.White(0.2),
    "Product": lambda: SIMPLE["Periodic"](False, BY_NUMBER) * SIMPLE["Matern32"](True, SLICE),
    "sum of products": lambda: (
        gk.RBF(lengthscales=0.7, active_dims=[1]) * (gk.Linear(0.4) + gk.Constant(0.9))
        + gk.White(0.3) * SIMPLE["Cosine"](True, FROM_THE_END)
    ),
}


def assert_is_the_same_function(kernel, rng):
    X, X2 = rng.uniform(-2.0, 2.0, (7, D)), rng.uniform(-2.0, 2.0, (5, D))
    ours = kernel_of(describe_kernel(kernel, D))
    for X_new in (X, X[:1]):
        expected = kernel(X_new, X2)
        np.testing.assert_allclose(ours.covariance(X_new, X2), expected, rtol=EXPORTED, atol=1e-14)
        np.testing.assert_allclose(ours.bind(X2)(X_new).T, expected, rtol=EXPORTED, atol=1e-14)
    np.testing.assert_allclose(ours.variance(X), kernel(X, full_cov=False), rtol=EXPORTED)


@pytest.mark.parametrize("columns", [ALL, BY_NUMBER, SLICE, FROM_THE_END], ids=str)
@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("name", SIMPLE)
def test_a_kernel_is_that_of_gpflow(rng, name, ard, columns):
    assert_is_the_same_function(SIMPLE[name](ard, columns), rng)


@pytest.mark.parametrize("name", COMBINED)
def test_sums_and_products_are_those_of_gpflow(rng, name):
    assert_is_the_same_function(COMBINED[name](), rng)


def test_every_kernel_is_tested():
    assert set(KERNELS) <= {*SIMPLE, *COMBINED}


class Mine(gk.SquaredExponential):
    def K_r2(self, r2):
        return 2.0 * super().K_r2(r2)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (Mine(), "Mine"),
        (gk.Linear() + gk.Constant() * Mine(), "Mine"),
        (gk.Periodic(Mine()), "Mine"),
        (gk.ArcCosine(), "ArcCosine"),
        (gk.ChangePoints([gk.Matern12(), gk.Matern32()], [0.5]), "ChangePoints"),
    ],
)
def test_another_kernel_is_named_with_what_there_is(kernel, name):
    with pytest.raises(InvalidDataError, match=f"kernel {name} .*SquaredExponential.*Product"):
        describe_kernel(kernel, D)


MEANS = {
    "Zero": gf.Zero(),
    "Zero of three": gf.Zero(3),
    "Constant": gf.Constant([0.4, -1.2, 3.0]),
    "Constant of one": gf.Constant(0.4),
    "Linear": gf.Linear(np.arange(12.0).reshape(D, 3), [0.5, 0.1, -2.0]),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_function_is_that_of_gpflow(rng, name):
    X = rng.standard_normal((6, D))
    ours = mean_function_of(describe_mean_function(MEANS[name]))(X)
    expected = np.broadcast_to(MEANS[name](X), (6, 3))
    np.testing.assert_allclose(np.broadcast_to(ours, (6, 3)), expected, rtol=EXPORTED)


def test_every_mean_function_is_tested():
    assert set(MEAN_FUNCTIONS) <= set(MEANS)


def test_another_mean_function_is_named():
    with pytest.raises(InvalidDataError, match=r"mean function Additive .*Zero, Constant, Linear"):
        describe_mean_function(gf.Constant() + gf.Linear())


def test_parameters_are_read_at_the_values_they_hold(rng):
    kernel = gk.Matern32(lengthscales=[0.5] * D)
    shared = gpflow.Parameter(1.1, transform=gpflow.utilities.positive())
    kernel.variance = shared
    shared.assign(2.3)
    assert_is_the_same_function(kernel, rng)
