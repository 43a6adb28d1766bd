"""Every kernel of GPflow, and sums and products of them, for thirty small batches."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp

gk = gpflow.kernels
QUICK = sgp.LocalOptimiser(max_iterations=2, rounds=1)


def tasks():
    return gk.SquaredExponential(active_dims=[0]) * gk.Coregion(2, 1, active_dims=[1])


KERNELS = {
    "white": lambda: gk.White(0.3),
    "constant": gk.Constant,
    "squared exponential": gk.SquaredExponential,
    "rational quadratic": gk.RationalQuadratic,
    "exponential": gk.Exponential,
    "Matérn ½": gk.Matern12,
    "Matérn 3/2": gk.Matern32,
    "Matérn 5/2": gk.Matern52,
    "cosine": gk.Cosine,
    "linear": gk.Linear,
    "polynomial": gk.Polynomial,
    "arc cosine": gk.ArcCosine,
    "periodic": lambda: gk.Periodic(gk.SquaredExponential()),
    "change points": lambda: gk.ChangePoints([gk.Matern12(), gk.Matern52()], [0.0], 2.0),
    "tasks": tasks,
    "with white": lambda: gk.SquaredExponential() + gk.White(0.1),
    "times white": lambda: gk.SquaredExponential() * gk.White(0.1),
    "locally periodic": lambda: gk.Matern32() * gk.Periodic(gk.SquaredExponential()),
    "sum and product": lambda: gk.Linear() + gk.Constant() * gk.Matern32(),
}
POINTS = {
    "private": sgp.PrivatePseudoPoints(3, budget=12),
    "every input": sgp.PrivatePseudoPoints("all", budget=20),
    "shared": sgp.SharedPseudoPoints(6),
}


def check_stream(kernel, points, number):
    rng = np.random.default_rng(0)
    model = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        hyperparameters=sgp.PointHyperparameters(), optimiser=QUICK,
    )  # fmt: skip
    for _ in range(number):
        X = np.c_[rng.uniform(-3.0, 3.0, 4), rng.integers(0, 2, 4)][:, : 1 + (kernel is tasks)]
        model.update((X, np.sin(X[:, :1]) + 0.1 * rng.standard_normal((4, 1))))
    mean, variance = model.predict_f(X)
    assert np.isfinite(mean).all()
    assert (np.asarray(variance) >= 0.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_any_kernel_bears_thirty_batches(kernel, points):
    check_stream(KERNELS[kernel], POINTS[points], 30)


@pytest.mark.slow
def test_white_noise_alone_bears_a_merge():
    check_stream(KERNELS["white"], POINTS["private"], 6)
