"""Bounds at given sites in closed form: those that TensorFlow differentiates are the oracle."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from tensorflow_probability import distributions as tfd

import streaming_gp as sgp
from streaming_gp.gp.bounds.sites import Sites, SiteSteps
from streaming_gp.gp.collapsed.at_sites import Pull, SitesAtInputs, SitesOnPoints
from tests.oracles.closed_forms import (
    asked,
    assert_same_objective,
    differentiated,
    labelled,
    under_cavity,
)

FEW, ALL = sgp.PrivatePseudoPoints(4), sgp.PrivatePseudoPoints("all")
LEARNED = sgp.VariationalHyperparameters()
EVIDENCE = sgp.PointHyperparameters(remember="evidence")
FULL = sgp.VariationalHyperparameters(full_covariance=True)

slow = pytest.mark.slow


def model_of(likelihood, points, hyperparameters, functions):
    return sgp.StreamingGP(
        gk.Matern32(lengthscales=[1.0, 2.0]),
        likelihood(),
        mean_function=gpflow.functions.Constant(np.full(functions, 0.3)),
        num_latent_gps=functions,
        pseudo_points=points,
        hyperparameters=hyperparameters,
        seed=0,
    )


SITE_CASES = [
    pytest.param(gl.Bernoulli, ALL, LEARNED, 1, id="labels-at-inputs"),
    pytest.param(gl.Bernoulli, FEW, LEARNED, 1, id="labels-on-points", marks=slow),
    pytest.param(gl.StudentT, ALL, EVIDENCE, 1, id="heavy-tails-at-inputs-point"),
    pytest.param(gl.StudentT, FEW, EVIDENCE, 1, id="heavy-tails-on-points-point"),
    pytest.param(lambda: gl.Softmax(3), ALL, LEARNED, 3, id="classes-at-inputs", marks=slow),
    pytest.param(lambda: gl.Softmax(3), FEW, FULL, 3, id="classes-on-points", marks=slow),
    pytest.param(gl.Poisson, FEW, LEARNED, 1, id="counts-on-points", marks=slow),
]


@pytest.mark.parametrize(("likelihood", "points", "hyperparameters", "functions"), SITE_CASES)
def test_at_sites_they_are_those_of_automatic_differentiation(
    rng, likelihood, points, hyperparameters, functions
):
    model = model_of(likelihood, points, hyperparameters, functions)
    for size in (5, 7):
        model.update(labelled(rng, size), learn=False)
    bound = model._compiled.fitter.bound
    given = asked(rng, model, labelled(rng, 9), points)
    assert_same(rng, bound, differentiated(bound), given, functions, points is FEW)


def assert_same(rng, bound, oracle, given, functions, move, **tolerances):
    """The objective and its gradient, the free energy, and the sites at rest."""
    problem, *place = given
    sites = Sites(rng.normal(size=(9, functions)), rng.uniform(1e-6, 2.0, size=(9, functions)))
    given = *place, problem, sites
    assert bound.at_sites is not None
    assert_same_objective(bound, oracle, *given, move, **tolerances)
    values = (one.value(*given) for one in (bound, oracle))
    np.testing.assert_allclose(*values, rtol=1e-11)
    (found, clipped), (wanted, as_many) = (
        one.rested_sites(*given, SiteSteps(7, 0.5, 1e-7)) for one in (bound, oracle)
    )
    assert clipped == as_many
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


TAKEN_OVER = [
    pytest.param(gl.Bernoulli, LEARNED, 1, True, id="labels", marks=slow),
    pytest.param(gl.StudentT, EVIDENCE, 1, True, id="heavy-tails-point"),
    pytest.param(
        lambda: gl.Softmax(3), FULL, 3, False, id="classes-on-points-that-stay", marks=slow
    ),
]


@pytest.mark.parametrize(("likelihood", "hyperparameters", "functions", "move"), TAKEN_OVER)
def test_on_points_that_take_over_they_are_those_of_automatic_differentiation(
    rng, likelihood, hyperparameters, functions, move
):
    points = sgp.SharedPseudoPoints(4, optimise_locations=move)
    model = model_of(likelihood, points, hyperparameters, functions)
    model._compiled = model._compile(2, 1)
    bound = model._compiled.fitter.bound
    oracle = differentiated(bound)
    for size in (0, 5, 7):
        if size:
            model.update(labelled(rng, size), learn=False)
        present = model.posterior_process.pseudo_observations
        at = present[0] if present and not move else None
        given = asked(rng, model, labelled(rng, 9), points, 0.1 * move, at=at, takes_over=True)
        assert_same(rng, bound, oracle, given, functions, move, rtol=1e-11, gradient=1e-9)


def sites_of(rng, N):
    return rng.normal(size=N), rng.uniform(0.1, 2.0, size=N)


@pytest.mark.parametrize(("bound", "N"), [(SitesAtInputs(), 0), (SitesOnPoints(), 6)])
def test_at_sites_derivatives_are_those_of_finite_differences(rng, bound, N):
    given = under_cavity(rng, 4, N, 1)
    sites = sites_of(rng, N or 4)
    by_mean, by_variance = rng.normal(size=(2, 2, N or 4))

    def value(at):
        q = bound.posterior(bound.prepared(at), *sites)
        expected = np.sum(np.sin(by_mean * q.mean) + np.cos(by_variance * q.variance))
        return expected - q.kl

    q = bound.posterior(bound.prepared(given), *sites)
    g = by_mean * np.cos(by_mean * q.mean)
    h = -by_variance * np.sin(by_variance * q.variance)
    pulled = bound.pulled_back(q, Pull(*sites, g, h))
    for name in ("among", "between", "variance", "residual"):
        direction = rng.normal(size=getattr(given, name).shape)
        if name == "among":
            direction += direction.swapaxes(1, 2)
        ahead, behind = (
            value(given._replace(**{name: getattr(given, name) + step * direction}))
            for step in (1e-6, -1e-6)
        )
        by = np.sum(getattr(pulled, name) * direction)
        np.testing.assert_allclose(by, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-7)


def test_at_sites_q_and_its_divergence_are_those_of_dense_matrices(rng):
    given = under_cavity(rng, 4, 0, 1)
    precision_mean, w = sites_of(rng, 4)
    q = SitesAtInputs().posterior(given, precision_mean, w)
    divergence = 0.0
    for index, K in enumerate(given.among):
        mean = -given.residual[index, :, 0]
        V = np.linalg.inv(np.linalg.inv(K) + np.diag(w))
        shifted = V @ (precision_mean + np.linalg.solve(K, mean))
        np.testing.assert_allclose(q.mean[index], shifted, rtol=1e-10)
        np.testing.assert_allclose(q.variance[index], np.diag(V), rtol=1e-10)
        ours, theirs = (tfd.MultivariateNormalTriL(m, np.linalg.cholesky(C)) for m, C in
                        ((shifted, V), (mean, K)))  # fmt: skip
        divergence += float(ours.kl_divergence(theirs))
    assert q.kl == pytest.approx(divergence, rel=1e-10)


def test_at_sites_a_covariance_that_is_not_positive_gives_an_infinite_loss(rng):
    model = sgp.StreamingGP(gk.SquaredExponential(), gl.Bernoulli(), pseudo_points=FEW)
    model.update(labelled(rng, 9), learn=False)
    bound = model._compiled.fitter.bound
    problem, _, variables = asked(rng, model, labelled(rng, 9), FEW)
    problem = problem._replace(nugget=tf.constant(-10.0, tf.float64))
    sites = Sites(np.zeros((9, 1)), np.ones((9, 1)))
    loss, gradient = bound.objective(np.zeros(8), variables, problem, sites, True)
    assert loss == np.inf
    assert np.isfinite(gradient).all()
    assert gradient.shape == (8 + len(variables),)
