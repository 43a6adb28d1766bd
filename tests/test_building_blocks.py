"""Small parts against oracles in plain NumPy."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp.errors import NumericalError
from streaming_gp.gp import pseudo_points
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.optimiser import minimise
from streaming_gp.gp.pseudo_points import Candidates, greedy_gain, greedy_variance
from streaming_gp.linalg import (
    add_to_diagonal,
    compress_rows,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.reference import smooth_data

LAWS = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31 - 1)


@LAWS
@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_compressed_rows_carry_the_same_information(seed, num, size):
    rng = np.random.default_rng(seed)
    rows, targets = rng.standard_normal((2, num, size)), rng.standard_normal((2, num, 3))
    few, few_targets = compress_rows(rows, targets)
    assert few.shape == (2, size, size)
    transposed = np.swapaxes(rows, -1, -2), np.swapaxes(few, -1, -2)
    np.testing.assert_allclose(transposed[0] @ rows, transposed[1] @ few, atol=ALGEBRA)
    np.testing.assert_allclose(transposed[0] @ targets, transposed[1] @ few_targets, atol=ALGEBRA)


def test_triangular_solves_broadcast(rng):
    chol = np.linalg.cholesky(np.cov(rng.standard_normal((4, 30))))
    rhs = rng.standard_normal((3, 4, 2))
    np.testing.assert_allclose(chol @ solve_lower(chol[None], rhs), rhs, atol=ALGEBRA)
    np.testing.assert_allclose(chol.T @ solve_lower_transposed(chol, rhs), rhs, atol=ALGEBRA)
    np.testing.assert_allclose(logdet_from_cholesky(chol), np.linalg.slogdet(chol @ chol.T)[1])
    shifted = add_to_diagonal(tf.constant(chol), tf.constant([1.0, 2.0, 3.0, 4.0], tf.float64))
    np.testing.assert_allclose(shifted - chol, np.diag([1.0, 2.0, 3.0, 4.0]), atol=ALGEBRA)


def candidates(K, weight=None):
    weight = np.ones(len(K)) if weight is None else weight
    return Candidates(
        np.diag(K).copy(), lambda some: K[:, some], lambda some: K[np.ix_(some, some)],
        lambda: weight,
    )  # fmt: skip


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


def test_as_many_points_as_asked_for_however_few_witness_their_gain(monkeypatch):
    monkeypatch.setattr(pseudo_points, "WITNESSES", 5)
    K = random_covariance(0)
    assert len(greedy_gain(candidates(K), 3)) == 3
    chosen = greedy_gain(candidates(K), 12)
    assert len(set(chosen)) == 12


def test_greedy_points_stop_when_little_is_left_and_give_one_at_least():
    K = np.eye(10)
    assert len(greedy_gain(candidates(K), 9, 0.5 * 0.7)) == 3  # 7 of 10 left, ½ nat each
    assert len(greedy_gain(candidates(K), 9, 10.0)) == 1
    assert list(greedy_variance(candidates(np.ones((4, 4))), 3)) == [0]
    assert list(greedy_gain(candidates(np.ones((4, 4))), 3, 1e-9)) == [0]


def test_fixed_point_sites_of_gaussian_noise_are_the_exact_ones(rng):
    likelihood = gpflow.likelihoods.Gaussian(0.3)
    X, Y = (tf.constant(a) for a in smooth_data(rng, 8, 2))
    mean, variance = (
        tf.constant(rng.standard_normal((8, 2))),
        tf.constant(rng.uniform(1, 2, (8, 2))),
    )
    fixed = site_rules.fixed_point_sites(likelihood, X, mean, variance, Y)
    for a, b in zip(fixed, site_rules.conjugate_sites(likelihood, X, Y), strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA)


def test_clipping_leaves_proper_sites_alone():
    sites = site_rules.Sites(tf.constant([[1.0], [2.0]]), tf.constant([[0.5], [-3.0]]))
    clipped = site_rules.clipped(sites)
    np.testing.assert_allclose(clipped.precision_mean, sites.precision_mean)
    np.testing.assert_allclose(clipped.precision, [[0.5], [site_rules.MIN_SITE_PRECISION]])


def test_monte_carlo_likelihoods_are_evaluated_at_fixed_points(rng):
    """GPflow's stochastic Gaussian, made deterministic, agrees with the closed form."""
    X, Y = (tf.constant(a) for a in smooth_data(rng, 20))
    mean, variance = Y + 0.1, tf.ones_like(Y)
    stochastic, exact = gpflow.likelihoods.GaussianMC(0.5), gpflow.likelihoods.Gaussian(0.5)
    first, second = (
        site_rules.expected_log_density(stochastic, X, mean, variance, Y) for _ in range(2)
    )
    assert float(first) == float(second)
    expected = site_rules.expected_log_density(exact, X, mean, variance, Y)
    np.testing.assert_allclose(first, expected, rtol=ALGEBRA)  # quadratic in f: exact
    moments = site_rules.predictive_moments(stochastic, X, mean, variance)
    np.testing.assert_allclose(moments[0], mean, atol=ALGEBRA)
    np.testing.assert_allclose(moments[1], 1.5, rtol=ALGEBRA)


def test_the_optimiser_turns_back_from_where_the_loss_is_not_finite():
    def loss(point):
        x = point[0]
        return (np.nan if x > 2.0 else -x), np.array([-1.0])

    bounds, seen = [(None, None)], []
    best, iterations = minimise(
        loss, np.zeros(1), bounds, "L-BFGS-B", 50, lambda i, f: seen.append((i, f))
    )
    assert 1.0 < best[0] <= 2.0
    assert [i for i, _ in seen] == list(range(1, iterations + 1))
    assert seen[-1][1] == pytest.approx(best[0])


def test_the_optimiser_refuses_a_start_that_is_not_finite():
    with pytest.raises(NumericalError, match="cavity covariance"):
        minimise(
            lambda x: (np.nan, x), np.zeros(2), [(None, None)] * 2, "L-BFGS-B", 5, lambda *_: None
        )
