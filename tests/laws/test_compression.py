"""Fewer points for what is known: the expected log factor, on places that lose little."""

import gpflow
import numpy as np
import pytest
from check_shapes import disable_check_shapes

import streaming_gp as sgp
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    NOISE,
    evidence,
    known_model,
    observed,
    rough_kernel,
)
from tests.oracles.dense_bounds import kernels_of
from tests.oracles.reference import smooth_data
from tests.tolerances import THROUGH_CHOLESKY

AMONG_NUGGETS = 2e-3
"""Nats by which white noise of points, which a formula leaves out, changes what they say."""


def of_two_kernels():
    return gpflow.kernels.SeparateIndependent([gpflow.kernels.Matern32(), rough_kernel()])


KERNELS = {"one kernel": rough_kernel, "two kernels": of_two_kernels}
POINTS = {
    "all, moved": EVERY_INPUT,
    "all, some of them": sgp.PrivatePseudoPoints("all", optimise_locations=False),
    "private, moved": sgp.PrivatePseudoPoints(6),
}


def streamed(rng, kernel, points, **options):
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(NOISE), gpflow.functions.Constant(2.0),
        pseudo_points=points, hyperparameters=FIXED, **options,
    )  # fmt: skip
    columns = len(kernels_of(model))
    for _ in range(3):
        X, Y = smooth_data(rng, 8, columns)
        model.update((X, Y + 2.0))
    return model


class Projected:
    """``E[log t(a) | b]`` of one group as a quadratic in b at Z: rows and targets, a constant."""

    def __init__(self, kernel, g, known, Z, nugget):
        self.K = kernel(Z).numpy() + nugget * np.eye(len(Z))
        rows, targets, self.constant = [], [], 0.0
        for one in known:
            K_ab = kernel(one.Z, Z).numpy()
            weights = np.linalg.solve(self.K, K_ab.T).T
            left = kernel(one.Z).numpy() + one.nugget * np.eye(len(one.Z)) - weights @ K_ab.T
            R = one.square[g]
            rows.append(R.T @ weights)
            targets.append(one.pseudo_targets[g][:, 0] - 2.0 * (R.sum(axis=0)))
            self.constant -= 0.5 * np.trace(R.T @ left @ R)
        self.rows, self.targets = np.concatenate(rows), np.concatenate(targets)

    def at(self, b):
        return self.constant - 0.5 * np.sum((self.targets - self.rows @ (b - 2.0)) ** 2)

    @property
    def log_evidence(self):
        B = np.eye(len(self.rows)) + self.rows @ self.K @ self.rows.T
        square = self.targets @ np.linalg.solve(B, self.targets)
        return self.constant - 0.5 * (np.linalg.slogdet(B)[1] + square)


def projected(model, known, Z, nugget):
    return [Projected(k, g, known, Z, nugget) for g, k in enumerate(kernels_of(model))]


def log_evidence(model, known, Z, nugget):
    return sum(one.log_evidence for one in projected(model, known, Z, nugget))


@pytest.mark.parametrize(
    ("kernel", "points"),
    [
        ("two kernels", "all, moved"),
        ("one kernel", "all, some of them"),
        pytest.param("two kernels", "all, some of them", marks=pytest.mark.slow),
        ("one kernel", "private, moved"),
    ],
)
def test_it_is_the_expected_log_factor_and_a_bound_of_the_evidence(rng, kernel, points):
    model = streamed(rng, KERNELS[kernel](), POINTS[points])
    before, old, (known, constant) = model.posterior_process, evidence(model), observed(model)
    model.compress(7)
    (one,), after = model.posterior_process.pseudo_observations, model.posterior_process
    groups = projected(model, known, one.Z, one.nugget)
    tolerance = THROUGH_CHOLESKY if points == "all, moved" else AMONG_NUGGETS
    for b in 2.0 + rng.standard_normal((3, len(groups), 7)):
        errors = one.pseudo_targets[:, :, 0] - np.einsum("gmr,gm->gr", one.precision_factor, b)
        found = after.log_scale - before.log_scale - constant - 0.5 * np.sum(errors**2)
        wanted = sum(group.at(each) for group, each in zip(groups, b, strict=True))
        assert found == pytest.approx(wanted, abs=tolerance)
    wanted = before.log_scale + constant + sum(group.log_evidence for group in groups)
    assert evidence(model) == pytest.approx(wanted, abs=tolerance)
    assert evidence(model) < old


@pytest.mark.parametrize(
    "kernel", ["one kernel", pytest.param("two kernels", marks=pytest.mark.slow)]
)
def test_points_move_to_where_the_evidence_is_largest(rng, kernel):
    ample = sgp.LocalOptimiser(projection_iterations=300, tolerance=0.0)
    model = streamed(rng, KERNELS[kernel](), EVERY_INPUT, optimiser=ample)
    known, _ = observed(model)
    model.compress(4)
    (one,) = model.posterior_process.pseudo_observations

    X = np.concatenate([each.Z for each in known])
    inside = (X.min(axis=0) < one.Z) & (X.max(axis=0) > one.Z)
    assert inside.any()
    steps = 1e-4 * inside * rng.standard_normal((3, *one.Z.shape))

    @disable_check_shapes()
    def slopes(at):
        return [
            log_evidence(model, known, at + step, one.nugget)
            - log_evidence(model, known, at - step, one.nugget)
            for step in steps
        ]

    largest = np.abs(slopes(one.Z)).max()
    assert largest < 0.02 * np.abs(slopes(one.Z + 0.1)).max()


def test_points_that_do_not_move_are_those_without_which_most_would_be_lost(rng):
    """In expectation: ``½ tr Rᵀ V R`` of what is left open, against other subsets."""
    model = streamed(rng, rough_kernel(), POINTS["all, some of them"])
    known, _ = observed(model)
    model.compress(7)
    (one,), Z = model.posterior_process.pseudo_observations, np.concatenate([k.Z for k in known])
    assert {tuple(z) for z in one.Z} < {tuple(z) for z in Z}

    @disable_check_shapes()
    def kept(points):
        (group,) = projected(model, known, points, one.nugget)
        return group.constant

    assert kept(one.Z) > max(kept(rng.permutation(Z)[:7]) for _ in range(40))


def test_points_stay_where_points_were(rng):
    """Under a polynomial kernel the best places lie ever farther out."""
    model = streamed(rng, gpflow.kernels.Polynomial(), EVERY_INPUT)
    X = np.concatenate([one.Z for one in model.posterior_process.pseudo_observations])
    model.compress(3)
    (one,) = model.posterior_process.pseudo_observations
    assert np.all(X.min(axis=0) - 1e-12 <= one.Z)
    assert np.all(X.max(axis=0) + 1e-12 >= one.Z)
    assert len(np.unique(one.Z, axis=0)) == 3


@pytest.mark.parametrize("points", ["all, moved", "all, some of them"])
def test_of_inputs_that_come_twice_one_each_is_enough(rng, points):
    X, Y = smooth_data(rng, 12)
    model = known_model(POINTS[points])
    for sign in (1.0, -1.0):
        model.update((X, 2.0 + Y + 0.1 * sign))
    before, old = model.predict_f(X), evidence(model)
    model.compress(12)
    assert evidence(model) == pytest.approx(old, abs=0.01)
    for found, wanted in zip(model.predict_f(X), before, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
