"""Gaussians with a full covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.gaussian import Gaussian
from streaming_gp.numerics.linalg import logdet_from_cholesky
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True, eq=False)
class Normal(Gaussian):
    """A Gaussian with full covariance: ``precision_mean`` [D], ``precision`` [D, D]."""

    precision_mean: Any
    precision: Any
    symmetric: ClassVar[tuple[int, ...]] = (1,)
    _moments: ClassVar[tuple[tf.Tensor, tf.Tensor] | None] = None  # known to a member made of them

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> Normal:
        identity = tf.eye(tf.shape(scale)[0], dtype=scale.dtype)
        precision = tf.linalg.cholesky_solve(scale, identity)
        return cls(tf.linalg.matvec(precision, mean), precision)

    @classmethod
    def from_mean_covariance(cls, mean: Any, covariance: Any) -> Normal:
        """From standard parameters ``mean`` [D] and ``covariance`` [D, D]."""
        return cls.from_mean_scale(mean, tf.linalg.cholesky(covariance))

    @classmethod
    def from_moments(cls, mean: Any, covariance: Any) -> Normal:
        """It keeps the moments: a function of them alone is differentiated without a Cholesky."""
        q = cls.from_mean_covariance(mean, covariance)
        object.__setattr__(q, "_moments", (mean, covariance))
        return q

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self.mean), tf.convert_to_tensor(self.covariance)

    def variance_along(self, directions: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.matmul(directions, self.covariance) * directions, axis=1)

    def to_white(self, x: Any) -> Any:
        centred = tf.linalg.matrix_transpose(x - self.mean)
        return tf.linalg.matrix_transpose(tf.linalg.triangular_solve(self.scale, centred))

    def from_white(self, white: Any) -> Any:
        return self.mean + tf.linalg.matmul(white, self.scale, transpose_b=True)

    @staticmethod
    def mean_product(a: Any, b: Any) -> Any:
        product = tf.matmul(a, b, transpose_a=True)
        number = tf.cast(tf.shape(a)[0], product.dtype)
        return 0.5 * (product + tf.linalg.matrix_transpose(product)) / number

    @staticmethod
    def raised(covariance: Any, floor: Any) -> Any:
        if isinstance(floor, float):
            floor *= tf.eye(tf.shape(covariance)[0], dtype=covariance.dtype)
        root = tf.linalg.cholesky(floor)
        half = tf.linalg.matrix_transpose(tf.linalg.triangular_solve(root, covariance))
        values, vectors = tf.linalg.eigh(tf.linalg.triangular_solve(root, half))
        lift = tf.matmul(root, vectors) * tf.sqrt(tf.maximum(1.0 - values, 0.0))
        return covariance + tf.matmul(lift, lift, transpose_b=True)

    def _times(self, precision: Any, vector: Any) -> Any:
        return tf.linalg.matvec(precision, vector)

    def _symmetric(self, gradient: Any) -> Any:
        return 0.5 * (gradient + tf.linalg.matrix_transpose(gradient))

    def _tilting(self, by_mean: Any, by_covariance: Any) -> tuple[Any, Any]:
        """With ``B = g gᵀ − 2 D`` and a root S of V the precision changes by
        ``(I − B V)⁻¹ B = B + B S (I − Sᵀ B S)⁻¹ Sᵀ B``.
        """
        identity = tf.eye(tf.shape(self.precision)[0], dtype=by_covariance.dtype)
        root = tf.linalg.triangular_solve(self._chol(), identity, adjoint=True)
        bend = by_mean[:, None] * by_mean[None, :] - 2.0 * by_covariance
        inside = tf.matmul(root, tf.concat([bend, by_mean[:, None]], 1), transpose_a=True)
        chol = tf.linalg.cholesky(identity - tf.matmul(inside[:, :-1], root))
        half = tf.linalg.triangular_solve(chol, inside)
        precision = bend + tf.matmul(half[:, :-1], half[:, :-1], transpose_a=True)
        gradient = by_mean + tf.linalg.matvec(half[:, :-1], half[:, -1], transpose_a=True)
        return tf.linalg.matvec(precision, self.mean) + gradient, precision

    def mean_parameters(self) -> tuple[tf.Tensor, ...]:
        mean, covariance = self.moments()
        return mean, -0.5 * (covariance + mean[:, None] * mean[None, :])

    def unconstrained(self) -> tf.Tensor:
        """Mean [D], and the covariance's lower factor [D, D] with the log of its diagonal."""
        scale = self.scale
        log_diagonal = tf.math.log(tf.linalg.diag_part(scale))
        return tf.concat([self.mean[None], tf.linalg.set_diag(scale, log_diagonal)], 0)

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> Normal:
        return cls.from_mean_scale(*cls.mean_scale_of(numbers))

    @staticmethod
    def mean_scale_of(numbers: Any) -> tuple[tf.Tensor, tf.Tensor]:
        lower = tf.linalg.band_part(numbers[1:], -1, 0)
        diagonal = tf.exp(tf.linalg.diag_part(lower))
        return numbers[0], tf.linalg.set_diag(lower, diagonal)

    @staticmethod
    def unconstrained_shape(dimension: int) -> tuple[int, ...]:
        return dimension + 1, dimension

    @property
    def mean(self) -> Any:
        if self._moments is not None:
            return self._moments[0]
        return self.held(tf.linalg.cholesky_solve(self._chol(), self.precision_mean[:, None])[:, 0])

    @property
    def covariance(self) -> Any:
        """The covariance [D, D]."""
        if self._moments is not None:
            return self._moments[1]
        identity = tf.eye(tf.shape(self.precision)[0], dtype=self.precision.dtype)
        return self.held(tf.linalg.cholesky_solve(self._chol(), identity))

    @property
    def variance(self) -> Any:
        return self.held(tf.linalg.diag_part(self.covariance))

    @property
    def scale(self) -> tf.Tensor:
        return tf.linalg.cholesky(self.covariance)

    def _chol(self) -> tf.Tensor:
        return tf.linalg.cholesky(self.precision)

    def log_partition(self) -> tf.Tensor:
        chol = self._chol()
        white = tf.linalg.triangular_solve(chol, self.precision_mean[:, None])
        return 0.5 * (tf.reduce_sum(tf.square(white)) - logdet_from_cholesky(chol))

    def _half_logdet(self) -> tf.Tensor:
        return 0.5 * logdet_from_cholesky(self._chol())

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
