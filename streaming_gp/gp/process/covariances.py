"""Covariance functions of independent latent functions, from any GPflow kernel.

Latent functions come in G groups of C columns: functions that share kernel and precision form one
group of C = L columns; otherwise there are G = L groups of one column.
"""

from __future__ import annotations

from functools import reduce

import gpflow
import tensorflow as tf
from gpflow.kernels import (
    IsotropicStationary,
    Kernel,
    MultioutputKernel,
    Product,
    SeparateIndependent,
    SharedIndependent,
    Static,
    Stationary,
    Sum,
)

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.process.distances import of_squared_distances
from streaming_gp.numerics.shapes import check_shapes


def latent_kernels(kernel: Kernel) -> list[Kernel]:
    """One kernel if all latent functions share it, else one for each.

    :raises InvalidDataError: for other kernels of several outputs.
    """
    if not isinstance(kernel, MultioutputKernel):
        return [kernel]
    if isinstance(kernel, SharedIndependent):
        return [kernel.kernel]
    if isinstance(kernel, SeparateIndependent):
        return list(kernel.kernels)
    raise InvalidDataError(
        "wanted a kernel of one output, SharedIndependent, SeparateIndependent or "
        f"LinearCoregionalization, got {type(kernel).__name__}"
    )


@check_shapes("X: [N, D]", "X2: [N2, D]", "return: [K, N, N2] if X2 is not None")
def covariance(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
    """Prior covariance [1 or L, N, N2] between inputs [N, D] and [N2, D]."""
    return tf.stack([_of_one(k, X, X2) for k in latent_kernels(kernel)])


def _of_one(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None) -> tf.Tensor:
    """The covariance [N, N2] of one kernel.

    Distances lose digits where inputs lie far from zero in lengthscales: so they are moved there,
    which a column that never changes needs most.
    """
    if not depends_on_differences(kernel):
        return kernel(X, X2)
    origin = tf.stop_gradient(tf.reduce_sum(X[:1], axis=0))
    return _near_zero(kernel, X - origin, None if X2 is None else X2 - origin)


def _near_zero(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None) -> tf.Tensor:
    """GPflow's covariance, but for the distances of isotropic kernels."""
    if isinstance(kernel, Sum):
        return tf.add_n([_near_zero(part, X, X2) for part in kernel.kernels])
    if isinstance(kernel, Product):
        return reduce(tf.multiply, (_near_zero(part, X, X2) for part in kernel.kernels))
    if not _is_of_distances(kernel):
        return kernel(X, X2)
    X, X2 = (kernel.scale(x) for x in kernel.slice(X, X if X2 is None else X2))
    return of_squared_distances(kernel.K_r2, X, X2)


def _is_of_distances(kernel: Kernel) -> bool:
    """Whether a kernel is a function of GPflow's own distance, and has not another of its own."""
    return isinstance(kernel, IsotropicStationary) and all(
        getattr(type(kernel), name) is getattr(IsotropicStationary, name)
        for name in ("__call__", "K", "scaled_squared_euclid_dist")
    )


def depends_on_differences(kernel: Kernel) -> bool:
    """Whether covariances stay the same when all inputs move by as much."""
    if isinstance(kernel, (Sum, Product)):
        return all(depends_on_differences(part) for part in kernel.kernels)
    return isinstance(kernel, (Stationary, Static))


@check_shapes("X: [N, D]", "return: [K, N]")
def variance(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Prior variance [1 or L, N] at inputs [N, D]."""
    return tf.stack([k(X, full_cov=False) for k in latent_kernels(kernel)])


@check_shapes("X: [N, D]", "return: [N, L]")
def prior_mean(
    mean_function: gpflow.functions.Function, X: tf.Tensor, num_latent: int
) -> tf.Tensor:
    """Prior mean [N, L] at inputs [N, D]."""
    shape = [tf.shape(X)[0], num_latent]
    if _is_zero(mean_function) and mean_function.output_dim in (1, num_latent):
        return tf.zeros(shape, X.dtype)  # what most models have, as a smaller graph
    return tf.broadcast_to(mean_function(X), shape)


def _is_zero(mean_function: gpflow.functions.Function) -> bool:
    """Whether it is GPflow's own, and not another that is made of it."""
    return type(mean_function) is gpflow.functions.Zero


@check_shapes("values: [N, L]", "return: [G, N, C]")
def to_groups(values: tf.Tensor, num_groups: int) -> tf.Tensor:
    """[N, L] → [G, N, C]."""
    if num_groups == 1:
        return tf.expand_dims(values, 0)
    return tf.expand_dims(tf.transpose(values), 2)


@check_shapes("values: [G, N, C]", "return: [N, L]")
def from_groups(values: tf.Tensor, num_latent: int) -> tf.Tensor:
    """[G, N, C] → [N, L], with L = G C."""
    return tf.reshape(tf.transpose(values, [1, 0, 2]), [tf.shape(values)[1], num_latent])


@check_shapes("values: [K, N]", "return: [N, L]")
def spread_over_latents(values: tf.Tensor, num_latent: int) -> tf.Tensor:
    """[1 or L, N] shared by group → [N, L]."""
    return tf.broadcast_to(tf.transpose(values), [tf.shape(values)[1], num_latent])
