"""The local bound of every strategy, in dense matrices: an update reports the bound of what it
keeps, and q, its points and ε are where that bound is largest.
"""

from dataclasses import dataclass, replace
from functools import cache

import gpflow
import numpy as np
import pytest
from check_shapes import disable_check_shapes
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from scipy.stats import multivariate_normal

import streaming_gp as sgp
from tests.laws import slow
from tests.oracles.builders import FIXED, as_pseudo_observations, evidence
from tests.oracles.dense_bounds import (
    evidence_of,
    frozen_points,
    past_by_divergence,
    sparse_bound,
    under_cavity,
)
from tests.oracles.reference import conditional_bound, independent_bound, smooth_data
from tests.tolerances import THROUGH_CHOLESKY

TO_THE_END = sgp.LocalOptimiser(max_iterations=300, tolerance=0.0, site_steps=200)
A_LITTLE = sgp.LocalOptimiser(max_iterations=4, rounds=2, site_steps=200)
"""Locations may lie anywhere, but q of them is at its optimum."""
STEP = 1e-4
SLOPING_NOISE = gpflow.functions.Linear(A=[[0.05], [0.02]], b=[0.4])


def matern():
    return gk.Matern52(variance=1.5, lengthscales=[0.9, 1.4])


def of_two():
    return gk.SeparateIndependent([matern(), gk.Matern32(variance=0.5)])


def of_one_parameter():
    kernel = gk.Matern52(variance=1.5)
    gpflow.set_trainable(kernel.variance, False)
    return kernel


MODULES = {
    "two parameters": (of_one_parameter, lambda: gl.Gaussian(0.3)),
    "regression": (matern, lambda: gl.Gaussian(0.3)),
    "white noise": (lambda: matern() + gk.White(0.1) + gk.Linear(variance=0.2), gl.Gaussian),
    "sloping noise": (matern, lambda: gl.Gaussian(scale=SLOPING_NOISE)),
    "two outputs": (matern, lambda: gl.Gaussian(0.3)),
    "two kernels": (of_two, lambda: gl.Gaussian([0.3, 0.5])),
    "labels": (matern, gl.Bernoulli),
    "heavy tails": (matern, lambda: gl.StudentT(scale=0.5, df=4.0)),
    "counts": (matern, gl.Poisson),
}
OF_TWO = "two outputs", "two kernels"
POINTS = {
    "private": sgp.PrivatePseudoPoints(5),
    "all": sgp.PrivatePseudoPoints("all"),
    "shared": sgp.SharedPseudoPoints(6),
    "conditional": sgp.ConditionalPseudoPoints(5),
    "independent": sgp.IndependentPseudoPoints(6),
}
FROZEN = "conditional", "independent"


def observed(rng, name, number):
    """A batch of a kind of data."""
    X, Y = smooth_data(rng, number, 2 if name in OF_TWO else 1, noise=0.4)
    if name == "labels":
        return X, (Y > 0.0).astype(float)
    return X, np.round(np.exp(0.5 * Y)) if name == "counts" else Y


def model_of(name, points, hyperparameters=FIXED, optimiser=TO_THE_END, **options):
    kernel, likelihood = (make() for make in MODULES[name])
    mean_function = gpflow.functions.Constant(0.7)
    gpflow.set_trainable(mean_function, name != "two parameters")
    return sgp.StreamingGP(
        kernel, likelihood, mean_function, pseudo_points=POINTS[points],
        hyperparameters=hyperparameters, num_latent_gps=2 if name in OF_TWO else 1,
        optimiser=optimiser, **options,
    )  # fmt: skip


@dataclass
class Batch:
    """A batch: what was known before it, what is kept of it, and what was reported."""

    model: sgp.StreamingGP
    points: str
    known: tuple
    data: tuple
    info: sgp.UpdateInfo
    own: object

    @disable_check_shapes()
    def bound(self, own=None):
        """At the ε that the model holds."""
        own, model = own or self.own, self.model
        if self.points in ("private", "all"):
            return sparse_bound(model, self.known, own, self.data)
        if self.points == "shared" or not self.known:
            return sparse_bound(model, (), own, self.data, *self.known)
        given = model.kernel, model.mean_function, model.likelihood.variance.numpy()
        dense = conditional_bound if self.points == "conditional" else independent_bound
        return dense(*given, self.known[0], own, self.data)

    def moved(self, rng, size):
        """What is kept, changed at random a little in each array; and as much the other way."""
        arrays = {
            name: rng.standard_normal(getattr(self.own, name).shape)
            for name in ("precision_factor", "pseudo_targets", "intercept", "slope", "scale")
            if hasattr(self.own, name)
        }
        if self.points == "all":
            arrays["precision_factor"] *= np.eye(len(self.own.Z))
        return [
            replace(self.own, **{n: getattr(self.own, n) + s * by for n, by in arrays.items()})
            for s in (size, -size)
        ]


