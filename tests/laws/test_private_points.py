"""Private pseudo-points: how many there are, and where they start."""

import copy
from dataclasses import replace

import gpflow
import numpy as np
import pytest
from check_shapes import disable_check_shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp.gp import Candidates
from tests.laws import eager, slow
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    MERGED,
    NOISE,
    QUICK,
    assert_same_arrays,
    assert_unchanged,
    evidence,
    exact_gp,
    known_model,
    labelled,
    model_of,
    observed,
    predicted,
    regressor,
    rough_kernel,
    thirds,
)
from tests.oracles.dense_bounds import kernels_of
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


@pytest.mark.slow
def test_automatic_points_follow_what_can_be_gained(rng):
    """More for a rough function than for a smooth one, no more where much is known already."""
    numbers = {}
    for lengthscale in (0.3, 3.0):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=lengthscale),
            gpflow.likelihoods.Gaussian(0.1), hyperparameters=FIXED,
            pseudo_points=sgp.PrivatePseudoPoints("auto"),
        )  # fmt: skip
        X, Y = smooth_data(rng, 200)
        numbers[lengthscale] = model.update((X, Y)).num_pseudo_points
        again = model.update((X + 1e-3, Y)).num_pseudo_points
        assert again <= numbers[lengthscale]
    assert numbers[3.0] < numbers[0.3] / 3
    assert numbers[0.3] <= 100


@eager
def test_automatic_points_leave_little_to_gain(rng):
    """The bound with chosen points is within the tolerance of the exact evidence."""
    data = smooth_data(rng, 150)
    auto = sgp.PrivatePseudoPoints("auto", tolerance=0.01, optimise_locations=False)
    chosen = known_model(auto).update(data)
    exact = known_model(EVERY_INPUT).update(data)
    assert chosen.num_pseudo_points < 75
    assert 0.0 <= exact.free_energy - chosen.free_energy < 2 * 0.01 * 150


@pytest.mark.slow
def test_a_budget_under_variational_hyperparameters_keeps_q(rng):
    fitted = known_model(
        sgp.PrivatePseudoPoints(6, budget=12),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=10),
    )
    X, Y = smooth_data(rng, 60)
    for rows in np.array_split(np.argsort(X[:, 0]), 2):
        fitted.update((X[rows], Y[rows]))
    before = fitted.hyperparameter_posterior
    fitted.compress(6)
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before.mean, rtol=ALGEBRA)


@pytest.mark.parametrize("size", [slow(120), 30, slow(4)])
def test_within_a_budget_the_exact_gp_is_hardly_lost(rng, size):
    X, Y = smooth_data(rng, 120)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60))
    for start in range(0, 120, size):
        model.update((X[start : start + size], Y[start : start + size] + 2.0))
        assert model.posterior_process.num_pseudo_points <= 60
    exact = exact_gp((X, Y + 2.0))
    new, _ = smooth_data(rng, 100, noise=0.0)
    mean, variance = model.predict_f(new)
    exact_mean, exact_variance = exact.predict_f(new)
    assert np.max(np.abs(mean - exact_mean)) < 0.02
    assert np.mean(np.abs(variance / exact_variance - 1.0)) < 0.2
    assert next(iter(model.factors)) == ("batch-0" if size == 120 else MERGED)
    lost = float(exact.log_marginal_likelihood() - model.maximum_log_likelihood_objective())
    assert 0.0 < lost < 1.0  # the projection is a bound


def test_the_newest_small_batches_stay_apart(rng):
    X, Y = smooth_data(rng, 30)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=15))
    for start in range(0, 30, 3):
        model.update((X[start : start + 3], Y[start : start + 3]))
    newest = list(model.factors)[-1]
    model.revisit(newest, (X[-3:], Y[-3:]))
    model.remove(newest)
    assert newest not in model.factors


def test_merged_points_stay_where_newer_batches_lie_as_well():
    """Those will be merged later on, and then their points may go."""
    alone, beside = 20.0 * np.arange(40.0), 20.0 * np.arange(10.0) + 0.5
    X = np.c_[np.concatenate([alone, beside]), np.zeros(50)]
    model = known_model(sgp.PrivatePseudoPoints("all", budget=50, optimise_locations=False))
    for rows in (slice(0, 50), slice(30, 35)):
        model.update((X[rows], np.sin(X[rows, :1])))
    assert list(model.factors) == [MERGED, "batch-1"]
    assert set(X[30:35, 0]) <= set(model.factors[MERGED].Z[:, 0])


