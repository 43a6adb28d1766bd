"""GPflow's common likelihoods in NumPy: moments of y [N, P] from those of f [N, L]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from streaming_gp.runtime.description import Description, Parameters, of_name

PROBIT_JITTER = 1e-3
"""GPflow's probit link keeps this distance from 0 and 1."""

Moments = tuple[np.ndarray, np.ndarray]


def gaussian(parameters: Parameters, mean: np.ndarray, variance: np.ndarray) -> Moments:
    """Noise of one variance everywhere."""
    return mean, variance + parameters["variance"]


def bernoulli(parameters: Parameters, mean: np.ndarray, variance: np.ndarray) -> Moments:
    """``p(y = 1 | f) = Φ(f)``, but for the jitter."""
    inside = ndtr(mean / np.sqrt(1.0 + variance))
    p = inside * (1.0 - 2.0 * PROBIT_JITTER) + PROBIT_JITTER
    return p, p - np.square(p)


LIKELIHOODS: dict[str, Callable[[Parameters, np.ndarray, np.ndarray], Moments]] = {
    "Gaussian": gaussian,
    "Bernoulli": bernoulli,
}
"""The likelihoods that there is a NumPy form of, by the names of their classes in GPflow."""


def moments_of(
    description: Description, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance [N, P] of y under f ~ N(mean, variance), each [N, L].

    :raises InvalidDataError: if there is no NumPy form of the likelihood.
    """
    likelihood = of_name("likelihood", description.name, LIKELIHOODS)
    return likelihood(description.parameters, mean, variance)
