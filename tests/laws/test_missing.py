"""Entries of Y that were not observed are left out: what is left is the GP on the others."""

import gpflow
import numpy as np
import pytest
from gpflow import kernels as gk

import streaming_gp as sgp
from tests.laws import eager, slow

P, SIZE = 2, 45
RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, (SIZE, 1))
Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0]) + 2.0])
Y += 0.1 * RNG.normal(size=Y.shape)
IS_MISSING = RNG.random(Y.shape) < 0.4
IS_MISSING[:15], IS_MISSING[20] = False, True  # a whole batch, and a row of nothing
PARTIAL = np.where(IS_MISSING, np.nan, Y)
XNEW = np.linspace(-1.0, 7.0, 9)[:, None]
BATCHES = [slice(0, 15), slice(15, 30), slice(30, SIZE)]


def one_kernel():
    return gk.Matern52()


def shared_kernel():
    return gk.SharedIndependent(gk.Matern52(), P)


def separate_kernels():
    return gk.SeparateIndependent([gk.Matern52(lengthscales=one) for one in (1.0, 0.5)])


def not_stationary():
    return gk.Matern32() * gk.Linear() + gk.Constant()


def of_output(kernel, p):
    if isinstance(kernel, gk.SeparateIndependent):
        return kernel.kernels[p]
    return kernel.kernel if isinstance(kernel, gk.SharedIndependent) else kernel


def model_of(kernel, batches=(), **options):
    options = {"hyperparameters": sgp.FixedHyperparameters(), **options}
    parts = kernel, gpflow.likelihoods.Gaussian(0.02), gpflow.functions.Constant(0.5)
    model = sgp.StreamingGP(*parts, **options)
    for index, rows in enumerate(batches):
        model.update((X[rows], PARTIAL[rows]), batch_id=str(index), missing="drop")
    return model


def moments(model):
    return [np.asarray(one) for one in model.predict_f(XNEW)]


def outputs_alone(model_of_output):
    """Mean and variance [N, P], and log evidence, of a model for each output alone."""
    found = [model_of_output(p, ~IS_MISSING[:, p]) for p in range(P)]
    means, variances = zip(*(moments(one) for one in found), strict=True)
    evidence = sum(float(one.maximum_log_likelihood_objective()) for one in found)
    return np.hstack(means), np.hstack(variances), evidence


@eager
@pytest.mark.parametrize(
    "make", [separate_kernels, *map(slow, (one_kernel, shared_kernel, not_stationary))]
)
def test_what_is_missing_is_left_out(make):
    kernel = make()

    def exact(p, some):
        parts = of_output(kernel, p), gpflow.functions.Constant(0.5), 0.02
        return gpflow.models.GPR((X[some], Y[some, p : p + 1]), *parts)

    model = model_of(kernel, BATCHES, conditioning=sgp.Dense())
    mean, variance, evidence = outputs_alone(exact)
    np.testing.assert_allclose(moments(model), (mean, variance), atol=1e-8)
    log_evidence = float(model.maximum_log_likelihood_objective())
    np.testing.assert_allclose(log_evidence, evidence, rtol=1e-9)
    rows_of_something = (~IS_MISSING.all(axis=1)).sum()
    assert model.ledger.posterior.num_pseudo_points == rows_of_something < SIZE


@eager
@pytest.mark.parametrize("make", [one_kernel, slow(not_stationary)])
def test_each_output_has_its_own_neighbors(make):
    near, kernel = {"conditioning": sgp.NearestNeighbors(num_neighbors_pred=8)}, make()

    def alone(p, some):
        model = model_of(of_output(kernel, p), **near)
        model.update((X[some], Y[some, p : p + 1]))
        return model

    mean, variance, _ = outputs_alone(alone)
    found = moments(model_of(kernel, BATCHES, **near))
    np.testing.assert_allclose(found, (mean, variance), atol=1e-8)


def test_hyperparameters_are_those_of_what_is_there():
    together = model_of(one_kernel(), hyperparameters=sgp.PointHyperparameters())
    together.update((X, PARTIAL), missing="drop")
    inputs = [np.hstack([X, np.full_like(X, p)])[~IS_MISSING[:, p]] for p in range(P)]
    kernel = gk.Matern52(active_dims=[0]) * gk.Coregion(P, rank=1, active_dims=[1])
    kernel.kernels[1].W.assign(np.zeros((P, 1)))
    kernel.kernels[1].kappa.assign(np.ones(P))
    gpflow.set_trainable(kernel.kernels[1], False)
    stacked = np.concatenate(inputs), Y.T[~IS_MISSING.T][:, None]
    exact = gpflow.models.GPR(stacked, kernel, gpflow.functions.Constant(0.5), 0.02)
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    wanted = exact.kernel.kernels[0]
    got = together.kernel
    np.testing.assert_allclose(got.lengthscales, wanted.lengthscales, rtol=1e-3)
    np.testing.assert_allclose(got.variance, wanted.variance, rtol=1e-2)
    noise = together.likelihood.variance, exact.likelihood.variance
    np.testing.assert_allclose(*noise, rtol=1e-3)


