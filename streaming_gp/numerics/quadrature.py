"""Expectations under standard normals: random numbers, points and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
import tensorflow as tf
from scipy.stats import norm, qmc


def standard_normal(shape: Any, seed: Any, dtype: Any) -> tf.Tensor:
    """Independent draws from N(0, 1), the same for the same seed.

    The generator is named, as the one that XLA takes by itself is many times slower.

    :param shape: The shape of the draws.
    :param seed: Two integers [2].
    :param dtype: A floating-point type.
    """
    return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")


NODES_PER_AXIS = {1: 100, 2: 40}
LOG2_SOBOL_NODES = 12


def standard_normals(num_samples: int, size: int, seed: int, whiten: bool = False) -> np.ndarray:
    """Antithetic quasi-random standard normals [S, E] with unit second moments.

    Pairs ±ξ make odd moments exact (an odd S adds a zero); the scaling makes the variances exact
    and, with ``whiten`` and S/2 ≥ E, the covariance as well, so that a function quadratic in ξ is
    integrated exactly.

    :param num_samples: The number of points S.
    :param size: The number of coordinates E.
    :param seed: The seed of the scrambled Sobol sequence.
    :param whiten: Whether the covariance is to be exact too.
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


def gauss_hermite(num_nodes: int, dimension: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The product of Gauss–Hermite rules, exact for polynomials of degree ``2 K − 1`` on each axis.

    :param num_nodes: The number of nodes K on each axis.
    :param dimension: The number of axes D.
    :returns: nodes [K^D, D], and weights [K^D] that sum to one.
    """
    nodes, weights = scipy.special.roots_hermitenorm(num_nodes)
    axes = np.meshgrid(*[nodes] * dimension, indexing="ij")
    products = np.meshgrid(*[weights / weights.sum()] * dimension, indexing="ij")
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    return grid, np.prod([part.ravel() for part in products], axis=0)


def whitened_sobol(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """A fixed Sobol sequence, whitened: mean and covariance are exact, and with them Gaussian
    expectations of quadratic functions.

    :returns: nodes [4096, D] and equal weights [4096].
    """
    uniform = qmc.Sobol(dimension, seed=0).random_base2(LOG2_SOBOL_NODES)
    nodes = norm.ppf(uniform)
    nodes -= nodes.mean(axis=0)
    chol = np.linalg.cholesky(nodes.T @ nodes / len(nodes))
    return np.linalg.solve(chol, nodes.T).T, np.full(len(nodes), 1.0 / len(nodes))


def normal_nodes(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [S, D] and weights [S] for expectations under N(0, I): Gauss–Hermite in one and two
    dimensions, a fixed Sobol sequence in more.
    """
    if dimension in NODES_PER_AXIS:
        return gauss_hermite(NODES_PER_AXIS[dimension], dimension)
    return whitened_sobol(dimension)
