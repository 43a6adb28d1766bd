"""How well each batch was predicted before it was learned, and how well calibrated that was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from streaming_gp.frames.files import Table
from streaming_gp.tables import TableGP

BINS = 10
INSIDE = 1.959964
"""Standard deviations of a 95 % interval."""


def score(table: TableGP, chunk: Table) -> dict[str, Any]:
    """The scores of a chunk, of which rows without target or inputs are left out.

    Of regression ``squared_error``, ``nlpd`` in nats and ``inside``, the share of rows within 95 %
    intervals; of labels ``error_rate`` and ``nlpd``. ``bins`` counts rows: of regression by the
    probability below the target, of labels by the probability of the label that is most probable,
    with how many of them it was right for.
    """
    Y = table.observations(chunk)
    mean, deviation = table.predict(chunk)
    rows = ~(np.isnan(Y).any(axis=1) | np.isnan(mean).any(axis=1))
    if not rows.any():
        return {}
    y, mean, deviation = Y[rows, 0], mean[rows], deviation[rows]
    if table.classes is not None:
        probabilities = table.predict_proba(chunk)[rows]
        place, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        of_label = np.maximum(probabilities[np.arange(len(y)), y.astype(int)], 1e-12)
        return {
            "error_rate": float(np.mean(place != y)),
            "nlpd": float(-np.mean(np.log(of_label))),
            "bins": [_counts(confidence), _counts(confidence[place == y])],
        }
    z = (y - mean[:, 0]) / deviation[:, 0]
    return {
        "squared_error": float(np.mean((y - mean[:, 0]) ** 2)),
        "variance": float(np.var(y)),
        "nlpd": float(np.mean(0.5 * z**2 + np.log(deviation[:, 0]) + 0.5 * np.log(2.0 * np.pi))),
        "inside": float(np.mean(np.abs(z) < INSIDE)),
        "bins": [_counts(ndtr(z))],
    }


def _counts(shares: np.ndarray) -> list[int]:
    return np.histogram(shares, BINS, (0.0, 1.0))[0].tolist()


def mean_of(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """The mean of a score over all rows of the batches that have it."""
    some = [one for one in records if name in one]
    rows = sum(one["rows"] for one in some)
    return sum(one["rows"] * one[name] for one in some) / rows if rows else None
