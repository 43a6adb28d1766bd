"""Scores of predictions in plain NumPy: losses of single points, and numbers for whole sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_real_array, require_positive_integer

ROUNDING = 1e-6
"""By which a probability in float32 may be beyond 1."""

# ---- of single points ----


def squared_error(mean: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """``(mean − y)²`` of every point and output.

    :param mean: Predictions [N] or [N, P].
    :param targets: The test targets, of as many dimensions and a shape that broadcasts with it.
    :raises InvalidDataError: if they are no numbers, or of more dimensions or fewer.
    """
    first, second = _alike("mean", mean, "targets", targets)
    squares: np.ndarray = (first.astype(float) - second.astype(float)) ** 2
    return squares


def on_wrong_side(probability: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether each point is on the wrong side of ½, as one without a probability (NaN) always is.

    :param probability: Predicted probabilities of label 1, of any shape.
    :param labels: The labels 0 or 1, of the same shape.
    :raises InvalidDataError: if they are none, or of another shape.
    """
    p, y = _alike("probability", _as_probabilities(probability), "labels", labels)
    wrong: np.ndarray = np.where(_of_classes(y, 2) == 1, ~(p > 0.5), ~(p <= 0.5))
    return wrong


def wrong_class(probabilities: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Whether the likeliest class of each point is not its own, or there is none (NaN): [N].

    :param probabilities: Predicted probabilities of two classes or more [N, C].
    :param labels: The classes 0 to C − 1 of the points, [N, 1] or [N].
    :raises InvalidDataError: if they are none, or there is not one label for each point.
    """
    p = _as_probabilities(probabilities)
    if p.ndim != 2 or p.shape[1] < 2:
        raise InvalidDataError(
            f"wanted probabilities [N, C] of two classes or more, got {list(p.shape)}; error_rate "
            "takes those of label 1 alone"
        )
    likeliest, own = _paired(np.argmax(p, axis=1), np.ravel(labels))
    wrong: np.ndarray = (likeliest != _of_classes(own, p.shape[1])) | np.isnan(np.max(p, axis=1))
    return wrong


def _as_probabilities(values: ArrayLike) -> np.ndarray:
    """Numbers in [0, 1] up to rounding, or NaN; values of a function would be taken for them."""
    p = as_real_array("probabilities", values)
    if ((p < -ROUNDING) | (p > 1.0 + ROUNDING)).any():
        raise InvalidDataError(
            f"probabilities must lie in [0, 1], got {np.nanmin(p):.3g} to {np.nanmax(p):.3g}"
        )
    return p


def _of_classes(labels: np.ndarray, number: int) -> np.ndarray:
    """Labels as they are, if each is the number of a class: another one would be wrong for ever."""
    is_none = ~np.isin(labels, np.arange(number))
    if is_none.any():
        raise InvalidDataError(
            f"labels must be integers from 0 to {number - 1}, got {labels[is_none][0]}"
        )
    return labels


def _alike(name: str, one: ArrayLike, other_name: str, other: ArrayLike) -> Any:
    """Numbers of as many dimensions: NumPy would pair each of [N, 1] with each of [N]."""
    first, second = as_real_array(name, one), as_real_array(other_name, other)
    if first.ndim != second.ndim:
        raise InvalidDataError(
            f"wanted {name} and {other_name} of as many dimensions, got {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    return first, second


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
    right = ~wrong_class(probabilities, labels)
    confidence = np.max(probabilities, axis=1)
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