def test_labels_keep_their_points_within_a_budget(rng):
    X, Y = labelled(rng, 60)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=30),
        hyperparameters=FIXED,
        optimiser=sgp.LocalOptimiser(max_iterations=6, rounds=2),
    )  # fmt: skip
    for data in thirds(X, Y).values():
        model.update(data)
    assert model.posterior_process.num_pseudo_points <= 30
    assert np.mean((np.asarray(model.predict_y(X)[0]) > 0.5) == (Y > 0.5)) > 0.85


LAWS = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 2**31 - 1)


def candidates(K, weight=None):
    weight = np.ones(len(K)) if weight is None else weight
    return Candidates(
        np.arange(len(K))[:, None], np.diag(K).copy(), lambda some: K[:, some],
        lambda some: K[np.ix_(some, some)], lambda: weight,
    )  # fmt: skip


def placed(strategy, candidates):
    """The numbers of the candidates that a strategy takes."""
    return list(strategy.place(candidates)[:, 0])


def greedy_variance(candidates, number):
    return placed(sgp.SharedPseudoPoints(number), candidates)


def mostly_present(candidates, number, fresh):
    return placed(sgp.SharedPseudoPoints(number, fresh=fresh), candidates)


def greedy_gain(candidates, number, tolerance=None):
    if tolerance is None:
        return placed(sgp.PrivatePseudoPoints(number), candidates)
    strategy = sgp.PrivatePseudoPoints("auto", tolerance=tolerance, max_number=number)
    return placed(strategy, candidates)


def unexplained(K, known):
    """Covariance of the rest given the known points, by the textbook formula."""
    return K - K[:, known] @ np.linalg.solve(K[np.ix_(known, known)], K[known])


def random_covariance(seed, size=15):
    X = np.random.default_rng(seed).uniform(-2, 2, (size, 2))
    return gpflow.kernels.Matern32(lengthscales=0.8)(X).numpy() + 1e-9 * np.eye(size)


@LAWS
@given(seeds)
def test_greedy_points_have_the_largest_conditional_variance(seed):
    K = random_covariance(seed)
    chosen = greedy_variance(candidates(K), 6)
    assert len(set(chosen)) == 6
    for m in range(1, 6):
        residual = np.diag(unexplained(K, chosen[:m]))
        assert residual[chosen[m]] >= residual.max() - THROUGH_CHOLESKY


@LAWS
@given(seeds, st.integers(0, 6))
def test_present_points_stay_but_for_those_that_the_others_explain_best(seed, fresh):
    K = random_covariance(seed)
    here = replace(candidates(K), num_present=6)
    chosen = mostly_present(here, 6, fresh)
    stay = greedy_variance(candidates(K[:6, :6]), 6 - fresh) if fresh < 6 else []
    np.testing.assert_array_equal(chosen[: len(stay)], stay)
    assert len(set(chosen)) == 6
    for m in range(max(1, len(stay)), 6):
        residual = np.diag(unexplained(K, chosen[:m]))
        assert residual[chosen[m]] >= residual.max() - THROUGH_CHOLESKY


def test_a_present_point_that_another_explains_is_no_point_more():
    K = random_covariance(0)
    K[1], K[:, 1] = K[0], K[:, 0]
    K[1, 1] = K[0, 0]
    chosen = mostly_present(replace(candidates(K), num_present=4), 5, 0)
    assert len({0, 1} & set(chosen)) == 1
    assert {2, 3} < set(chosen)
    assert len(set(chosen)) == 5


@LAWS
@given(seeds)
def test_points_by_gain_take_most_off_the_trace(seed):
    K = random_covariance(seed)
    weight = np.random.default_rng(seed).uniform(0.5, 2.0, len(K))
    chosen = greedy_gain(candidates(K, weight), 6, 1e-9)
    assert len(set(chosen)) == 6
    for m in range(1, 6):
        left = [weight @ np.diag(unexplained(K, [*chosen[:m], j])) for j in range(len(K))
                if j not in chosen[:m]]  # fmt: skip
        best = weight @ np.diag(unexplained(K, chosen[: m + 1]))
        assert best <= min(left) + THROUGH_CHOLESKY


def test_greedy_points_stop_when_little_is_left_and_give_one_at_least():
    K = np.eye(10)
    assert len(greedy_gain(candidates(K), 9, 0.5 * 0.7)) == 3  # 7 of 10 left, ½ nat each
    assert len(greedy_gain(candidates(K), 9, 10.0)) == 1
    assert list(greedy_variance(candidates(np.ones((4, 4))), 3)) == [0]
    assert list(greedy_gain(candidates(np.ones((4, 4))), 3, 1e-9)) == [0]


