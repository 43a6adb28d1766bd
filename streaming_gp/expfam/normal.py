"""Gaussian families, by ``precision_mean`` (Λm) and ``precision`` (Λ).

With these natural parameters the sufficient statistics are ``T(x) = (x, −½ x xᵀ)``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.base import ExponentialFamily
from streaming_gp.expfam.factor import Factor
from streaming_gp.linalg import logdet_from_cholesky

G = TypeVar("G", bound="Gaussian")
LOG_TWO_PI = float(np.log(2.0 * np.pi))


def standard_normal(shape: list[Any], seed: int, dtype: Any) -> tf.Tensor:
    """The same draws for the same seed."""
    return tf.random.stateless_normal(shape, seed=[seed, 0], dtype=dtype)


class Gaussian(ExponentialFamily):
    """What all Gaussians over vectors share; the base measure is Lebesgue's over (2π)^(D/2)."""

    precision_mean: Any
    precision: Any

    @classmethod
    @abc.abstractmethod
    def from_mean_scale(cls: type[G], mean: Any, scale: Any) -> G:
        """From ``mean`` [D] and a lower factor ``scale`` [D, D] of the covariance."""

    @classmethod
    @abc.abstractmethod
    def from_moments(cls: type[G], mean: Any, covariance: Any) -> G:
        """From ``mean`` [D] and what the family keeps of the covariance: [D, D], or its diagonal
        [D].
        """

    @abc.abstractmethod
    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [D] and what the family keeps of the covariance."""

    @abc.abstractmethod
    def variance_along(self, directions: Any) -> tf.Tensor:
        """``var[aᵀx]`` for the rows a of ``directions`` [N, D]: [N]."""

    def to_white(self, x: Any) -> Any:
        """``S⁻¹ (x − m)`` for points ``x`` [N, D], S the lower root of the covariance: [N, D]."""
        return (x - self.mean) / tf.sqrt(self.variance)

    def from_white(self, white: Any) -> Any:
        """``m + S z`` for the rows z of ``white`` [N, D]: [N, D]."""
        return self.mean + tf.sqrt(self.variance) * white

    @staticmethod
    @abc.abstractmethod
    def mean_product(a: Any, b: Any) -> Any:
        """What the family keeps of the mean of ``(a_n b_nᵀ + b_n a_nᵀ) / 2`` over rows [N, D]."""

    @staticmethod
    def raised(covariance: Any, floor: Any) -> Any:
        """A covariance that falls short of ``floor`` nowhere, by the least change where the floor
        is white.

        :param covariance: what the family keeps of it.
        :param floor: likewise, positive definite, or a positive number for all directions.
        """
        return tf.maximum(covariance, floor)

    @abc.abstractmethod
    def _times(self, precision: Any, vector: Any) -> Any:
        """Precision times a vector [D]."""

    @abc.abstractmethod
    def _symmetric(self, gradient: Any) -> Any:
        """A gradient by the covariance, among the family's covariances."""

    @abc.abstractmethod
    def _tilting(self, by_mean: Any, by_covariance: Any) -> tuple[Any, Any]:
        """Natural parameters that lead to the mean ``m + V g`` and the covariance
        ``V − V (g gᵀ − 2 D) V``, or what the family keeps of it, from gradients g and D.
        """

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

    def natural_gradient(self: G, function: Callable[[G], tf.Tensor]) -> Factor:
        """As in the base, by mean m and covariance V: ``(∂_m − 2 ∂_V m, −2 ∂_V)``.

        The mean parameter ``−½ (V + m mᵀ)`` loses the digits of a V much smaller than m².
        """
        _, by_mean, by_covariance = self._by_moments(function)
        precision = -2.0 * by_covariance
        return Factor(type(self), (by_mean + self._times(precision, self.mean), precision))

    def moment_match(self: G, log_normaliser: Callable[[G], tf.Tensor]) -> Factor:
        """The factor that gives this Gaussian p the moments of the tilted ``p(x) l(x) / Z``.

        With gradients g and D of ``log Z`` by mean m and covariance V these moments are ``m + V g``
        and ``V − V (g gᵀ − 2 D) V`` (Minka 2001, section 3.2). Its constant is such that the
        integral of p times the factor is Z. Where p is improper, or the tilted has no moments,
        every number in it that matters is NaN, the constant always.

        :param log_normaliser: ``log ∫ p(x) l(x) dx`` of a member p, differentiable: a scalar.
        """
        value, by_mean, by_covariance = self._by_moments(log_normaliser)
        factor = Factor(type(self), self._tilting(by_mean, by_covariance))
        tilted = type(self)(*(self.as_factor() * factor).natural)
        scale = value + self.log_partition() - tilted.log_partition()
        return Factor(type(self), factor.natural, scale)

    def _by_moments(self: G, function: Callable[[G], tf.Tensor]) -> tuple[Any, Any, Any]:
        """Of a member's function: its value, and its gradients by mean and covariance."""
        mean, covariance = self.moments()
        with tf.GradientTape() as tape:
            tape.watch((mean, covariance))
            value = function(type(self).from_moments(mean, covariance))
        by_mean, by_covariance = tape.gradient(
            value, (mean, covariance), unconnected_gradients="zero"
        )
        return value, by_mean, self._symmetric(by_covariance)

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        shape = [num_samples, tf.size(self.precision_mean)]
        return self.from_white(standard_normal(shape, seed, self.precision_mean.dtype))

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
        return cls.from_mean_variance(numbers[0], tf.exp(2.0 * numbers[1]))

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


@dataclass(frozen=True, eq=False)
class Normal(Gaussian):
    """A Gaussian with full covariance: ``precision_mean`` [D], ``precision`` [D, D]."""

    precision_mean: Any
    precision: Any
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
        return self.mean, self.covariance

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
        lower = tf.linalg.band_part(numbers[1:], -1, 0)
        diagonal = tf.exp(tf.linalg.diag_part(lower))
        return cls.from_mean_scale(numbers[0], tf.linalg.set_diag(lower, diagonal))

    @property
    def mean(self) -> tf.Tensor:
        if self._moments is not None:
            return self._moments[0]
        return tf.linalg.cholesky_solve(self._chol(), self.precision_mean[:, None])[:, 0]

    @property
    def covariance(self) -> tf.Tensor:
        """[D, D]."""
        if self._moments is not None:
            return self._moments[1]
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
