"""Where pseudo-points start, against the textbook formula."""

from dataclasses import replace

import gpflow
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp.gp import Candidates
from tests.tolerances import THROUGH_CHOLESKY

LAWS = settings(max_examples=25, deadline=None)
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


def random_covariance(seed, size=25):
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
