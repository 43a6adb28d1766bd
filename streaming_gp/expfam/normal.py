"""Gaussian families, by ``precision_mean`` (Λm) and ``precision`` (Λ).

With these natural parameters the sufficient statistics are ``T(x) = (x, −½ x xᵀ)``.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.base import ExponentialFamily
from streaming_gp.linalg import logdet_from_cholesky

G = TypeVar("G", bound="Gaussian")
LOG_TWO_PI = float(np.log(2.0 * np.pi))


def _standard_normal(shape: list[Any], seed: int, dtype: Any) -> tf.Tensor:
    return tf.random.stateless_normal(shape, seed=[seed, 0], dtype=dtype)


class Gaussian(ExponentialFamily):
    """What all Gaussians over vectors share; the base measure is Lebesgue's over (2π)^(D/2)."""

    precision_mean: Any
    precision: Any

    @classmethod
    @abc.abstractmethod
    def from_mean_scale(cls: type[G], mean: Any, scale: Any) -> G:
        """From ``mean`` [D] and a lower factor ``scale`` [D, D] of the covariance."""

    @property
    @abc.abstractmethod
    def mean(self) -> Any:
        """[D]."""

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """Marginal variances [D]."""

    @property
    @abc.abstractmethod
    def scale(self) -> tf.Tensor:
        """Lower factor [D, D] of the covariance."""

    def log_base_measure(self, x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return tf.fill(tf.shape(x)[:1], tf.cast(self.expected_log_base_measure(), x.dtype))

    def expected_log_base_measure(self) -> tf.Tensor:
        dimension = tf.cast(tf.shape(self.precision_mean)[0], tf.as_dtype(self.precision.dtype))
        return -0.5 * LOG_TWO_PI * dimension


@dataclass(frozen=True, eq=False)
class MeanFieldNormal(Gaussian):
    """Independent Gaussians: ``precision_mean`` [D], ``precision`` [D]."""

    precision_mean: Any
    precision: Any

    @classmethod
    def from_mean_variance(cls, mean: Any, variance: Any) -> MeanFieldNormal:
        """From standard parameters ``mean`` [D] and ``variance`` [D]."""
        return cls(mean / variance, 1.0 / variance)

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> MeanFieldNormal:
        return cls.from_mean_variance(mean, tf.square(tf.linalg.diag_part(scale)))

    @property
    def mean(self) -> Any:
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Any:
        return 1.0 / self.precision

    @property
    def scale(self) -> tf.Tensor:
        return tf.linalg.diag(tf.sqrt(self.variance))

    def log_partition(self) -> tf.Tensor:
        quadratic = tf.square(self.precision_mean) / self.precision
        return 0.5 * tf.reduce_sum(quadratic - tf.math.log(self.precision))

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        return x, -0.5 * tf.square(x)

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> MeanFieldNormal:
        mean, second = mean_parameters
        return cls.from_mean_variance(mean, -2.0 * second - mean**2)

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        precision_mean, precision = (np.asarray(eta) for eta in natural)
        finite = np.isfinite(precision_mean).all() and np.isfinite(precision).all()
        return bool(finite and (precision > 0.0).all())

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        noise = _standard_normal([num_samples, tf.size(self.mean)], seed, self.precision.dtype)
        return self.mean + tf.sqrt(self.variance) * noise


@dataclass(frozen=True, eq=False)
class Normal(Gaussian):
    """A Gaussian with full covariance: ``precision_mean`` [D], ``precision`` [D, D]."""

    precision_mean: Any
    precision: Any

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> Normal:
        identity = tf.eye(tf.shape(scale)[0], dtype=scale.dtype)
        precision = tf.linalg.cholesky_solve(scale, identity)
        return cls(tf.linalg.matvec(precision, mean), precision)

    @classmethod
    def from_mean_covariance(cls, mean: Any, covariance: Any) -> Normal:
        """From standard parameters ``mean`` [D] and ``covariance`` [D, D]."""
        return cls.from_mean_scale(mean, tf.linalg.cholesky(covariance))

    @property
    def mean(self) -> tf.Tensor:
        return tf.linalg.cholesky_solve(self._chol(), self.precision_mean[:, None])[:, 0]

    @property
    def covariance(self) -> tf.Tensor:
        """[D, D]."""
        identity = tf.eye(tf.shape(self.precision)[0], dtype=self.precision.dtype)
        return tf.linalg.cholesky_solve(self._chol(), identity)

    @property
    def variance(self) -> tf.Tensor:
        return tf.linalg.diag_part(self.covariance)

    @property
    def scale(self) -> tf.Tensor:
        return tf.linalg.cholesky(self.covariance)

    def _chol(self) -> tf.Tensor:
        return tf.linalg.cholesky(self.precision)

    def log_partition(self) -> tf.Tensor:
        chol = self._chol()
        white = tf.linalg.triangular_solve(chol, self.precision_mean[:, None])
        return 0.5 * (tf.reduce_sum(tf.square(white)) - logdet_from_cholesky(chol))

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        return x, -0.5 * x[:, :, None] * x[:, None, :]

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> Normal:
        mean, second = mean_parameters
        covariance = -2.0 * second - mean[:, None] * mean[None, :]
        return cls.from_mean_covariance(mean, covariance)

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        precision_mean, precision = (np.asarray(eta) for eta in natural)
        if not (np.isfinite(precision_mean).all() and np.isfinite(precision).all()):
            return False
        try:
            np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            return False
        return True

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        shape = [num_samples, tf.shape(self.precision)[0]]
        noise = _standard_normal(shape, seed, self.precision.dtype)
        return self.mean + tf.linalg.matmul(noise, self.scale, transpose_b=True)
