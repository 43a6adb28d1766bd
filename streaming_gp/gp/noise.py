"""Quasi-random normals: the same few points at every evaluation, chosen to integrate well."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm, qmc


def standard_noise(num_samples: int, size: int, seed: int, whiten: bool = False) -> np.ndarray:
    """Antithetic quasi-random standard normals [S, E] with unit second moments.

    Pairs ±ξ make odd moments exact (an odd S adds a zero); the scaling makes the variances exact
    and, with ``whiten`` and S/2 ≥ E, the covariance as well, so that a function quadratic in ξ is
    integrated exactly.

    :param num_samples: S.
    :param size: E.
    :param seed: of the scrambled Sobol sequence.
    """
    half = num_samples // 2
    if half == 0 or size == 0:
        return np.zeros((num_samples, size))
    uniform = qmc.Sobol(size, seed=seed).random_base2(int(np.ceil(np.log2(half))))[:half]
    xi = norm.ppf(np.clip(uniform, 1e-9, 1.0 - 1e-9))
    if whiten and half >= size:
        xi = np.linalg.solve(np.linalg.cholesky(2.0 * xi.T @ xi / num_samples), xi.T).T
    else:
        xi = xi / np.sqrt(2.0 * np.sum(xi**2, axis=0) / num_samples)
    return np.concatenate([xi, -xi, np.zeros((num_samples % 2, size))])
