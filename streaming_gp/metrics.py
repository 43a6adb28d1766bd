"""Scores of predictions in plain NumPy: losses of single points, and numbers for whole sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# ---- of single points ----


def squared_error(mean: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """``(mean − y)²`` of every point and output.

    :param mean: Predictions [N] or [N, P].
    :param targets: The test targets, of a shape that broadcasts with it.
    """
    squares: np.ndarray = (np.asarray(mean, float) - np.asarray(targets, float)) ** 2
    return squares


def on_wrong_side(probability: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether each point is on the wrong side of ½.

    :param probability: Predicted probabilities of label 1, of any shape.
    :param labels: The labels 0 or 1, of the same shape.
    """
    wrong: np.ndarray = (np.asarray(probability) > 0.5) != (np.asarray(labels) > 0.5)
    return wrong


def wrong_class(probabilities: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether the likeliest class of each point is not its own: [N].

    :param probabilities: Predicted probabilities of the classes [N, C].
    :param labels: The classes 0 to C − 1 of the points, [N, 1] or [N].
    """
    wrong: np.ndarray = np.argmax(probabilities, axis=1) != np.ravel(labels)
    return wrong


# ---- of whole sets ----


def error_rate(probability: ArrayLike, labels: ArrayLike) -> float:
    """Share of points on the wrong side of ½.

    :param probability: Predicted probabilities of label 1, [N, 1] or [N].
    :param labels: As many labels 0 or 1.

    >>> sgp.metrics.error_rate([0.9, 0.2, 0.6, 0.1], [1, 0, 0, 0])
    0.25
    """
    return float(np.mean(on_wrong_side(np.ravel(probability), np.ravel(labels))))


def classification_error(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of points whose likeliest class is not theirs.

    :param probabilities: Predicted probabilities of the classes [N, C].
    :param labels: The classes 0 to C − 1 of the points, [N, 1] or [N].
    """
    return float(np.mean(wrong_class(probabilities, labels)))


def expected_calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, num_bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017, eq. 3).

    :param probabilities: Predicted probabilities of the classes [N, C].
    :param labels: The classes 0 to C − 1 of the points, [N, 1] or [N].
    :param num_bins: The number of bins of equal width between 0 and 1.
    """
    confidence = np.max(probabilities, axis=1)
    right = ~wrong_class(probabilities, labels)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))


def mean_negative_log_density(log_density: ArrayLike) -> float:
    """Mean of ``-log p(y)``, in nats for a test point.

    :param log_density: The log density of every test point [N], in nats.

    >>> sgp.metrics.mean_negative_log_density([-1.0, -2.0])
    1.5
    """
    return -float(np.mean(np.asarray(log_density)))


def smse(mean: ArrayLike, targets: ArrayLike) -> float:
    """Standardised mean squared error: mean squared error over the variance of the targets.

    :param mean: Predictions [N] or [N, P].
    :param targets: The test targets, of the same shape.

    >>> sgp.metrics.smse([1.0, 1.0], [0.0, 2.0])  # no better than the mean
    1.0
    """
    variance = np.var(np.asarray(targets, float), axis=0).mean()
    return float(np.mean(squared_error(mean, targets)) / variance)
