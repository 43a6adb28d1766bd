"""Means over runs, and their standard errors."""

from __future__ import annotations

import numpy as np
from common import Results


def mean_and_error(runs: list[Results], key: str) -> tuple[float, float]:
    """Mean over runs, and its standard error."""
    mean, error = mean_and_error_of(np.array([one[key] for one in runs]))
    return float(mean), float(error)


def mean_and_error_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis [S, ...], and its standard error: 0 of a single value."""
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(values[0])
    return values.mean(axis=0), spread / np.sqrt(len(values))