def test_batches_go_and_fade_and_are_written_down(tmp_path):
    model = model_of(one_kernel(), BATCHES, journal=tmp_path / "journal")
    model.save(tmp_path / "model.npz")
    parts = one_kernel(), gpflow.likelihoods.Gaussian(), gpflow.functions.Constant(0.0)
    again = sgp.StreamingGP.load(tmp_path / "model.npz", *parts)
    assert all(map(np.array_equal, moments(again), moments(model)))
    again.remove("1")
    np.testing.assert_allclose(
        moments(again), moments(model_of(one_kernel(), [BATCHES[0], BATCHES[2]])), atol=1e-8
    )
    model.fade(0.25)
    resumed = sgp.StreamingGP.resume(tmp_path / "journal", *parts)
    assert all(map(np.array_equal, moments(resumed), moments(model)))


@eager
def test_outputs_that_are_mixed_leave_out_single_observations():
    W = np.array([[1.0, 0.3], [0.2, -1.0]])
    kernel = gk.LinearCoregionalization([gk.Matern52(), gk.Matern52(lengthscales=2.0)], W=W)
    model = model_of(kernel, BATCHES)
    pairs = [np.hstack([X, np.full_like(X, p)])[~IS_MISSING[:, p]] for p in range(P)]

    def part(column):
        coregion = gk.Coregion(P, rank=1, active_dims=[1])
        coregion.W.assign(W[:, column : column + 1])
        coregion.kappa.assign(np.full(P, 1e-12))
        return gk.Matern52(lengthscales=1.0 + column, active_dims=[0]) * coregion

    stacked = np.concatenate(pairs), Y.T[~IS_MISSING.T][:, None]
    exact = gpflow.models.GPR(stacked, part(0) + part(1), gpflow.functions.Constant(0.5), 0.02)
    for p in range(P):
        wanted = exact.predict_f(np.hstack([XNEW, np.full_like(XNEW, p)]))
        for got, one in zip(moments(model), wanted, strict=True):
            np.testing.assert_allclose(got[:, p], one[:, 0], atol=1e-8)


@pytest.mark.parametrize(
    ("missing", "targets", "match"),
    [
        (None, PARTIAL, "must be finite"),
        ("refuse", PARTIAL, "must be finite"),
        ("drop", np.where(IS_MISSING, np.inf, Y), "inf at row"),
        ("drop", np.full_like(Y, np.nan), "at least one observation"),
        ("skip", PARTIAL, '"refuse" or "drop"'),
    ],
)
def test_other_gaps_are_refused_and_the_model_stays(missing, targets, match):
    model = model_of(one_kernel(), BATCHES[:1])
    before = moments(model)
    with pytest.raises(sgp.InvalidDataError, match=match):
        model.update((X, targets), missing=missing)
    assert all(map(np.array_equal, moments(model), before))


@pytest.mark.parametrize(
    ("likelihood", "points", "match"),
    [
        (gpflow.likelihoods.StudentT(), "all", "noise is Gaussian"),
        (gpflow.likelihoods.Gaussian(), 5, "a point at every input"),
    ],
)
def test_models_that_can_leave_nothing_out_say_so(likelihood, points, match):
    model = sgp.StreamingGP(
        gk.Matern52(), likelihood, pseudo_points=sgp.PrivatePseudoPoints(points)
    )
    with pytest.raises(sgp.InvalidDataError, match=match):
        model.update((X, PARTIAL), missing="drop")
    assert not model.factors


def test_a_model_that_was_told_drops_in_rounds_and_revisits():
    model = model_of(one_kernel(), missing="drop")
    model.synchronous_round({"a": (X[:25], PARTIAL[:25]), "b": (X[25:], PARTIAL[25:])}, damping=1.0)
    model.revisit("a", (X[:25], PARTIAL[:25]))
    np.testing.assert_allclose(moments(model), moments(model_of(one_kernel(), BATCHES)), atol=1e-8)
    with pytest.raises(sgp.InvalidDataError, match="must be finite"):
        model.update((X, PARTIAL), missing="refuse")


def test_what_comes_of_it_is_the_same_one_point_at_a_time_and_exported(tmp_path):
    model = model_of(one_kernel(), BATCHES)
    online = model.online()
    model.export(tmp_path / "model.npz")
    exported = sgp.runtime.load(tmp_path / "model.npz")
    mean, variance = moments(model)
    for row, x in enumerate(XNEW):
        np.testing.assert_allclose(online.predict(x), (mean[row], variance[row]), atol=1e-6)
    np.testing.assert_allclose(exported.predict_f(XNEW), (mean, variance), atol=1e-8)
