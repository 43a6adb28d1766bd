"""Conjugate families of mixtures: Dirichlet weights, normal-Wishart components, their product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.special
import tensorflow as tf

from streaming_gp.expfam.family import ExponentialFamily, is_finite, is_positive_definite
from streaming_gp.numerics.linalg import logdet_from_cholesky
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.serialization import storable

LOG_TWO, LOG_PI = float(np.log(2.0)), float(np.log(np.pi))
_NEWTON_STEPS = 50


@storable
@dataclass(frozen=True, eq=False)
class Dirichlet(ExponentialFamily):
    """``Dir(π; α)`` by ``concentration`` α [K]: statistics ``log π``, base measure ``Π 1/π_k``."""

    concentration: Any

    def log_partition(self) -> tf.Tensor:
        total = tf.reduce_sum(self.concentration)
        return tf.reduce_sum(tf.math.lgamma(self.concentration)) - tf.math.lgamma(total)

    def mean_parameters(self) -> tuple[tf.Tensor, ...]:
        total = tf.reduce_sum(self.concentration)
        return (tf.math.digamma(self.concentration) - tf.math.digamma(total),)

    def log_base_measure(self, x: Any) -> tf.Tensor:
        return -tf.reduce_sum(tf.math.log(x), axis=1)

    def expected_log_base_measure(self) -> tf.Tensor:
        return -tf.reduce_sum(self.mean_parameters()[0])

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        return (tf.math.log(x),)

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> Dirichlet:
        """By Newton's method (Minka 2000, "Estimating a Dirichlet distribution")."""
        (wanted,) = (np.asarray(mean) for mean in mean_parameters)
        alpha = np.ones_like(wanted)
        for _ in range(_NEWTON_STEPS):
            gradient = scipy.special.digamma(alpha.sum()) - scipy.special.digamma(alpha) + wanted
            slope = -scipy.special.polygamma(1, alpha)
            common = scipy.special.polygamma(1, alpha.sum())
            shift = np.sum(gradient / slope) / (1.0 / common + np.sum(1.0 / slope))
            step = (gradient - shift) / slope
            alpha = np.maximum(alpha - step, 0.1 * alpha)
        return cls(alpha)

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        return is_finite(*natural) and bool(np.all(np.asarray(natural[0]) > 0.0))

    def unconstrained(self) -> tf.Tensor:
        """log α [K]."""
        return tf.math.log(self.concentration)

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> Dirichlet:
        return cls(tf.exp(numbers))

    @property
    def mean(self) -> Any:
        """Expected weights [K]."""
        return self.held(self.concentration / tf.reduce_sum(self.concentration))

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        alpha = tf.convert_to_tensor(self.concentration)
        shape = [num_samples, tf.size(alpha)]
        gamma = tf.random.stateless_gamma(shape, [seed, 0], alpha, dtype=alpha.dtype)
        return gamma / tf.reduce_sum(gamma, axis=1, keepdims=True)


