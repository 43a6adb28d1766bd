"""How good predictions are: error, density and calibration."""

from __future__ import annotations

import numpy as np
import scipy.stats

from experiments.benchmarks.methods import Prediction
from streaming_gp.metrics import error_rate, expected_calibration_error, smse

BINS = 10
LEAST_PROBABILITY = 1e-12


def scores(predicted: Prediction, Y: np.ndarray, classes: bool) -> dict[str, float]:
    """Error (SMSE, or rate), NLPD in nats for a point, and calibration (PIT, or ECE).

    Every regression is scored as the Gaussian with the moments that it predicts.

    :param Y: The test targets [T, 1].
    """
    y = Y[:, 0]
    if classes:
        p = np.clip(predicted.mean, LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)
        ece = expected_calibration_error(np.stack([1.0 - p, p], axis=1), y)
        nlpd = -np.mean(np.where(y > 0.5, np.log(p), np.log(1.0 - p)))
        return {"error": error_rate(p, y), "nlpd": float(nlpd), "calibration": ece}
    deviation = np.sqrt(predicted.variance)
    density = scipy.stats.norm.logpdf(y, predicted.mean, deviation)
    return {
        "error": smse(predicted.mean, y),
        "nlpd": -float(np.mean(density)),
        "calibration": pit_deviation(predicted, y),
    }


def pit_deviation(predicted: Prediction, y: np.ndarray) -> float:
    """Mean absolute deviation of the histogram of the probability integral transform from an even
    one, in units of an even bin: 0 is calibrated, 1.8 is the worst (Gneiting et al. 2007).
    """
    transformed = scipy.stats.norm.cdf(y, predicted.mean, np.sqrt(predicted.variance))
    shares = np.histogram(transformed, BINS, (0.0, 1.0))[0] / len(y)
    return float(np.mean(np.abs(BINS * shares - 1.0)))