def next_update(rng, model, name, points, learn=None):
    known, data = model.posterior_process.compact.pseudo_observations, observed(rng, name, 20)
    info = model.update(data, learn=learn)
    kept = model.posterior_process.compact if points == "shared" else model.factors[info.batch_id]
    *known, own = (
        as_pseudo_observations(one, model.likelihood) for one in (*known, *kept.pseudo_observations)
    )
    return Batch(model, points, tuple(known), data, info, own)


@cache
def updates(name, points):
    """Two batches at known hyperparameters; the first one learns where others rest on it."""
    rng, model = np.random.default_rng(20181127), model_of(name, points, optimiser=A_LITTLE)
    return [next_update(rng, model, name, points, learn) for learn in (points in FROZEN, None)]


ELSEWHERE = "labels", "heavy tails", "two parameters"


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("labels", "private"),
        ("two kernels", "shared"),
        ("regression", "conditional"),
        slow("regression", "independent"),
        *(slow(name, "private") for name in MODULES if name not in ELSEWHERE),
        *(slow(name, "all") for name in ("heavy tails", "two kernels", "labels")),
        *(slow(name, "shared") for name in ("labels", "white noise")),
    ],
)
def test_an_update_reports_the_bound_of_what_it_keeps_which_is_where_it_is_largest(
    rng, name, points, request
):
    """Whether it learns or not; and the bounds add up to that of all batches."""
    if name in ("regression", "two kernels"):  # so few steps take longer to trace than to run
        request.getfixturevalue("eager")
    total = 0.0
    for batch in updates(name, points):
        if points in FROZEN and not batch.known:
            total += batch.info.free_energy
            continue
        best = batch.bound()
        assert batch.info.free_energy == pytest.approx(best, abs=10.0 * THROUGH_CHOLESKY)
        total += best
        for _ in range(3):
            ahead, behind = map(batch.bound, batch.moved(rng, 1e-3))
            assert max(ahead, behind) < best
            assert abs(ahead - behind) < 3e-2 * (2.0 * best - ahead - behind)
    assert evidence(batch.model) == pytest.approx(total, abs=10.0 * THROUGH_CHOLESKY)


def pushed_forward(model, X):
    """Mean and covariance of f at X, where q(u) of all points is a Gaussian that is frozen:
    ``f = m(X) + k(X, Z) K⁻¹ (u − m(Z))``, and what u leaves open.
    """
    points = [one for f in model.factors.values() for one in f.pseudo_observations]
    u, S = np.zeros((0, 1)), np.zeros((0, 0))
    for one in points:
        u = np.concatenate([u, one.intercept[0]])
        R, M = one.slope.shape[2], len(one.Z)
        S = np.block([[S, np.zeros((len(S), M))], [one.slope[0], one.scale[0]]])
        assert R in (0, len(S) - M)
    Z = np.concatenate([one.Z for one in points])
    nugget = np.concatenate([np.full(len(one.Z), one.nugget) for one in points])
    K = model.kernel(Z).numpy() + np.diag(nugget)
    weights = np.linalg.solve(K, model.kernel(Z, X).numpy())
    mean = model.mean_function(X) + weights.T @ (u - model.mean_function(Z))
    return mean, model.kernel(X).numpy() - weights.T @ (K - S @ S.T) @ weights


