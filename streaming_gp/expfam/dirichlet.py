"""Dirichlet distributions over the weights of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import tensorflow as tf

from streaming_gp.expfam.family import ExponentialFamily
from streaming_gp.serialization import storable

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
        (concentration,) = (np.asarray(eta) for eta in natural)
        return bool(np.isfinite(concentration).all() and (concentration > 0.0).all())

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
