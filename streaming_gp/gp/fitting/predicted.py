"""How well a process predicts a batch that it does not know."""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.solver import Batch
from streaming_gp.gp.process.process import Process
from streaming_gp.linalg import LOG_TWO_PI

MOST = 300
"""So many data of a batch are looked at."""
CERTAINTY = 2.0
"""Standard errors by which one process must be ahead of another."""


def is_better(fitter: Fitter, one: Process, other: Process, batch: Batch) -> bool:
    """Whether one process predicts a batch better than another, beyond chance."""
    gain = log_densities(fitter, one, batch) - log_densities(fitter, other, batch)
    return bool(np.mean(gain) > CERTAINTY * np.std(gain) / np.sqrt(len(gain)))


def log_densities(fitter: Fitter, process: Process, batch: Batch) -> np.ndarray:
    """Those of a batch's targets, each alone, at the mean of q(ε), in nats; noise is Gaussian."""
    X, Y = batch.data
    some = np.random.default_rng(batch.seed).permutation(len(X))[:MOST]
    epsilon = fitter.location(process)
    mean, variance = fitter.factorisations.at(epsilon, process).marginals(X[some])
    groups = len(some), len(mean), -1
    noise = 1.0 / fitter.local.noise_precision(epsilon, X[some])
    Y, noise = (np.reshape(one, groups).swapaxes(0, 1) for one in (Y[some], noise))
    total = variance[:, :, None] + noise
    densities = LOG_TWO_PI + np.log(total) + np.square(Y - mean) / total
    return -0.5 * np.ravel(densities)