def test_a_batch_that_said_nothing_of_epsilon_goes_as_if_it_had_never_been(rng, new_inputs):
    model = model_of(sgp.VariationalHyperparameters(num_samples=2), optimiser=QUICK)
    model.update(smooth_data(rng, 20))
    before, ledger = predicted(model, new_inputs), model.ledger
    model.update(smooth_data(rng, 10), learn=False, batch_id="late")
    model.remove("late")
    assert_unchanged(model, new_inputs, before)
    assert model.factors == ledger.factors


@pytest.mark.parametrize(
    ("hyperparameters", "noise"),
    [slow(sgp.VariationalHyperparameters(), 30.0), (sgp.PointHyperparameters(), 0.5)],
    ids=["a distribution", "a point"],  # which has no other start than where it stands
)
def test_without_a_batch_epsilon_is_what_the_others_say(rng, new_inputs, hyperparameters, noise):
    models = [model_of(hyperparameters) for _ in range(2)]
    data, (X, Y) = smooth_data(rng, 40), smooth_data(rng, 40)
    for model in models:
        model.update(data)
    before = models[0].likelihood.variance.numpy()
    Y = Y + noise * rng.standard_normal(Y.shape)
    models[0].update((X, Y), learn=True, batch_id="wrong")
    assert models[0].likelihood.variance.numpy() > 5.0 * before
    models[0].remove("wrong")
    found, wanted = (one.parameter_vector.value() for one in models)
    np.testing.assert_allclose(found, wanted, atol=0.05)
    assert_same_arrays(*(predicted(model, new_inputs) for model in models), 0.02)


# ---- fewer points ----


AMONG_NUGGETS = 2e-3
"""Nats by which white noise of points, which a formula leaves out, changes what they say."""


def of_two_kernels():
    smooth = gpflow.kernels.SquaredExponential(lengthscales=[0.7, 1.1])
    return gpflow.kernels.SeparateIndependent([gpflow.kernels.Matern32(), smooth])


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
        slow("two kernels", "all, some of them"),
        slow("one kernel", "private, moved"),
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


@pytest.mark.parametrize("kernel", ["one kernel", slow("two kernels")])
def test_points_move_to_where_the_evidence_is_largest(rng, kernel):
    ample = sgp.LocalOptimiser(projection_iterations=300, tolerance=0.0)
    model = streamed(rng, KERNELS[kernel](), EVERY_INPUT, optimiser=ample)
    known, _ = observed(model)
    model.compress(4)
    (one,) = model.posterior_process.pseudo_observations

    X = np.concatenate([each.Z for each in known])
    inside = (X.min(axis=0) < one.Z) & (X.max(axis=0) > one.Z)
    assert inside.any()
    steps = 1e-4 * inside * rng.standard_normal((2, *one.Z.shape))

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

    assert kept(one.Z) > max(kept(rng.permutation(Z)[:7]) for _ in range(12))


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
    assert_same_arrays(model.predict_f(X), before, 1e-4)


def test_a_factor_says_the_same_however_its_root_is_written(rng):
    """``R Q`` with rotated targets, Q orthogonal, for the triangle R: of more points than a few."""
    brief = sgp.LocalOptimiser(max_iterations=2, rounds=1)
    first, second = smooth_data(rng, 36), smooth_data(rng, 12)
    plain = regressor(pseudo_points=sgp.PrivatePseudoPoints(33), optimiser=brief)
    plain.update(first, batch_id="first")
    rotated = copy.deepcopy(plain)
    factor = plain.factors["first"]
    (said,) = factor.pseudo_observations
    Q, _ = np.linalg.qr(rng.standard_normal((33, 33)))
    other = replace(
        said, precision_factor=said.precision_factor @ Q, pseudo_targets=Q.T @ said.pseudo_targets
    )
    factor = replace(factor, pseudo_observations=(other,))
    rotated.adopt(rotated.ledger.with_factors({"first": factor}))
    for model in (plain, rotated):
        model.update(second)
    for one, same in zip(rotated.predict_f(first[0]), plain.predict_f(first[0]), strict=True):
        np.testing.assert_allclose(one, same, atol=1e-6)
    q, p = rotated.hyperparameter_posterior, plain.hyperparameter_posterior
    np.testing.assert_allclose(q.mean, p.mean, atol=1e-6)
