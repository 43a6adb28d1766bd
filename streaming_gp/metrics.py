"""Scores of predictions; NumPy in, float out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def error_rate(probability: ArrayLike, labels: ArrayLike) -> float:
    """Share of points on the wrong side of ½.

    :param probability: [N, 1] or [N], predicted probability of label 1.
    :param labels: same number of labels, 0 or 1.
    """
    predicted = np.ravel(probability) > 0.5
    return float(np.mean(predicted != (np.ravel(labels) > 0.5)))


def classification_error(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of points whose likeliest class is not theirs.

    :param probabilities: [N, C].
    :param labels: [N, 1] or [N], classes 0 to C − 1.
    """
    return float(np.mean(np.argmax(probabilities, axis=1) != np.ravel(labels)))


def expected_calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, num_bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017, eq. 3).

    :param probabilities: [N, C].
    :param labels: [N, 1] or [N], classes 0 to C − 1.
    :param num_bins: of equal width between 0 and 1.
    """
    confidence = np.max(probabilities, axis=1)
    right = np.argmax(probabilities, axis=1) == np.ravel(labels)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))


def mean_negative_log_density(log_density: ArrayLike) -> float:
    """Mean of ``-log p(y)`` in nats per test point, from log densities [N]."""
    return -float(np.mean(np.asarray(log_density)))


def smse(mean: ArrayLike, targets: ArrayLike) -> float:
    """Standardised mean squared error: mean squared error over the variance of the targets.

    :param mean: [N] or [N, P] predictions.
    :param targets: test targets of the same shape.
    """
    difference = np.asarray(mean, float) - np.asarray(targets, float)
    return float(np.mean(difference**2) / np.var(np.asarray(targets, float), axis=0).mean())
