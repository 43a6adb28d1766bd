"""Kernel, mean function and noise at one value of ε, as functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process import covariances as cov
from streaming_gp.gp.process.compiled import compiled, spec


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
        known = _stationary(kernel)
        mean = _constant_mean(local.gp.mean_function, local.gp.num_latent)
    return KnownProcess(
        known or _CompiledKernel(local, epsilon), mean or _compiled_mean(local, epsilon), noise
    )


# ---- in NumPy ----

SQRT3, SQRT5 = np.sqrt(3.0), np.sqrt(5.0)


def _squared_exponential(r2: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * r2)


def _matern32(r2: np.ndarray) -> np.ndarray:
    r = SQRT3 * np.sqrt(r2)
    return (1.0 + r) * np.exp(-r)


def _matern52(r2: np.ndarray) -> np.ndarray:
    r = SQRT5 * np.sqrt(r2)
    return (1.0 + r + (5.0 / 3.0) * r2) * np.exp(-r)


PROFILES = {
    gpflow.kernels.SquaredExponential: _squared_exponential,
    gpflow.kernels.Matern32: _matern32,
    gpflow.kernels.Matern52: _matern52,
}


class StationaryKernel:
    """``v κ(‖(x − x') / ℓ‖²)``.

    :param profile: κ, of squared scaled distances.
    :param variance: v.
    :param lengthscales: ℓ, one number or [D].
    """

    def __init__(
        self, profile: Callable[[np.ndarray], np.ndarray], variance: float, lengthscales: np.ndarray
    ) -> None:
        self._profile = profile
        self._variance = variance
        self._lengthscales = lengthscales

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """``X / ℓ``."""
        return X / self._lengthscales

    def of_differences(self, differences: np.ndarray) -> np.ndarray:
        """Covariances [N] of pairs whose scaled inputs differ by [N, D]."""
        return self._variance * self._profile(np.einsum("nd,nd->n", differences, differences))

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariances [N, N2] between inputs [N, D] and [N2, D]."""
        A, B = self.scaled(X), self.scaled(X2)
        return np.stack([self.of_differences(B - a) for a in A])

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variances [N] at inputs [N, D]."""
        return np.full(len(X), self._variance)


def _stationary(kernel: Any) -> StationaryKernel | None:
    """The kernel in NumPy, if it is a stationary one of all inputs that has a form there."""
    profile = PROFILES.get(type(kernel))
    if profile is None or kernel.active_dims != slice(None, None, None):
        return None
    return StationaryKernel(profile, float(_value(kernel.variance)), _value(kernel.lengthscales))


def _constant_mean(function: Any, num_latent: int) -> Callable[[np.ndarray], np.ndarray] | None:
    if type(function) is gpflow.functions.Zero:
        value = np.zeros(num_latent)
    elif type(function) is gpflow.functions.Constant:
        value = np.broadcast_to(_value(function.c).ravel(), [num_latent])
    else:
        return None
    return lambda X: np.zeros((len(X), num_latent)) + value


def _noise(likelihood: Any) -> float:
    for value, power in ((likelihood.variance, 1), (likelihood.scale, 2)):
        if isinstance(value, gpflow.Parameter) and _value(value).size == 1:
            return float(_value(value).item() ** power)
    raise InvalidDataError("one point at a time wants noise of one variance, got a function of x")


def _value(parameter: gpflow.Parameter) -> np.ndarray:
    return tf.convert_to_tensor(parameter).numpy()


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
        self._covariance = compiled(covariance, spec(parameters.size), inputs, inputs)
        self._variance = compiled(variance, spec(parameters.size), inputs)

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

    function = compiled(mean, spec(local.parameters.size), spec(None, local.input_dim))
    at = tf.constant(epsilon, tf.float64)
    return lambda X: function(at, X).numpy()
