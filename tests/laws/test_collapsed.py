"""Bounds in closed form: those that TensorFlow differentiates are the oracle."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from scipy.linalg import block_diag

import streaming_gp as sgp
from streaming_gp.gp.collapsed.bounds import AtEveryInput, OnPoints
from streaming_gp.gp.collapsed.cavity import FEW_ROWS, Observed, conditioned
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fitting.bound_functions import closed_form, initial_sites
from tests.oracles.closed_forms import (
    asked,
    assert_same_objective,
    batch,
    differentiated,
    under_cavity,
)

FEW, ALL = sgp.PrivatePseudoPoints(4), sgp.PrivatePseudoPoints("all")
LEARNED, POINT = sgp.VariationalHyperparameters(), sgp.PointHyperparameters()
EVIDENCE = sgp.PointHyperparameters(remember="evidence")
FULL = sgp.VariationalHyperparameters(full_covariance=True)


def separate():
    return gk.SeparateIndependent([gk.Matern32(), gk.SquaredExponential()])


def shared():
    return gk.SharedIndependent(gk.SquaredExponential(lengthscales=[1.0, 2.0]), output_dim=2)


def noisy():
    return gk.SquaredExponential() + gk.White(0.1) + gk.Linear()


def mixing():
    W = np.array([[1.0, 0.3], [0.2, 1.0]])
    return gk.LinearCoregionalization([gk.Matern32(), gk.SquaredExponential()], W=W)


slow = pytest.mark.slow
CASES = [
    pytest.param(gk.SquaredExponential, FEW, 0.0, LEARNED, 1, 0.1, id="variational", marks=slow),
    pytest.param(gk.SquaredExponential, FEW, 0.5, POINT, 1, 0.1, id="power-ep-point"),
    pytest.param(noisy, ALL, 0.0, LEARNED, 1, 0.1, id="exact-white"),
    pytest.param(separate, ALL, 0.0, POINT, 2, [0.1, 0.3], id="exact-two-kernels-point"),
    pytest.param(separate, FEW, 1.0, LEARNED, 2, [0.1, 0.3], id="fitc-two-kernels", marks=slow),
    pytest.param(separate, ALL, 0.0, LEARNED, 2, 0.1, id="exact-two-kernels", marks=slow),
    pytest.param(shared, FEW, 0.5, LEARNED, 2, 0.1, id="power-ep-shared-kernel", marks=slow),
    pytest.param(noisy, FEW, 0.0, FULL, 1, 0.1, id="variational-white-full", marks=slow),
    pytest.param(mixing, FEW, 0.0, LEARNED, 2, 0.1, id="variational-mixing", marks=slow),
    pytest.param(mixing, ALL, 0.0, LEARNED, 2, 0.1, id="exact-mixing", marks=slow),
]


def model_of(kernel, points, alpha, hyperparameters, outputs, noise):
    return sgp.StreamingGP(
        kernel(),
        gpflow.likelihoods.Gaussian(noise),
        mean_function=gpflow.functions.Constant(np.full(outputs, 0.3)),
        pseudo_points=points,
        hyperparameters=hyperparameters,
        seed=0,
        **({"alpha": alpha} if alpha else {}),
    )


@pytest.mark.parametrize(
    ("kernel", "points", "alpha", "hyperparameters", "outputs", "noise"), CASES
)
def test_value_and_gradient_are_those_of_automatic_differentiation(
    rng, kernel, points, alpha, hyperparameters, outputs, noise
):
    model = model_of(kernel, points, alpha, hyperparameters, outputs, noise)
    for size in (5, 7):
        model.update(batch(rng, size, outputs), learn=False)
    bound, move = model._compiled.fitter.bound, points is FEW
    problem, offsets, variables = asked(rng, model, batch(rng, 9, outputs), points)
    assert closed_form(bound, problem) is not None
    sites = initial_sites(bound, np.zeros_like(offsets), problem)
    oracle = differentiated(bound)
    assert_same_objective(bound, oracle, offsets, variables, problem, sites, move)


TAKEN_OVER = [
    pytest.param(gk.SquaredExponential, 0.0, LEARNED, 1, 0.1, True, id="bui-2017"),
    pytest.param(noisy, 0.5, LEARNED, 1, 0.1, True, id="power-ep-white", marks=slow),
    pytest.param(separate, 1.0, EVIDENCE, 2, [0.1, 0.3], True, id="fitc-two-kernels-evidence"),
    pytest.param(shared, 0.0, FULL, 2, 0.1, True, id="shared-kernel", marks=slow),
    pytest.param(noisy, 0.0, EVIDENCE, 1, 0.1, False, id="points-that-stay"),
]


@pytest.mark.parametrize(
    ("kernel", "alpha", "hyperparameters", "outputs", "noise", "move"), TAKEN_OVER
)
def test_on_points_that_take_over_they_are_those_of_automatic_differentiation(
    rng, kernel, alpha, hyperparameters, outputs, noise, move
):
    points = sgp.SharedPseudoPoints(4, optimise_locations=move)
    model = model_of(kernel, points, alpha, hyperparameters, outputs, noise)
    model._compiled = model._compile(2, outputs)
    bound = model._compiled.fitter.bound
    oracle = differentiated(bound)
    for size in (0, 5, 7):
        if size:
            model.update(batch(rng, size, outputs), learn=False)
        present = model.posterior_process.pseudo_observations
        at = present[0] if present and not move else None
        problem, offsets, variables = asked(
            rng, model, batch(rng, 9, outputs), points, 0.1 * move, at=at, takes_over=True
        )
        assert closed_form(bound, problem) is not None
        sites = initial_sites(bound, np.zeros_like(offsets), problem)
        given = bound, oracle, offsets, variables, problem, sites, move
        assert_same_objective(*given, rtol=1e-11, gradient=1e-9)


def test_a_likelihood_that_is_not_gaussian_and_a_bound_of_ones_own_have_no_closed_form():
    class MyBound(
        type(sgp.StreamingGP(gk.Matern32(), gpflow.likelihoods.Gaussian()).settings.bound)
    ):
        """A subclass, which might say something else."""

    for likelihood, bound, closed in [
        (gl.Gaussian(), None, (True, False)),
        (gl.Bernoulli(), None, (False, True)),
        (gl.Bernoulli(), MyBound(), (False, False)),
        (gl.Gaussian(), MyBound(), (False, False)),
    ]:
        model = sgp.StreamingGP(gk.Matern32(), likelihood, pseudo_points=FEW, bound=bound)
        compiled = compile_gp(model.modules, model.settings, (2, 1))
        functions = compiled.fitter.bound
        assert (functions.collapsed is not None, functions.at_sites is not None) == closed


@pytest.mark.parametrize(
    ("bound", "N"), [(AtEveryInput(), 0), *((OnPoints(a), 6) for a in (0.0, 0.4, 1.0))]
)
def test_derivatives_are_those_of_finite_differences(rng, bound, N):
    given = under_cavity(rng, 4, N, 2)
    _, gradient = bound.value_and_gradient(given)
    for name, by in gradient._asdict().items():
        direction = rng.normal(size=by.shape)
        if name == "among":
            direction += direction.swapaxes(1, 2)
        ahead, behind = (
            bound.value_and_gradient(
                given._replace(**{name: getattr(given, name) + step * direction})
            )[0]
            for step in (1e-6, -1e-6)
        )
        np.testing.assert_allclose(
            np.sum(by * direction), (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-7
        )


def test_a_covariance_that_is_not_positive_gives_an_infinite_loss(rng):
    model = sgp.StreamingGP(
        gk.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=FEW
    )
    model.update(batch(rng, 5, 1), learn=False)
    fitter, local = model._compiled.fitter, model._compiled.local
    draws = local.hyperparameters.noise(local.parameters.size, 0)
    problem = fitter.problems.with_data(
        batch(rng, 9, 1), draws, model.posterior_process, FEW.place, None
    )._replace(nugget=tf.constant(-10.0, tf.float64))
    variables = local.hyperparameters.initial(local.parameters, True)
    offsets = np.zeros(8)
    loss, gradient = fitter.bound.objective(offsets, variables, problem, None, True)
    assert loss == np.inf
    assert gradient.shape == (8 + len(variables),)


def observed(rng, C):
    """Blocks of every kind: diagonal, triangles of few and of many rows, and a square."""
    sizes = 4, 5, FEW_ROWS + 4, FEW_ROWS + 1
    dense = [np.eye(m) + 0.2 * rng.normal(size=(m, m)) / np.sqrt(m) for m in sizes]
    blocks = [np.diag(dense[0].diagonal()), np.tril(dense[1]), np.tril(dense[2]), dense[3]]
    R = sum(sizes)
    return Observed(blocks, rng.normal(size=(R, C)), rng.uniform(0.1, 0.2, R))


def test_weights_of_every_kind_are_those_of_the_dense_matrix(rng):
    known = observed(rng, 1)
    B = rng.normal(size=(2, len(known.targets), 3))
    R = block_diag(*known.blocks)
    np.testing.assert_allclose(known.weighted(B), R.T @ B, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(known.unweighted(B), R @ B, rtol=1e-12, atol=1e-12)


def test_derivatives_by_the_prior_of_a_cavity_are_those_of_finite_differences(rng):
    S, C, T, by_evidence = 2, 2, 7, 0.3
    known = observed(rng, C)
    R = len(known.targets)
    root = rng.normal(size=(S, R, R + 5)) / np.sqrt(R)
    prior = [root @ root.swapaxes(1, 2), rng.normal(size=(S, R, T)), rng.normal(size=(S, R, C))]
    of_variance, of_mean = rng.normal(size=(S, T, T)), rng.normal(size=(S, T, C))

    def value(*at):
        found = conditioned(known, *at)
        V, w = found.projected, found.white
        weighed = np.sum(of_variance * (V.swapaxes(1, 2) @ V)) + np.sum(
            of_mean * (V.swapaxes(1, 2) @ w)
        )
        return weighed + by_evidence * found.log_evidence

    found = conditioned(known, *prior)
    V, w = found.back(found.projected), found.white_back
    by_between = V @ (of_variance + of_variance.swapaxes(1, 2)) + w @ of_mean.swapaxes(1, 2)
    by_K, by_mean = found.pullback(V, by_between, V @ of_mean, by_evidence)
    gradient = by_K, by_between, by_mean
    for i, by in enumerate(gradient):
        direction = rng.normal(size=by.shape)
        if i == 0:
            direction += direction.swapaxes(1, 2)
        ahead, behind = (
            value(*(one + step * direction if j == i else one for j, one in enumerate(prior)))
            for step in (1e-6, -1e-6)
        )
        assert np.sum(by * direction) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)
