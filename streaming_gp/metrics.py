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
