"""Gaussians with one variance for all coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.gaussian import Gaussian
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True, eq=False)
class IsotropicNormal(Gaussian):
    """``N(m, v I)``: ``precision_mean`` [D], ``precision`` [], statistics ``(x, −½ |x|²)``."""

    precision_mean: Any
    precision: Any

    @classmethod
    def from_mean_variance(cls, mean: Any, variance: Any) -> IsotropicNormal:
        """From ``mean`` [D] and ``variance`` []."""
        return cls(mean / variance, 1.0 / variance)

    @classmethod
    def from_moments(cls, mean: Any, covariance: Any) -> IsotropicNormal:
        return cls.from_mean_variance(mean, covariance)

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> IsotropicNormal:
        return cls.from_mean_variance(mean, tf.reduce_mean(tf.reduce_sum(tf.square(scale), axis=1)))

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [D] and v []."""
        return tf.convert_to_tensor(self.mean), tf.convert_to_tensor(1.0 / self.precision)

    @property
    def mean(self) -> Any:
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Any:
        return self.held(tf.ones_like(self.precision_mean) / self.precision)

    @property
    def scale(self) -> tf.Tensor:
        return tf.linalg.diag(tf.sqrt(self.variance))

    def variance_along(self, directions: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.square(directions), axis=1) / self.precision

    @staticmethod
    def mean_product(a: Any, b: Any) -> Any:
        """The mean over coordinates as well."""
        return tf.reduce_mean(a * b)

    def _times(self, precision: Any, vector: Any) -> Any:
        return precision * vector

    def _symmetric(self, gradient: Any) -> Any:
        """``∂/∂v`` is the trace of the gradient by the covariance: shared out evenly."""
        return gradient / self._dimension()

    def _tilting(self, by_mean: Any, by_covariance: Any) -> tuple[Any, Any]:
        """The mean of all coordinates' second moments is matched."""
        mean, variance = self.moments()
        bend = tf.reduce_mean(tf.square(by_mean)) - 2.0 * by_covariance
        shrinkage = 1.0 - bend * variance
        precision = bend / shrinkage
        return precision * mean + by_mean / shrinkage, precision

    def _trace(self, precision: Any, covariance: Any) -> tf.Tensor:
        return self._dimension() * precision * covariance

    def _half_logdet(self) -> tf.Tensor:
        return 0.5 * self._dimension() * tf.math.log(self.precision)

    def mean_parameters(self) -> tuple[tf.Tensor, ...]:
        mean, variance = self.moments()
        return mean, -0.5 * (self._dimension() * variance + tf.reduce_sum(tf.square(mean)))

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> IsotropicNormal:
        mean, second = mean_parameters
        dimension = tf.cast(tf.shape(mean)[0], tf.as_dtype(mean.dtype))
        variance = (-2.0 * second - tf.reduce_sum(tf.square(mean))) / dimension
        return cls.from_mean_variance(mean, variance)

    def unconstrained(self) -> tf.Tensor:
        """Mean, and the log standard deviation [D + 1]."""
        return tf.concat([self.mean, [-0.5 * tf.math.log(self.precision)]], 0)

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> IsotropicNormal:
        return cls.from_mean_variance(numbers[:-1], tf.exp(2.0 * numbers[-1]))

    @staticmethod
    def mean_scale_of(numbers: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean = tf.convert_to_tensor(numbers[:-1])
        return mean, tf.linalg.diag(tf.exp(numbers[-1]) * tf.ones_like(mean))

    @staticmethod
    def unconstrained_shape(dimension: int) -> tuple[int, ...]:
        return (dimension + 1,)

    def log_partition(self) -> tf.Tensor:
        quadratic = tf.reduce_sum(tf.square(self.precision_mean)) / self.precision
        return 0.5 * quadratic - self._half_logdet()

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        return x, -0.5 * tf.reduce_sum(tf.square(x), axis=1)

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        precision_mean, precision = (np.asarray(eta) for eta in natural)
        return bool(np.isfinite(precision_mean).all() and np.isfinite(precision) and precision > 0)
