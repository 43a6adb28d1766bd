"""Values of the prior at one ε, in NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.process import covariances as cov
from streaming_gp.gp.process.compiled import compiled, spec

if TYPE_CHECKING:
    from streaming_gp.gp.process.conditioning import GaussianProcess


class PriorFunctions:
    """Compiled values of kernel and mean function, whatever ε.

    :param gp: Kernel and mean function.
    :param parameters: The vector ε of trainable parameters.
    :param input_dim: The number D of columns of X.
    """

    def __init__(self, gp: GaussianProcess, parameters: Any, input_dim: int) -> None:
        self.gp = gp
        self.parameters = parameters
        epsilon, inputs = spec(parameters.size), spec(None, input_dim)
        self.covariance = compiled(self._covariance, epsilon, inputs, inputs)
        self.among = compiled(self._covariance, epsilon, inputs)
        self.mean = compiled(self._mean, epsilon, inputs)

    def _covariance(
        self, epsilon: tf.Tensor, X: tf.Tensor, X2: tf.Tensor | None = None
    ) -> tf.Tensor:
        with self.parameters.substituted(epsilon):
            return cov.covariance(self.gp.kernel, X, X2)

    def _mean(self, epsilon: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        with self.parameters.substituted(epsilon):
            return cov.to_groups(self.gp.prior_mean(X), self.gp.num_groups)


@dataclass(frozen=True, eq=False)
class PriorAt:
    """The prior at one ε [E].

    :param functions: Its compiled values.
    :param epsilon: The value of ε.
    """

    functions: PriorFunctions
    epsilon: np.ndarray

    @property
    def num_groups(self) -> int:
        """G, the number of groups of latent functions."""
        return self.functions.gp.num_groups

    @property
    def num_columns(self) -> int:
        """C, the number of latent functions of a group."""
        return self.functions.gp.num_latent // self.functions.gp.num_groups

    def covariance(self, X: np.ndarray, X2: np.ndarray | None = None) -> np.ndarray:
        """Covariance [G, N, N2] between f(X) and f(X2); X2 is X by default.

        White noise is shared by no two sets of inputs, even if they are equal.
        """
        if X2 is None:
            found, size = self.functions.among(self.epsilon, X).numpy(), len(X)
        else:
            found, size = self.functions.covariance(self.epsilon, X, X2).numpy(), len(X2)
        return np.broadcast_to(found, (self.num_groups, len(X), size))

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Mean [G, N, C] of f(X)."""
        return np.asarray(self.functions.mean(self.epsilon, X))
