"""Gaussian families, by ``precision_mean`` (Λm) and ``precision`` (Λ).

With these natural parameters the sufficient statistics are ``T(x) = (x, −½ x xᵀ)``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from streaming_gp.expfam.family import ExponentialFamily, Factor
from streaming_gp.numerics.draws import standard_normal
from streaming_gp.numerics.linalg import LOG_TWO_PI

G = TypeVar("G", bound="Gaussian")


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

        :param covariance: What the family keeps of the covariance.
        :param floor: What the family keeps of the least covariance, positive definite, or a
            positive number for all directions.
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

    @abc.abstractmethod
    def _half_logdet(self) -> tf.Tensor:
        """Half the log determinant of the precision."""

    @property
    @abc.abstractmethod
    def mean(self) -> Any:
        """The mean [D], in NumPy if the member is held in NumPy arrays, else a tensor."""

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """Marginal variances [D], as the mean."""

    @property
    @abc.abstractmethod
    def scale(self) -> tf.Tensor:
        """Lower factor [D, D] of the covariance."""

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
        """A function's value here, and its gradients by mean and by what the family keeps of the
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
