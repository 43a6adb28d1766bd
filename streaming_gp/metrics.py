"""Scores of predictions in plain NumPy: losses of single points, and numbers for whole sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_real_array, require_positive_integer

# ---- of single points ----


def squared_error(mean: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """``(mean − y)²`` of every point and output.

    :param mean: Predictions [N] or [N, P].
    :param targets: The test targets, of a shape that broadcasts with it.
    """
    squares: np.ndarray = (np.asarray(mean, float) - np.asarray(targets, float)) ** 2
    return squares


def on_wrong_side(probability: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether each point is on the wrong side of ½, as one without a probability (NaN) always is.

    :param probability: Predicted probabilities of label 1, of any shape.
    :param labels: The labels 0 or 1, of the same shape.
    """
    p, is_one = np.asarray(probability), np.asarray(labels) > 0.5
    wrong: np.ndarray = np.where(is_one, ~(p > 0.5), ~(p <= 0.5))
    return wrong


def wrong_class(probabilities: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether the likeliest class of each point is not its own, or there is none (NaN): [N].

    :param probabilities: Predicted probabilities of the classes [N, C].
    :param labels: The classes 0 to C − 1 of the points, [N, 1] or [N].
    :raises InvalidDataError: if labels are no numbers, or not one for each point.
    """
    likeliest, own = _paired(np.argmax(probabilities, axis=1), np.ravel(labels))
    wrong: np.ndarray = (likeliest != own) | np.isnan(np.max(probabilities, axis=1))
    return wrong


def _paired(predictions: ArrayLike, truth: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of one shape, or NumPy would pair each with each, or a single one with all."""
    first, second = as_real_array("predictions", predictions), as_real_array("truth", truth)
    if first.shape != second.shape:
        raise InvalidDataError(
            f"wanted predictions and truth of one shape, got {first.shape} and {second.shape}"
        )
    return first, second


# ---- of whole sets ----


def error_rate(probability: ArrayLike, labels: ArrayLike) -> float:
    """Share of points on the wrong side of ½.

    :param probability: Predicted probabilities of label 1, [N, 1] or [N].
    :param labels: As many labels 0 or 1.
    :raises InvalidDataError: if labels are no numbers, or not as many.

    >>> sgp.metrics.error_rate([0.9, 0.2, 0.6, 0.1], [1, 0, 0, 0])
    0.25
    """
    return float(np.mean(on_wrong_side(*_paired(np.ravel(probability), np.ravel(labels)))))


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
    :returns: the mean gap; NaN where a point has no probabilities (NaN), and so no confidence.
    """
    require_positive_integer("num_bins", num_bins)
    confidence = np.max(probabilities, axis=1)
    right = ~wrong_class(probabilities, labels)
    if np.isnan(confidence).any():
        return float("nan")
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
    :raises InvalidDataError: if they are no numbers, or of another shape.

    >>> sgp.metrics.smse([1.0, 1.0], [0.0, 2.0])  # no better than the mean
    1.0
    """
    mean, targets = _paired(mean, targets)
    variance = np.var(np.asarray(targets, float), axis=0).mean()
    return float(np.mean(squared_error(mean, targets)) / variance)
