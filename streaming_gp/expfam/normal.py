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
from scipy.linalg import cho_solve, solve_triangular

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam.family import ExponentialFamily, Factor, is_finite, is_positive_definite
from streaming_gp.numerics.linalg import LOG_TWO_PI, logdet_from_cholesky
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.serialization import storable

G = TypeVar("G", bound="Gaussian")


@dataclass(frozen=True, eq=False)
class Gaussian(ExponentialFamily):
    """A Gaussian over vectors; the base measure is Lebesgue's over (2π)^(D/2).

    A family has a part of the covariance: all of it [D, D], its diagonal [D], or one variance [].
    Methods here are for parts that multiply coordinate by coordinate.
    """

    precision_mean: Any
    precision: Any

    @classmethod
    @abc.abstractmethod
    def from_mean_scale(cls: type[G], mean: Any, scale: Any) -> G:
        """From ``mean`` [D] and a lower factor ``scale`` [D, D] of the covariance."""

    @classmethod
    def from_mean_variance(cls: type[G], mean: Any, variance: Any) -> G:
        """From ``mean`` [D] and the ``variance`` of each coordinate [D], or of all []."""
        return cls(mean / variance, 1.0 / variance)

    @classmethod
    def from_moments(cls: type[G], mean: Any, covariance: Any) -> G:
        """From ``mean`` [D] and the family's part of the covariance."""
        return cls.from_mean_variance(mean, covariance)

    @staticmethod
    @abc.abstractmethod
    def mean_scale_of(numbers: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [D] and lower factor [D, D] of the member that ``from_unconstrained`` makes.

        :param numbers: Real numbers of the shape :meth:`unconstrained_shape`.
        """

    @staticmethod
    @abc.abstractmethod
    def unconstrained_shape(dimension: int) -> tuple[int, ...]:
        """The shape of ``unconstrained`` for a member over ``dimension`` coordinates."""

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [D] and the family's part of the covariance."""
        return tf.convert_to_tensor(self.mean), tf.convert_to_tensor(1.0 / self.precision)

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
        """The family's part of the mean of ``(a_n b_nᵀ + b_n a_nᵀ) / 2`` over rows [N, D]."""

    @staticmethod
    def raised(covariance: Any, floor: Any) -> Any:
        """A covariance that falls short of ``floor`` nowhere, by the least change where the floor
        is white.

        :param covariance: The family's part of it.
        :param floor: The family's part of the least covariance, positive definite, or a positive
            number for all directions.
        """
        return tf.maximum(covariance, floor)

    def _times(self, precision: Any, vector: Any) -> Any:
        """Precision times a vector [D]."""
        return precision * vector

    def _symmetric(self, gradient: Any) -> Any:
        """A gradient by the covariance, among the family's covariances."""
        return gradient

    def _tilting(self, by_mean: Any, by_covariance: Any) -> tuple[Any, Any]:
        """Natural parameters that lead to the mean ``m + V g`` and the covariance
        ``V − V (g gᵀ − 2 D) V``, or the family's part of it, from gradients g and D.
        """
        mean, variance = self.moments()
        bend = self.mean_product(by_mean[None], by_mean[None]) - 2.0 * by_covariance
        shrinkage = 1.0 - bend * variance
        precision = bend / shrinkage
        return precision * mean + by_mean / shrinkage, precision

    @abc.abstractmethod
    def _half_logdet(self) -> tf.Tensor:
        """Half the log determinant of the precision."""

    @property
    def mean(self) -> Any:
        """The mean [D], in NumPy if the member is held in NumPy arrays, else a tensor."""
        return self.precision_mean / self.precision

    @property
    def variance(self) -> Any:
        """Marginal variances [D], as the mean."""
        return 1.0 / self.precision

    @property
    def scale(self) -> tf.Tensor:
        """Lower factor [D, D] of the covariance."""
        return tf.linalg.diag(tf.sqrt(self.variance))

    def log_partition(self) -> tf.Tensor:
        sum_of = np.sum if self.in_numpy else tf.reduce_sum
        return 0.5 * sum_of(self.precision_mean**2 / self.precision) - self._half_logdet()

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        return is_finite(*natural) and bool(np.all(np.asarray(natural[1]) > 0.0))

    def entropy(self) -> tf.Tensor:
        return 0.5 * (1.0 + LOG_TWO_PI) * self._dimension() - self._half_logdet()

    def kl_divergence(self: G, other: G) -> tf.Tensor:
        """As in the base, by moments: ``½ (dᵀ Λ' d + tr Λ' V − D + log |Λ| − log |Λ'|)`` with
        ``d = m − m'``.

        By natural parameters, a Gaussian much narrower than it is far from 0 loses all digits.
        """
        mean, covariance = self.moments()
        away = mean - other.mean
        distance = tf.reduce_sum(away * self._times(other.precision, away))
        widths = self._trace(other.precision, covariance) - self._dimension()
        return 0.5 * (distance + widths) + self._half_logdet() - other._half_logdet()

    def _trace(self, precision: Any, covariance: Any) -> tf.Tensor:
        """The trace of the product of a precision and a covariance."""
        return tf.reduce_sum(precision * covariance)

    def _dimension(self) -> tf.Tensor:
        return tf.cast(tf.shape(self.precision_mean)[0], tf.as_dtype(self.precision_mean.dtype))

    def natural_gradient(self: G, function: Callable[[G], tf.Tensor]) -> Factor:
        """As in the base, by mean m and covariance V: ``(∂_m − 2 ∂_V m, −2 ∂_V)``.

        The mean parameter ``−½ (V + m mᵀ)`` loses the digits of a V much smaller than m².
        """
        _, by_mean, by_covariance = self.by_moments(function)
        precision = -2.0 * by_covariance
        return Factor(type(self), (by_mean + self._times(precision, self.mean), precision))

    def moment_match(self: G, log_normaliser: Callable[[G], tf.Tensor]) -> Factor:
        """The factor that gives this Gaussian p the moments of the tilted ``p(x) l(x) / Z``.

        With gradients g and D of ``log Z`` by mean m and covariance V these moments are ``m + V g``
        and ``V − V (g gᵀ − 2 D) V`` (Minka 2001, section 3.2). Its constant is such that the
        integral of p times the factor is Z. Where p is improper, or the tilted has no moments,
        every number in it that matters is NaN, the constant always.

        :param log_normaliser: The function ``log ∫ p(x) l(x) dx`` of a member p, differentiable,
            whose value is a scalar.
        """
        value, by_mean, by_covariance = self.by_moments(log_normaliser)
        factor = Factor(type(self), self._tilting(by_mean, by_covariance))
        tilted = type(self)(*(self.as_factor() * factor).natural)
        scale = value + self.log_partition() - tilted.log_partition()
        return Factor(type(self), factor.natural, scale)

    def by_moments(self: G, function: Callable[[G], tf.Tensor]) -> tuple[Any, Any, Any]:
        """A function's value here, and its gradients by mean and by the family's part of the
        covariance, in the shapes of :meth:`from_moments`.

        :param function: A differentiable function of a member, whose value is a scalar.
        """
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
        return self.from_white(standard_normal(shape, [seed, 0], self.precision_mean.dtype))

    def log_base_measure(self, x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return tf.fill(tf.shape(x)[:1], tf.cast(self.expected_log_base_measure(), x.dtype))

    def expected_log_base_measure(self) -> tf.Tensor:
        return -0.5 * LOG_TWO_PI * self._dimension()


@storable
@dataclass(frozen=True, eq=False)
class MeanFieldNormal(Gaussian):
    """Independent Gaussians: ``precision_mean`` [D], ``precision`` [D]."""

    def variance_along(self, directions: Any) -> tf.Tensor:
        return tf.linalg.matvec(tf.square(directions), self.variance)

    @staticmethod
    def mean_product(a: Any, b: Any) -> Any:
        return tf.reduce_mean(a * b, axis=0)

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

    def _half_logdet(self) -> tf.Tensor:
        if self.in_numpy:
            return 0.5 * np.sum(np.log(self.precision))
        return 0.5 * tf.reduce_sum(tf.math.log(self.precision))

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        return x, -0.5 * tf.square(x)

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> MeanFieldNormal:
        mean, second = mean_parameters
        return cls.from_mean_variance(mean, -2.0 * second - mean**2)


@storable
@dataclass(frozen=True, eq=False)
class IsotropicNormal(Gaussian):
    """``N(m, v I)``: ``precision_mean`` [D], ``precision`` [], statistics ``(x, −½ |x|²)``."""

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> IsotropicNormal:
        return cls.from_mean_variance(mean, tf.reduce_mean(tf.reduce_sum(tf.square(scale), axis=1)))

    @property
    def variance(self) -> Any:
        return self.held(tf.ones_like(self.precision_mean) / self.precision)

    def variance_along(self, directions: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.square(directions), axis=1) / self.precision

    @staticmethod
    def mean_product(a: Any, b: Any) -> Any:
        """The mean over coordinates as well."""
        return tf.reduce_mean(a * b)

    def _symmetric(self, gradient: Any) -> Any:
        """``∂/∂v`` is the trace of the gradient by the covariance: shared out evenly."""
        return gradient / self._dimension()

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

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        return x, -0.5 * tf.reduce_sum(tf.square(x), axis=1)


def require_gaussian_family(family: object) -> None:
    """One of the Gaussian families, and not a member or name of one.

    :raises InvalidDataError: naming what came.
    """
    if not (isinstance(family, type) and issubclass(family, Gaussian)):
        raise InvalidDataError(f"family must be one of Gaussians, got {family!r:.100}")


@storable
@dataclass(frozen=True, eq=False)
class Normal(Gaussian):
    """A Gaussian with full covariance: ``precision_mean`` [D], ``precision`` [D, D]."""

    symmetric: ClassVar[tuple[int, ...]] = (1,)
    _moments: ClassVar[tuple[tf.Tensor, tf.Tensor] | None] = None  # of a member made of them

    @classmethod
    def from_mean_scale(cls, mean: Any, scale: Any) -> Normal:
        identity = tf.eye(tf.shape(scale)[0], dtype=scale.dtype)
        precision = tf.linalg.cholesky_solve(scale, identity)
        return cls(tf.linalg.matvec(precision, mean), precision)

    @classmethod
    def from_mean_variance(cls, mean: Any, variance: Any) -> Normal:
        return cls.from_moments(mean, tf.linalg.diag(variance))

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
        root = tf.linalg.triangular_solve(
            tf.linalg.cholesky(self.precision), identity, adjoint=True
        )
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
        if self.in_numpy:
            return cho_solve((self._chol(), True), self.precision_mean, check_finite=False)
        return tf.linalg.cholesky_solve(self._chol(), self.precision_mean[:, None])[:, 0]

    @property
    def covariance(self) -> Any:
        """The covariance [D, D]."""
        if self._moments is not None:
            return self._moments[1]
        if self.in_numpy:
            identity = np.eye(len(self.precision), dtype=self.precision.dtype)
            return cho_solve((self._chol(), True), identity, check_finite=False)
        identity = tf.eye(tf.shape(self.precision)[0], dtype=self.precision.dtype)
        return tf.linalg.cholesky_solve(self._chol(), identity)

    @property
    def variance(self) -> Any:
        if self.in_numpy:
            return np.diagonal(self.covariance).copy()
        return tf.linalg.diag_part(self.covariance)

    @property
    def scale(self) -> tf.Tensor:
        return tf.linalg.cholesky(self.covariance)

    def _chol(self) -> Any:
        """NaN where there is none, as TensorFlow's own."""
        if not self.in_numpy:
            return tf.linalg.cholesky(self.precision)
        try:
            return np.linalg.cholesky(self.precision)
        except np.linalg.LinAlgError:
            return np.full_like(self.precision, np.nan)

    def log_partition(self) -> tf.Tensor:
        chol = self._chol()
        if self.in_numpy:
            white = solve_triangular(chol, self.precision_mean, lower=True, check_finite=False)
            return 0.5 * np.sum(white**2) - np.sum(np.log(np.diagonal(chol)))
        white = tf.linalg.triangular_solve(chol, self.precision_mean[:, None])
        return 0.5 * (tf.reduce_sum(tf.square(white)) - logdet_from_cholesky(chol))

    def _half_logdet(self) -> tf.Tensor:
        return 0.5 * logdet_from_cholesky(tf.linalg.cholesky(self.precision))

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
        return is_finite(*natural) and is_positive_definite(np.asarray(natural[1]))
