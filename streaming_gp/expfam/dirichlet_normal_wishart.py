"""The posterior of a Bayesian Gaussian mixture: weights and components, independent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from streaming_gp.expfam.dirichlet import Dirichlet
from streaming_gp.expfam.family import ExponentialFamily
from streaming_gp.expfam.normal_wishart import NormalWishart
from streaming_gp.serialization import storable


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
        weights, *components = mean_parameters
        return cls.of(
            Dirichlet.from_mean_parameters(weights),
            NormalWishart.from_mean_parameters(*components),
        )

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
        return tf.concat(
            [weights[:, :, None], self.components.sample(num_samples, seed + 1)], axis=2
        )
