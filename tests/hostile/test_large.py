"""Inputs as large as 1e300: the prior's prediction or one clear error, at every door; every kernel
of GPflow, and sums and products of them, for thirty small batches.
"""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import runtime
from streaming_gp.errors import NumericalError
from tests.hostile.streams import FIXED, QUICK, dates, targets

gk = gpflow.kernels
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (8, 2))
Y = np.sin(X[:, :1])


def tasks():
    return gk.SquaredExponential(active_dims=[0]) * gk.Coregion(2, 1, active_dims=[1])


ALL_KERNELS = {
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
    "sum": lambda: gk.Matern32() + gk.Linear(),
    "white": lambda: gk.White(0.3),
    "constant": gk.Constant,
    "change points": lambda: gk.ChangePoints([gk.Matern12(), gk.Matern52()], [0.0], 2.0),
    "tasks": tasks,
    "with white": lambda: gk.SquaredExponential() + gk.White(0.1),
    "times white": lambda: gk.SquaredExponential() * gk.White(0.1),
    "locally periodic": lambda: gk.Matern32() * gk.Periodic(gk.SquaredExponential()),
    "sum and product": lambda: gk.Linear() + gk.Constant() * gk.Matern32(),
}
KERNELS = {name: ALL_KERNELS[name] for name in [*ALL_KERNELS][:12]}
"""Those whose predictions far away are looked at."""
DECAYING = [*KERNELS][:6]
FAR = {
    "one": np.array([[1e300, 0.0]]),
    "both": np.array([[1e300, -1e300]]),
    "beside a near one": np.array([[1e300, 1e300], [0.5, 0.5]]),
    "where squares just overflow": np.array([[1.5e154, 0.0]]),
}
DOORS = {
    "f": lambda m, X: m.predict_f(X),
    "f, full": lambda m, X: m.predict_f(X, full_cov=True),
    "y": lambda m, X: m.predict_y(X),
    "density": lambda m, X: (m.predict_log_density((X, np.ones((len(X), 1)))),),
    "samples": lambda m, X: (m.predict_f_samples(X, 2, full_cov=False),),
    "tensor": lambda m, X: m.predict_f(tf.constant(X)),
    "online": lambda m, X: [part for x in X for part in m.online(20).predict(x)],
    "runtime": lambda m, X: m.exported.predict_f(X),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One for each kernel, made when it is wanted."""
    made, folder = {}, tmp_path_factory.mktemp("exported")

    def model(name):
        if name not in made:
            made[name] = one = learned(KERNELS[name]())
            if name != "arc cosine":  # it has no NumPy form
                one.export(folder / "predictor.npz")
                one.exported = runtime.load(folder / "predictor.npz")
        return made[name]

    return model


def learned(kernel):
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), hyperparameters=FIXED, optimiser=QUICK,
        pseudo_points=sgp.PrivatePseudoPoints("all"),
    )  # fmt: skip
    model.update((X, Y), learn=False)
    return model


FAST = "Matérn 3/2"
"""Each kernel has to be compiled: one of them is fast."""


def of_kernels(names):
    return [pytest.param(one, marks=() if one == FAST else pytest.mark.slow) for one in names]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kernel", of_kernels(KERNELS))
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_predictions_far_away_are_finite_or_refused(models, kernel, door):
    if (kernel, door) == ("arc cosine", "runtime"):
        pytest.skip("has no NumPy form")
    for far in FAR.values():
        try:
            found = DOORS[door](models(kernel), far)
        except NumericalError:
            continue
        for part in found:
            assert np.isfinite(part).all(), far
            assert np.abs(part).max() < 10.0 or kernel in ("linear", "polynomial", "sum"), far


@pytest.mark.parametrize("budget", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_one_point_at_a_time_dates_are_counted_from_the_first(budget):
    """Of squares of 1e7 rounding would leave no distances of a week."""
    found = []
    for start in (0.0, dates()[0]):
        model = sgp.StreamingGP(
            gk.SquaredExponential(lengthscales=30.0), gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED, optimiser=QUICK,
        )  # fmt: skip
        model.update((dates() - start, targets(dates())), learn=False)
        online = model.online(budget)
        online.update(dates()[-1] + 1.0 - start, 0.3)
        found.append(online.predict(dates()[-1] + 3.0 - start))
    np.testing.assert_allclose(*found, atol=1e-6)


@pytest.mark.parametrize("kernel", of_kernels(name for name in KERNELS if name != "polynomial"))
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_one_point_at_a_time_is_sound_after_what_it_refused(models, kernel):
    """Nothing that is refused spoils what is near, and nothing far away that is taken."""
    online, taken = models(kernel).online(20), 0
    wanted = online.predict(X[0])
    for far in (*FAR["one"], *FAR["both"], *FAR["both"]):
        for x, y in ((far, 1.0), (X[0], 1e200)):
            try:
                online.update(x, y)
                taken += 1
            except NumericalError:
                continue
    if not taken or kernel in DECAYING:  # elsewhere it says something of f nearby too
        for one, other in zip(wanted, online.predict(X[0]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    online.update(X[1], Y[1])
    assert np.isfinite(online.predict(X[1])).all()
    assert np.isfinite(online.log_evidence)


POINTS = {
    "private": sgp.PrivatePseudoPoints(3, budget=12),
    "every input": sgp.PrivatePseudoPoints("all", budget=20),
    "shared": sgp.SharedPseudoPoints(6),
}


@pytest.mark.slow
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("kernel", ALL_KERNELS)
def test_any_kernel_bears_thirty_batches(kernel, points):
    rng = np.random.default_rng(0)
    model = sgp.StreamingGP(
        ALL_KERNELS[kernel](), gpflow.likelihoods.Gaussian(0.1), pseudo_points=POINTS[points],
        hyperparameters=sgp.PointHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=2, rounds=1),
    )  # fmt: skip
    for _ in range(30):
        X = np.c_[rng.uniform(-3.0, 3.0, 4), rng.integers(0, 2, 4)][:, : 1 + (kernel == "tasks")]
        model.update((X, np.sin(X[:, :1]) + 0.1 * rng.standard_normal((4, 1))))
    mean, variance = model.predict_f(X)
    assert np.isfinite(mean).all()
    assert (np.asarray(variance) >= 0.0).all()
