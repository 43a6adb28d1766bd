"""Kernel, mean function and noise at one value of ε, as functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.export import constrained_value, describe_kernel
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import spec
from streaming_gp.runtime import kernel_of


class Kernel(Protocol):
    """A covariance function of NumPy arrays, at one value of ε."""

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariances [N, N2] between inputs [N, D] and [N2, D]."""
        ...

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variances [N] at inputs [N, D]."""
        ...


class KnownProcess(NamedTuple):
    """The prior of f, and the noise, at one value of ε.

    :param kernel: The covariance function.
    :param mean: The mean [N, L] at inputs [N, D].
    :param noise: The variance of the Gaussian noise, in squared units of f.
    """

    kernel: Kernel
    mean: Callable[[np.ndarray], np.ndarray]
    noise: float

    def among(self, Z: np.ndarray) -> np.ndarray:
        """Covariances [R, R] of f at points [R, D]; white noise is on the diagonal alone."""
        K = self.kernel.covariance(Z, Z)
        np.fill_diagonal(K, self.kernel.variance(Z))
        return K

    def variance_at(self, x: np.ndarray) -> float:
        """Prior variance of f(x), for x [D]."""
        return float(self.kernel.variance(x[None])[0])

    def mean_at(self, x: np.ndarray) -> np.ndarray:
        """Prior mean [L] of f(x), for x [D]."""
        return self.mean(x[None])[0]


def process_at(local: LocalModel, epsilon: np.ndarray) -> KnownProcess:
    """Prior and noise of a model at ε [E].

    :raises InvalidDataError: if the noise depends on the input.
    """
    with local.parameters.substituted(tf.constant(epsilon, tf.float64)):
        noise = _noise(local.likelihood)
        (kernel,) = cov.latent_kernels(local.gp.kernel)
        known = _in_numpy(kernel, local.input_dim)
        mean = _constant_mean(local.gp.mean_function, local.gp.num_latent)
    return KnownProcess(
        known or _CompiledKernel(local, epsilon), mean or _compiled_mean(local, epsilon), noise
    )


# ---- in NumPy ----


def _in_numpy(kernel: Any, input_dim: int) -> Kernel | None:
    """The kernel in NumPy, if it has a form there."""
    try:
        return kernel_of(describe_kernel(kernel, input_dim))
    except InvalidDataError:
        return None


def _constant_mean(function: Any, num_latent: int) -> Callable[[np.ndarray], np.ndarray] | None:
    if type(function) is gpflow.functions.Zero:
        value = np.zeros(num_latent)
    elif type(function) is gpflow.functions.Constant:
        value = np.broadcast_to(constrained_value(function.c).ravel(), [num_latent])
    else:
        return None
    return lambda X: np.zeros((len(X), num_latent)) + value


def _noise(likelihood: Any) -> float:
    for value, power in ((likelihood.variance, 1), (likelihood.scale, 2)):
        if isinstance(value, gpflow.Parameter) and constrained_value(value).size == 1:
            return float(constrained_value(value).item() ** power)
    raise InvalidDataError("one point at a time wants noise of one variance, got a function of x")


# ---- through TensorFlow ----


class _CompiledKernel:
    """Any GPflow kernel, at ε [E]."""

    def __init__(self, local: LocalModel, epsilon: np.ndarray) -> None:
        inputs = spec(None, local.input_dim)
        parameters, kernel = local.parameters, local.gp.kernel

        def covariance(e: tf.Tensor, X: tf.Tensor, X2: tf.Tensor) -> tf.Tensor:
            with parameters.substituted(e):
                return cov.covariance(kernel, X, X2)[0]

        def variance(e: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
            with parameters.substituted(e):
                return cov.variance(kernel, X)[0]

        self._epsilon = tf.constant(epsilon, tf.float64)
        at, graphs = spec(parameters.size), local.graphs
        self._covariance = graphs.compiled(covariance, at, inputs, inputs)
        self._variance = graphs.compiled(variance, at, inputs)

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariances [N, N2] between inputs [N, D] and [N2, D]."""
        return self._covariance(self._epsilon, X, X2).numpy()

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variances [N] at inputs [N, D]."""
        return self._variance(self._epsilon, X).numpy()


def _compiled_mean(local: LocalModel, epsilon: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def mean(e: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        with local.parameters.substituted(e):
            return local.gp.prior_mean(X)

    arguments = spec(local.parameters.size), spec(None, local.input_dim)
    function = local.graphs.compiled(mean, *arguments)
    at = tf.constant(epsilon, tf.float64)
    return lambda X: function(at, X).numpy()