def test_predictions_on_frozen_points_are_those_of_their_gaussian_pushed_forward(new_inputs):
    model = updates("regression", "conditional")[-1].model
    mean, covariance = pushed_forward(model, new_inputs)
    found = model.predict_f(new_inputs, full_cov=True)
    np.testing.assert_allclose(found[0], mean, atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(found[1][0], covariance, atol=THROUGH_CHOLESKY)
    _, variance = model.predict_f(new_inputs)
    np.testing.assert_allclose(variance[:, 0], np.diag(covariance), atol=THROUGH_CHOLESKY)


@disable_check_shapes()
def slopes(function, at):
    """Of a function of a vector along three directions, by differences."""
    steps = STEP * np.random.default_rng(0).standard_normal((3, len(at)))
    return np.array([(function(at + s) - function(at - s)) / (2.0 * STEP) for s in steps])


@pytest.mark.parametrize(
    ("name", "points", "memory"),
    [
        ("regression", "private", "divergence"),
        slow("regression", "private", True),
        slow("two kernels", "private", True),
        slow("labels", "private", True),
        slow("regression", "shared", "evidence"),
        slow("two kernels", "shared", "divergence"),
        slow("regression", "shared", False),
        slow("labels", "shared", True),
        slow("regression", "conditional", True),
        slow("regression", "conditional", False),
    ],
)
def test_a_point_and_locations_are_where_the_bound_with_its_memory_is_largest(
    rng, name, points, memory
):
    """PVI 2018, app. C.1 and eq. 93. q is at its optimum: it may be held while ε takes a step."""
    model = model_of(name, points, sgp.PointHyperparameters(remember=memory))
    model.update(observed(rng, name, 16))
    (known,) = model.posterior_process.compact.pseudo_observations
    frozen = [known] if points == "conditional" else frozen_points(model, known)
    vector = model.parameter_vector
    before = past_by_divergence(model, frozen)
    second = next_update(rng, model, name, points)
    memory = {True: "divergence" if points == "conditional" else "evidence"}.get(memory, memory)

    def past(which):
        if which == "evidence":
            return evidence_of(model, [known])
        return past_by_divergence(model, frozen) if which else 0.0

    reported = second.bound()
    if points == "conditional" and memory:
        reported += past(memory) - before  # what the past gains by ε is no gain of other batches
    assert second.info.free_energy == pytest.approx(reported, abs=10.0 * THROUGH_CHOLESKY)

    def by_epsilon(epsilon):
        vector.assign(epsilon)
        return second.bound() + past(memory)

    def by_other(epsilon):
        vector.assign(epsilon)
        return second.bound() + past(False if memory else "divergence")

    at, Z = vector.value(), second.own.Z
    largest = np.abs(slopes(by_epsilon, at)).max()
    assert largest < 0.05 * np.abs(slopes(by_other, at)).max()
    vector.assign(at)

    def by_place(places):
        return second.bound(replace(second.own, Z=places.reshape(Z.shape)))

    largest = np.abs(slopes(by_place, Z.ravel())).max()
    assert largest < 0.05 * np.abs(slopes(by_place, Z.ravel() + 0.1)).max()


@pytest.mark.parametrize("name", ["sloping noise", slow("regression"), slow("two outputs")])
def test_with_a_point_at_every_input_it_is_where_the_evidence_of_all_data_is_largest(rng, name):
    """Of earlier batches as of the newest, at the noise of this ε."""
    model = model_of(name, "all", sgp.PointHyperparameters())
    batches = [observed(rng, name, number) for number in (12, 14)]
    model.update(batches[0], learn=False)
    info = model.update(batches[1])
    data = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    oracle = gpflow.models.GPR(data, model.kernel, model.mean_function, likelihood=model.likelihood)
    vector = model.parameter_vector
    at = vector.value()

    def by_epsilon(epsilon):
        vector.assign(epsilon)
        return float(oracle.log_marginal_likelihood())

    assert info.iterations > 0
    assert evidence(model) == pytest.approx(by_epsilon(at), abs=10.0 * THROUGH_CHOLESKY)
    largest = np.abs(slopes(by_epsilon, at)).max()
    assert largest < 0.05 * np.abs(slopes(by_epsilon, at + 0.1)).max()


@dataclass(frozen=True)
class SameNoise(sgp.VariationalHyperparameters):
    """The values of ε that a bound is averaged over are those of one seed."""

    def noise(self, size, seed, *rest):
        return super().noise(size, 7, *rest)


@pytest.mark.slow
@pytest.mark.parametrize("points", FROZEN)
def test_q_of_epsilon_is_where_the_mean_of_the_bounds_less_its_divergence_is_largest(rng, points):
    """PVI 2018, eq. 94: what is kept does not depend on ε, and is held while q(ε) takes a step."""
    strategy = SameNoise(num_samples=2)
    model = model_of("two parameters", points, strategy)
    model.update(observed(rng, "two parameters", 16))
    cavity = model.hyperparameter_posterior
    second = next_update(rng, model, "two parameters", points)
    q, vector, size = model.hyperparameter_posterior, model.parameter_vector, len(cavity.mean)
    noise = strategy.noise(size, 0)

    def objective(variables):
        mean, scale = variables[:size], np.diag(np.exp(variables[size:]))
        values = []
        for epsilon in mean + noise @ scale:
            vector.assign(epsilon)
            values.append(second.bound())
        near = type(q).from_mean_scale(mean, scale)
        return np.mean(values) - float(near.kl_divergence(cavity))

    at = np.concatenate([q.mean, 0.5 * np.log(q.variance)])
    largest = np.abs(slopes(objective, at)).max()
    assert largest < 0.05 * np.abs(slopes(objective, at + 0.1)).max()


@disable_check_shapes()
def energy_of_power_ep(model, known, own, data, alpha):
    """``log N(y; m̃, Q̃ + σ² I + α diag r) − (1 − α)/(2α) Σ log(1 + α r/σ²)`` of each column, and
    the precision of b that the data of each have.
    """
    (X, Y), energy, precisions = data, 0.0, []
    noise = np.broadcast_to(model.likelihood.variance.numpy(), Y.shape[1])
    for g, one in enumerate(under_cavity(model, known, own, X)):
        J, m_f, r, v = one.J[:, one.f], one.mean[one.f], one.left, noise[g]
        covariance = J.T @ one.K @ J + np.diag(v + alpha * r)
        energy += multivariate_normal(m_f[:, 0], covariance).logpdf(Y[:, g])
        energy -= (1 - alpha) / (2 * alpha) * np.sum(np.log1p(alpha * r / v))
        precisions.append(J / (v + alpha * r) @ J.T)
    return energy, precisions


POWERS = pytest.mark.parametrize(("name", "alpha"), [("regression", 0.3), slow("two kernels", 1.0)])


def under_power_ep(rng, name, alpha, **options):
    """The second of two batches."""
    model = model_of(name, "private", alpha=alpha, **options)
    model.update(observed(rng, name, 16))
    return next_update(rng, model, name, "private")


@POWERS
def test_power_ep_reports_its_energy(rng, name, alpha, eager):
    second = under_power_ep(rng, name, alpha, optimiser=A_LITTLE)
    model, known = second.model, second.known
    wanted, precisions = energy_of_power_ep(model, known, second.own, second.data, alpha)
    assert second.info.free_energy == pytest.approx(wanted, abs=THROUGH_CHOLESKY)
    for found, precision in zip(second.own.precision, precisions, strict=True):
        np.testing.assert_allclose(found, precision, atol=THROUGH_CHOLESKY * precision.max())


@pytest.mark.slow
@POWERS
def test_a_point_under_power_ep_is_where_the_energy_is_largest(rng, name, alpha):
    second = under_power_ep(rng, name, alpha, hyperparameters=sgp.PointHyperparameters())
    model, known = second.model, second.known

    def energy(own):
        return energy_of_power_ep(model, known, own, second.data, alpha)[0]

    vector, Z = model.parameter_vector, second.own.Z
    at = vector.value()

    def by_epsilon(epsilon, share=1.0):
        vector.assign(epsilon)
        return energy(second.own) + share * evidence_of(model, known)

    def by_place(places):
        return energy(replace(second.own, Z=places.reshape(Z.shape)))

    largest = np.abs(slopes(by_epsilon, at)).max()
    assert largest < 0.05 * np.abs(slopes(lambda epsilon: by_epsilon(epsilon, 0.0), at)).max()
    vector.assign(at)
    largest = np.abs(slopes(by_place, Z.ravel())).max()
    assert largest < 0.05 * np.abs(slopes(by_place, Z.ravel() + 0.1)).max()


@pytest.mark.parametrize("points", [slow("private"), "shared"])
def test_the_errors_that_data_show_and_the_variance_that_points_leave(points):
    """White's variance of b over the predicted one: rows are data, in units of their noise."""
    second = updates("two kernels", points)[-1]
    (X, Y), shared, nugget = second.data, points == "shared", second.own.nugget
    noise = second.model.likelihood.variance.numpy()
    earlier = second.known[0] if shared else None
    ratios, left = [], []
    groups = under_cavity(second.model, () if shared else second.known, second.own, X, earlier)
    for g, one in enumerate(groups):
        root = 1.0 / np.sqrt(noise[g])
        rows = root * one.J[:, one.f].T
        y = root * (Y[:, [g]] - one.mean[one.f])
        if shared:
            R, s = one.earlier.precision_factor[0], one.earlier.pseudo_targets[0]
            rows = np.concatenate([rows, R.T @ one.J[:, one.a].T])
            y = np.concatenate([y, s - R.T @ one.mean[one.a]])
        covariance = np.linalg.inv(np.linalg.inv(one.K) + rows.T @ rows)
        weights = covariance @ rows.T
        shown = weights * ((y - rows @ weights @ y)[:, 0] ** 2) @ weights.T
        ratios.append(np.diag(shown) / (np.diag(covariance) + nugget))
        left.append(np.mean(one.left / (noise[g] + nugget)))
    assert second.info.shown_error == pytest.approx(np.sqrt(np.max(ratios)), rel=1e-4)
    assert second.info.unexplained == pytest.approx(np.mean(left), rel=1e-4)
