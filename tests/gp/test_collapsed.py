"""Bounds in closed form: those that TensorFlow differentiates are the oracle."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from scipy.linalg import block_diag
from tensorflow_probability import distributions as tfd

import streaming_gp as sgp
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.collapsed.at_sites import Pull, SitesAtInputs, SitesOnPoints
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import AtEveryInput, OnPoints
from streaming_gp.gp.collapsed.cavity import FEW_ROWS, Observed, conditioned
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fitting.bound_functions import BoundFunctions, closed_form, initial_sites

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


def batch(rng, size, outputs):
    X = rng.normal(size=(size, 2))
    return X, np.sin(X @ rng.normal(size=(2, outputs)))


def labelled(rng, size):
    X, Y = batch(rng, size, 1)
    return X, (Y > 0.0).astype(float)


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


def asked(rng, model, data, points, spread=0.1, **options):
    """A problem of nine data, and offsets and variables at random at which it is asked for."""
    problems, local = model._compiled.fitter.problems, model._compiled.local
    draws = local.hyperparameters.noise(local.parameters.size, 0)
    given = model._compiled.outputs.data(data), draws, model.posterior_process, points.place
    problem = problems.with_data(*given, **({"at": None} | options))
    offsets = spread * rng.normal(size=int(tf.size(problem.Z_start)))
    variables = local.hyperparameters.initial(local.parameters.size, True)
    return problem, offsets, variables + 0.1 * rng.normal(size=variables.shape)


def differentiated(bound):
    """The same bound, which TensorFlow differentiates."""
    other = BoundFunctions(bound.bound, bound.local)
    other.collapsed = other.at_sites = None
    return other


def assert_same_objective(bound, *arguments, rtol=1e-12, gradient=1e-11):
    """And gradient, of the largest of whose entries ``gradient`` is a part."""
    found, wanted = (one.objective(*arguments) for one in (bound, differentiated(bound)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol)
    scale = np.max(np.abs(wanted[1]))
    np.testing.assert_allclose(found[1], wanted[1], rtol=0.0, atol=gradient * scale)
    offsets, variables, *_, move = arguments
    assert len(found[1]) == len(variables) + move * len(offsets)


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
    assert_same_objective(bound, offsets, variables, problem, sites, move)


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
    for size in (0, 5, 7):
        if size:
            model.update(batch(rng, size, outputs), learn=False)
        else:
            model._compiled = model._compile(2, outputs)
        present = model.posterior_process.pseudo_observations
        at = present[0] if present and not move else None
        problem, offsets, variables = asked(
            rng, model, batch(rng, 9, outputs), points, 0.1 * move, at=at, takes_over=True
        )
        bound = model._compiled.fitter.bound
        assert closed_form(bound, problem) is not None
        sites = initial_sites(bound, np.zeros_like(offsets), problem)
        given = bound, offsets, variables, problem, sites, move
        assert_same_objective(*given, rtol=1e-11, gradient=1e-9)


SITE_CASES = [
    pytest.param(gl.Bernoulli, ALL, LEARNED, 1, id="labels-at-inputs"),
    pytest.param(gl.Bernoulli, FEW, LEARNED, 1, id="labels-on-points"),
    pytest.param(gl.StudentT, ALL, EVIDENCE, 1, id="heavy-tails-at-inputs-point"),
    pytest.param(gl.StudentT, FEW, EVIDENCE, 1, id="heavy-tails-on-points-point", marks=slow),
    pytest.param(lambda: gl.Softmax(3), ALL, LEARNED, 3, id="classes-at-inputs", marks=slow),
    pytest.param(lambda: gl.Softmax(3), FEW, FULL, 3, id="classes-on-points", marks=slow),
    pytest.param(gl.Poisson, FEW, LEARNED, 1, id="counts-on-points", marks=slow),
]


@pytest.mark.parametrize(("likelihood", "points", "hyperparameters", "functions"), SITE_CASES)
def test_at_sites_they_are_those_of_automatic_differentiation(
    rng, likelihood, points, hyperparameters, functions
):
    model = sgp.StreamingGP(
        gk.Matern32(lengthscales=[1.0, 2.0]),
        likelihood(),
        mean_function=gpflow.functions.Constant(np.full(functions, 0.3)),
        num_latent_gps=functions,
        pseudo_points=points,
        hyperparameters=hyperparameters,
        seed=0,
    )
    for size in (5, 7):
        model.update(labelled(rng, size), learn=False)
    bound = model._compiled.fitter.bound
    problem, offsets, variables = asked(rng, model, labelled(rng, 9), points)
    sites = Sites(rng.normal(size=(9, functions)), rng.uniform(1e-6, 2.0, size=(9, functions)))
    assert bound.at_sites is not None
    given = offsets, variables, problem, sites
    assert_same_objective(bound, *given, points is FEW)
    values = (one.value(*given) for one in (bound, differentiated(bound)))
    np.testing.assert_allclose(*values, rtol=1e-12)


def sites_of(rng, N):
    return rng.normal(size=N), rng.uniform(0.1, 2.0, size=N)


@pytest.mark.parametrize(("bound", "N"), [(SitesAtInputs(), 0), (SitesOnPoints(), 6)])
def test_at_sites_derivatives_are_those_of_finite_differences(rng, bound, N):
    given = under_cavity(rng, 4, N, 1)
    sites = sites_of(rng, N or 4)
    by_mean, by_variance = rng.normal(size=(2, 2, N or 4))

    def value(at):
        q = bound.posterior(at._replace(among=at.among.copy()), *sites)
        expected = np.sum(np.sin(by_mean * q.mean) + np.cos(by_variance * q.variance))
        return expected - q.kl

    q = bound.posterior(given, *sites)
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


def under_cavity(rng, M, N, C):
    root = rng.normal(size=(2, M, M + 2))
    between = 0.3 * rng.normal(size=(2, M, N))
    among = root @ root.swapaxes(1, 2)
    explained = np.sum(between * np.linalg.solve(among, between), axis=1)
    return UnderCavity(
        among,
        between,
        explained + rng.uniform(0.1, 1.0, size=(2, N)),
        rng.normal(size=(2, N or M, C)),
        rng.uniform(0.1, 1.0, size=(2, N or M)),
    )


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
    variables = local.hyperparameters.initial(local.parameters.size, True)
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
