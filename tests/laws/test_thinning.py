"""Fewer points for a factor: what is lost, and what stays."""

import gpflow
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp.gp.fitting import thinning
from streaming_gp.gp.fitting.thinning import least_lost, thinned
from tests.laws.test_process import observed
from tests.tolerances import THROUGH_CHOLESKY

LAWS = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31 - 1)
NUGGET = 1e-3  # large, so that the textbook formulas below are well conditioned


def covariance_of(Z):
    return gpflow.kernels.Matern32(lengthscales=0.8)(Z).numpy()


def log_value(one, group, u):
    """``log t(u)`` of one group."""
    return -0.5 * np.sum((one.pseudo_targets[group] - one.precision_factor[group].T @ u) ** 2)


@LAWS
@given(seeds)
def test_the_projection_is_the_expected_log_factor(seed):
    rng = np.random.default_rng(seed)
    one = observed(rng, 7, num_groups=2, num_columns=2, nugget=NUGGET)
    K, mean = covariance_of(one.Z), rng.standard_normal((2, 7, 2))
    found, constant = thinned(np.stack([K, 2.0 * K]), mean, [one], 4)
    kept = [int(np.flatnonzero((z == one.Z).all(axis=1))[0]) for z in found.Z]
    assert len(kept) == 4
    b = rng.standard_normal((2, 4, 2))
    expected, projected = 0.0, constant
    for group, prior in enumerate((K, 2.0 * K)):
        covariance = prior + NUGGET * np.eye(7)
        weights = np.linalg.solve(covariance[np.ix_(kept, kept)], covariance[kept]).T
        u = mean[group] + weights @ (b[group] - mean[group][kept])
        left = covariance - weights @ covariance[kept]
        R = one.precision_factor[group]
        expected += log_value(one, group, u) - 0.5 * 2 * np.trace(R.T @ left @ R)
        projected += log_value(found, group, b[group])
    np.testing.assert_allclose(projected, expected, rtol=THROUGH_CHOLESKY)


def loss(K, W, kept):
    """Nats lost on the points that are kept, by the textbook formula."""
    left = K - K[:, kept] @ np.linalg.solve(K[np.ix_(kept, kept)], K[kept])
    return 0.5 * np.trace(W @ left)


@LAWS
@given(seeds)
def test_one_point_after_another_the_least_needed_goes(seed):
    rng = np.random.default_rng(seed)
    one = observed(rng, 9)
    K, W = covariance_of(one.Z) + NUGGET * np.eye(9), one.precision[0]
    stay = list(range(9))
    for _ in range(3):
        lost = {j: loss(K, W, [i for i in stay if i != j]) for j in stay}
        stay.remove(min(lost, key=lost.__getitem__))
    np.testing.assert_array_equal(least_lost(K[None], [W], 3), stay)


def test_many_points_go_as_few_at_a_time_would(rng, monkeypatch):
    one = observed(rng, 60)
    K, W = covariance_of(one.Z)[None] + NUGGET * np.eye(60), one.precision
    together = least_lost(K, W, 30)
    monkeypatch.setattr(thinning, "AT_ONCE", 5)
    monkeypatch.setattr(thinning, "FINALISTS", 12)
    np.testing.assert_array_equal(least_lost(K, W, 30), together)


def test_duplicates_go_first_and_take_nothing_along(rng):
    one = observed(rng, 6, nugget=1e-6)
    K = covariance_of(np.concatenate([one.Z, one.Z]))[None]
    found, constant = thinned(K, np.zeros((1, 12, 1)), [one, one], 6)
    assert len(np.unique(found.Z, axis=0)) == 6
    order = [int(np.flatnonzero((z == found.Z).all(axis=1))[0]) for z in one.Z]
    precision = found.precision[0][np.ix_(order, order)]
    np.testing.assert_allclose(precision, 2.0 * one.precision[0], rtol=1e-3, atol=1e-3)
    assert abs(constant) < 1e-3
