"""Gaussians with independent coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.gaussian import Gaussian
from streaming_gp.serialization import storable


@storable
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
    def from_moments(cls, mean: Any, covariance: Any) -> MeanFieldNormal:
        return cls.from_mean_variance(mean, covariance)

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self.mean), tf.convert_to_tensor(self.variance)

    def variance_along(self, directions: Any) -> tf.Tensor:
        return tf.linalg.matvec(tf.square(directions), self.variance)

    @staticmethod
    def mean_product(a: Any, b: Any) -> Any:
        return tf.reduce_mean(a * b, axis=0)

    def _times(self, precision: Any, vector: Any) -> Any:
        return precision * vector

    def _symmetric(self, gradient: Any) -> Any:
        return gradient

    def _tilting(self, by_mean: Any, by_covariance: Any) -> tuple[Any, Any]:
        mean, variance = self.moments()
        bend = tf.square(by_mean) - 2.0 * by_covariance
        shrinkage = 1.0 - bend * variance
        precision = bend / shrinkage
        return precision * mean + by_mean / shrinkage, precision

    def mean_parameters(self) -> tuple[tf.Tensor, ...]:
        mean, variance = self.moments()
        return mean, -0.5 * (variance + tf.square(mean))

    def unconstrained(self) -> tf.Tensor:
        """Means and log standard deviations [2, D]."""
        return tf.stack([self.mean, -0.5 * tf.math.log(self.precision)])

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> MeanFieldNormal:
        mean, log_sd = tf.unstack(numbers)
        return cls.from_mean_variance(mean, tf.exp(2.0 * log_sd))

    @staticmethod
    def mean_scale_of(numbers: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean, log_sd = tf.unstack(numbers)
        return mean, tf.linalg.diag(tf.exp(log_sd))

    @staticmethod
    def unconstrained_shape(dimension: int) -> tuple[int, ...]:
        return 2, dimension

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
        return 0.5 * tf.reduce_sum(quadratic) - self._half_logdet()

    def _half_logdet(self) -> tf.Tensor:
        return 0.5 * tf.reduce_sum(tf.math.log(self.precision))

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
