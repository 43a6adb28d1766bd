"""Scores are what their names say."""

import numpy as np
import pytest

from streaming_gp import metrics


def test_error_rate():
    assert metrics.error_rate([[0.9], [0.2], [0.6], [0.4]], [1, 0, 0, 1]) == 0.5


def test_smse_of_the_mean_is_one(rng):
    targets = rng.standard_normal((50, 2))
    predicted = np.broadcast_to(targets.mean(axis=0), targets.shape)
    assert metrics.smse(predicted, targets) == pytest.approx(1.0)
    assert metrics.smse(targets, targets) == 0.0


def test_mean_negative_log_density():
    assert metrics.mean_negative_log_density([-1.0, -3.0]) == 2.0


def test_classification_scores_by_hand():
    probabilities = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.35, 0.65]]
    labels = [[0], [1], [1], [1]]
    assert metrics.classification_error(probabilities, labels) == 0.25
    # each alone in its bin of ten: |1 - 0.9|, |0 - 0.6|; 0.8 and 0.65 are two bins: 0.2, 0.35
    gap = metrics.expected_calibration_error(probabilities, labels, num_bins=10)
    assert gap == pytest.approx((0.1 + abs(1 - 0.6 - 0.65) + 0.2) / 4)


def test_losses_of_single_points():
    np.testing.assert_array_equal(
        metrics.squared_error([[1.0], [2.0]], [[3.0, 1.0], [2.0, 0.0]]), [[4, 0], [0, 4]]
    )
    np.testing.assert_array_equal(
        metrics.on_wrong_side([[0.9], [0.6]], [[1], [0]]), [[False], [True]]
    )
    np.testing.assert_array_equal(
        metrics.wrong_class([[0.2, 0.8], [0.6, 0.4]], [[1], [1]]), [False, True]
    )