@storable
@dataclass(frozen=True, eq=False)
class NormalWishart(ExponentialFamily):
    """K independent ``N(μ; m, (β Λ)⁻¹) Wishart(Λ; W, ν)`` over μ [D] and Λ [D, D].

    The natural parameters go with the statistics ``(½ log|Λ|, Λμ, −½ μᵀΛμ, −½ Λ)``, so that a data
    point y adds ``(1, y, 1, y yᵀ)`` to them. Points are arrays [N, K, D + D²]: μ, then Λ, row by
    row.

    :param shape: The degrees of freedom beyond the dimension, ν − D [K].
    :param weighted_mean: The mean times its strength, β m [K, D].
    :param strength: The number of data points β that the mean stands for [K].
    :param scatter: The scatter ``W⁻¹ + β m mᵀ`` [K, D, D].
    """

    symmetric: ClassVar[tuple[int, ...]] = (3,)
    shape: Any
    weighted_mean: Any
    strength: Any
    scatter: Any

    @classmethod
    def from_standard(cls, mean: Any, strength: Any, dof: Any, scale_inverse: Any) -> NormalWishart:
        """From m [K, D], β [K], ν [K] and W⁻¹ [K, D, D]."""
        weighted = strength[:, None] * mean
        scatter = scale_inverse + weighted[:, :, None] * mean[:, None, :]
        dimension = tf.cast(tf.shape(mean)[1], tf.as_dtype(mean.dtype))
        return cls(dof - dimension, weighted, strength, scatter)

    # ---- standard parameters ----

    @property
    def mean(self) -> Any:
        """m [K, D]."""
        return self.weighted_mean / self.strength[:, None]

    @property
    def dof(self) -> Any:
        """ν [K]."""
        return self.shape + self._dimension()

    @property
    def scale_inverse(self) -> Any:
        """W⁻¹ [K, D, D]."""
        return self.scatter - self.weighted_mean[:, :, None] * self.mean[:, None, :]

    def _dimension(self) -> tf.Tensor:
        return tf.cast(tf.shape(self.weighted_mean)[1], tf.as_dtype(self.weighted_mean.dtype))

    # ---- primitives ----

    def log_partition(self) -> tf.Tensor:
        dimension, dof = self._dimension(), self.dof
        logdet = logdet_from_cholesky(tf.linalg.cholesky(self.scale_inverse))
        wishart = 0.5 * dof * (dimension * LOG_TWO - logdet) + self._log_multigamma(0.5 * dof)
        return tf.reduce_sum(wishart - 0.5 * dimension * tf.math.log(self.strength))

    def _log_multigamma(self, a: tf.Tensor) -> tf.Tensor:
        """log Γ_D(a) [K]."""
        dimension = self._dimension()
        constant = 0.25 * dimension * (dimension - 1.0) * LOG_PI
        return constant + tf.reduce_sum(tf.math.lgamma(a[:, None] - self._halves()), axis=1)

    def _halves(self) -> tf.Tensor:
        """0, ½, 1, ... [D]."""
        return 0.5 * tf.range(self._dimension(), dtype=tf.as_dtype(self.weighted_mean.dtype))

    def expected_log_determinant(self) -> tf.Tensor:
        """``E[log|Λ|]`` [K] (Bishop 2006, eq. B.81)."""
        logdet = logdet_from_cholesky(tf.linalg.cholesky(self.scale_inverse))
        digammas = tf.math.digamma(0.5 * self.dof[:, None] - self._halves())
        return tf.reduce_sum(digammas, axis=1) + self._dimension() * LOG_TWO - logdet

    def expected_squared_distance(self, y: Any) -> tf.Tensor:
        """``E[(y − μ)ᵀ Λ (y − μ)]`` for y [N, D]: [N, K] (Bishop 2006, eq. 10.64)."""
        return self.dof * self.scaled_distance(y) + self._dimension() / self.strength

    def scaled_distance(self, y: Any) -> tf.Tensor:
        """``(y − m)ᵀ W (y − m)`` for y [N, D]: [N, K]."""
        chol = tf.linalg.cholesky(self.scale_inverse)
        difference = tf.transpose(y[:, None, :] - self.mean, [1, 2, 0])
        white = tf.linalg.triangular_solve(chol, difference)
        return tf.transpose(tf.reduce_sum(tf.square(white), axis=1))

    def expected_log_base_measure(self) -> tf.Tensor:
        components = tf.cast(tf.shape(self.weighted_mean)[0], tf.as_dtype(self.strength.dtype))
        return -0.5 * components * self._dimension() * (LOG_TWO + LOG_PI)

    def log_base_measure(self, x: Any) -> tf.Tensor:
        return tf.fill(tf.shape(x)[:1], self.expected_log_base_measure())

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        x = tf.convert_to_tensor(x)
        dimension = round(np.sqrt(x.shape[2] + 0.25) - 0.5)
        mu, rows = x[:, :, :dimension], x[:, :, dimension:]
        precision = tf.reshape(rows, tf.concat([tf.shape(x)[:2], [dimension, dimension]], 0))
        precision_mu = tf.linalg.matvec(precision, mu)
        logdet = logdet_from_cholesky(tf.linalg.cholesky(precision))
        quadratic = tf.reduce_sum(mu * precision_mu, axis=-1)
        return 0.5 * logdet, precision_mu, -0.5 * quadratic, -0.5 * precision

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> NormalWishart:
        """``E[Λ] = ν W`` leaves one equation for ν: by Newton's method on its logarithm."""
        half_logdet, precision_mean, half_quadratic, half_precision = (
            np.asarray(mean) for mean in mean_parameters
        )
        precision = -2.0 * half_precision
        dimension = precision.shape[-1]
        mean = np.linalg.solve(precision, precision_mean[:, :, None])[:, :, 0]
        strength = dimension / (-2.0 * half_quadratic - np.sum(mean * precision_mean, axis=1))
        gap = 2.0 * half_logdet - np.linalg.slogdet(precision)[1]
        dof = _degrees_of_freedom(gap, dimension)
        identity = np.broadcast_to(np.eye(dimension), precision.shape)
        return cls.from_standard(
            mean, strength, dof, dof[:, None, None] * np.linalg.solve(precision, identity)
        ).as_arrays()

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        q = NormalWishart(*map(np.asarray, natural))
        if not (is_finite(*natural) and (q.shape > -1.0).all() and (q.strength > 0.0).all()):
            return False
        return is_positive_definite(q.scale_inverse)

    def unconstrained(self) -> tf.Tensor:
        """[K, D + 3, D]: rows of m, of the factor of W⁻¹ with the log of its diagonal, and of
        ``log β`` and ``log(ν − D + 1)``, each D times.
        """
        lower = tf.linalg.cholesky(self.scale_inverse)
        lower = tf.linalg.set_diag(lower, tf.math.log(tf.linalg.diag_part(lower)))
        scalars = tf.math.log(tf.stack([self.strength, self.shape + 1.0], axis=1))
        rows = scalars[:, :, None] * tf.ones_like(self.mean)[:, None, :]
        return tf.concat([self.mean[:, None, :], lower, rows], axis=1)

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> NormalWishart:
        numbers = tf.convert_to_tensor(numbers)
        dimension = tf.shape(numbers)[2]
        lower = tf.linalg.band_part(numbers[:, 1 : dimension + 1], -1, 0)
        lower = tf.linalg.set_diag(lower, tf.exp(tf.linalg.diag_part(lower)))
        scalars = tf.exp(tf.reduce_mean(numbers[:, dimension + 1 :], axis=2))
        dof = scalars[:, 1] - 1.0 + tf.cast(dimension, numbers.dtype)
        scale_inverse = tf.matmul(lower, lower, transpose_b=True)
        return cls.from_standard(numbers[:, 0], scalars[:, 0], dof, scale_inverse)

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        """Λ by its Bartlett decomposition, then μ given Λ."""
        mean = tf.convert_to_tensor(self.mean)
        identity = tf.eye(tf.shape(mean)[1], batch_shape=tf.shape(mean)[:1], dtype=mean.dtype)
        chol = tf.linalg.cholesky(self.scale_inverse)
        scale = tf.linalg.cholesky(tf.linalg.cholesky_solve(chol, identity))
        root = tf.matmul(scale, self._bartlett(num_samples, seed))
        noise = standard_normal(tf.shape(root)[:-1], [seed, 2], mean.dtype)
        away = tf.linalg.triangular_solve(root, noise[..., None], adjoint=True)[..., 0]
        mu = mean + away / tf.sqrt(self.strength)[:, None]
        precision = tf.matmul(root, root, transpose_b=True)
        shape = tf.concat([tf.shape(mu)[:2], [-1]], 0)
        return tf.concat([mu, tf.reshape(precision, shape)], axis=2)

    def _bartlett(self, num_samples: int, seed: int) -> tf.Tensor:
        """Lower A with ``A Aᵀ`` a draw of ``Wishart(I, ν)``: [S, K, D, D]."""
        concentration = 0.5 * tf.convert_to_tensor(self.dof)[:, None] - self._halves()
        shape = tf.concat([[num_samples], tf.shape(concentration)], 0)
        dtype = concentration.dtype
        half_chi2 = tf.random.stateless_gamma(shape, [seed, 0], concentration, dtype=dtype)
        normal = standard_normal(tf.concat([shape, shape[-1:]], 0), [seed, 1], dtype)
        return tf.linalg.set_diag(tf.linalg.band_part(normal, -1, 0), tf.sqrt(2.0 * half_chi2))


