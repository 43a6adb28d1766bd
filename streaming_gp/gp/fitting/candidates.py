"""What is known about the places where pseudo-points may start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Candidates:
    """Where points may start: inputs of the batch, after earlier points that are taken over.

    :param inputs: The candidates themselves [N, D].
    :param variance: Cavity variances of f at the candidates [N].
    :param columns: Gives the cavity covariances [N, K] with the candidates of K indices.
    :param among: Gives the cavity covariances [K, K] of the candidates of K indices.
    :param site_weights: Gives the site precisions of the data, in inverse squared units of f [N];
        a function, as they cost an evaluation.
    :param num_present: The number of candidates, the first ones, that are earlier points.
    """

    inputs: np.ndarray
    variance: np.ndarray
    columns: Callable[[np.ndarray], np.ndarray]
    among: Callable[[np.ndarray], np.ndarray]
    site_weights: Callable[[], np.ndarray]
    num_present: int = 0
