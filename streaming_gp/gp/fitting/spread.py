"""How far inputs lie apart in the lengthscales of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel, Product, Stationary, Sum
from scipy.spatial.distance import cdist

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.prior import latent_kernels


def to_the_nearest(local: LocalModel, epsilon: np.ndarray, X: np.ndarray) -> float:
    """The distance of an input from the nearest other one: the median over inputs, of the kernel
    that has the largest.

    :param local: The model.
    :param epsilon: The hyperparameters [E].
    :param X: Inputs [N, D]; equal ones count once.
    :returns: lengthscales, and zero where no kernel has any to learn.
    """
    kernels = list(chain(*map(_with_lengthscales, latent_kernels(local.gp.kernel))))
    with local.parameters.substituted(tf.constant(epsilon)):
        scaled = [kernel.scale(kernel.slice(X, None)[0]).numpy() for kernel in kernels]
    return max(map(_median_to_the_nearest, scaled), default=0.0)


def _with_lengthscales(kernel: Kernel) -> Iterator[Stationary]:
    """What this is a sum or a product of, as far as that has lengthscales to learn."""
    if isinstance(kernel, (Sum, Product)):
        for part in kernel.kernels:
            yield from _with_lengthscales(part)
    elif isinstance(kernel, Stationary) and getattr(kernel.lengthscales, "trainable", False):
        yield kernel


def _median_to_the_nearest(points: np.ndarray) -> float:
    apart = np.unique(points, axis=0)
    if len(apart) < 2:
        return 0.0
    distances = cdist(apart, apart)
    np.fill_diagonal(distances, np.inf)
    return float(np.median(distances.min(axis=1)))