def _degrees_of_freedom(gap: np.ndarray, dimension: int) -> np.ndarray:
    """ν with ``Σ_i ψ((ν + 1 − i)/2) − D log(ν/2) = gap`` [K]; i runs from 1 to D."""
    halves = 0.5 * np.arange(dimension)
    excess = np.ones_like(gap)  # ν − D + 1
    for _ in range(_NEWTON_STEPS):
        dof = excess + dimension - 1.0
        arguments = 0.5 * dof[:, None] - halves
        value = np.sum(scipy.special.digamma(arguments), axis=1) - dimension * np.log(0.5 * dof)
        slope = 0.5 * np.sum(scipy.special.polygamma(1, arguments), axis=1) - dimension / dof
        step = (gap - value) / (slope * excess)
        excess = excess * np.exp(np.clip(step, -2.0, 2.0))
    return excess + dimension - 1.0


@storable
@dataclass(frozen=True, eq=False)
class DirichletNormalWishart(ExponentialFamily):
    """A Dirichlet over K weights times K normal-Wisharts.

    Points are arrays [N, K, 1 + D + D²]: the weight, μ, then Λ row by row.
    """

    symmetric: ClassVar[tuple[int, ...]] = (4,)
    concentration: Any
    shape: Any
    weighted_mean: Any
    strength: Any
    scatter: Any

    @classmethod
    def of(cls, weights: Dirichlet, components: NormalWishart) -> DirichletNormalWishart:
        """Their product."""
        return cls(*weights.natural, *components.natural)

    @property
    def weights(self) -> Dirichlet:
        """Over the weights."""
        return Dirichlet(self.concentration)

    @property
    def components(self) -> NormalWishart:
        """Over means and precisions."""
        return NormalWishart(self.shape, self.weighted_mean, self.strength, self.scatter)

    def log_partition(self) -> tf.Tensor:
        return self.weights.log_partition() + self.components.log_partition()

    def log_base_measure(self, x: Any) -> tf.Tensor:
        weights = self.weights.log_base_measure(x[:, :, 0])
        return weights + self.components.log_base_measure(x[:, :, 1:])

    def expected_log_base_measure(self) -> tf.Tensor:
        weights = self.weights.expected_log_base_measure()
        return weights + self.components.expected_log_base_measure()

    @staticmethod
    def sufficient_statistics(x: Any) -> tuple[tf.Tensor, ...]:
        weights = Dirichlet.sufficient_statistics(x[:, :, 0])
        return *weights, *NormalWishart.sufficient_statistics(x[:, :, 1:])

    @classmethod
    def from_mean_parameters(cls, *mean_parameters: Any) -> DirichletNormalWishart:
        weights, *others = mean_parameters
        components = NormalWishart.from_mean_parameters(*others)
        return cls.of(Dirichlet.from_mean_parameters(weights), components)

    @staticmethod
    def is_proper_natural(*natural: Any) -> bool:
        weights, *components = natural
        return Dirichlet.is_proper_natural(weights) and NormalWishart.is_proper_natural(*components)

    def unconstrained(self) -> tf.Tensor:
        """[K, D + 4, D]: those of the components, and a row of ``log α``."""
        components = self.components.unconstrained()
        row = self.weights.unconstrained()[:, None] * tf.ones_like(self.weighted_mean)
        return tf.concat([components, row[:, None, :]], axis=1)

    @classmethod
    def from_unconstrained(cls, numbers: Any) -> DirichletNormalWishart:
        weights = Dirichlet.from_unconstrained(tf.reduce_mean(numbers[:, -1], axis=1))
        return cls.of(weights, NormalWishart.from_unconstrained(numbers[:, :-1]))

    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        weights = self.weights.sample(num_samples, seed)
        components = self.components.sample(num_samples, seed + 1)
        return tf.concat([weights[:, :, None], components], axis=2)
