"""Values of the prior at one ε or at several, in NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel

from streaming_gp.gp.process import covariances as cov
from streaming_gp.gp.process.compiled import Graphs, at_each_sample, spec

if TYPE_CHECKING:
    from streaming_gp.gp.process.conditioning import GaussianProcess

MOST_ELEMENTS = 2**24
"""The largest number of elements of covariances that are computed in one call."""


def between(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor) -> tf.Tensor:
    """The covariance [K, N, N2], nowhere larger than the variances allow.

    At a lengthscale that is nothing beside the inputs rounding makes squares of distances negative,
    and covariances infinite.
    """
    variances = (tf.reduce_max(cov.variance(kernel, one), axis=1) for one in (X, X2))
    largest = tf.reshape(tf.sqrt(tf.multiply(*variances)), [-1, 1, 1])
    return tf.clip_by_value(cov.covariance(kernel, X, X2), -largest, largest)


def among(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """The covariance [K, N, N] of f(X), nowhere larger than the variances, which it holds."""
    variance = cov.variance(kernel, X)
    largest = tf.reshape(tf.reduce_max(variance, axis=1), [-1, 1, 1])
    found = tf.clip_by_value(cov.covariance(kernel, X), -largest, largest)
    return tf.linalg.set_diag(found, variance)


class PriorFunctions:
    """Compiled values of kernel and mean function at any number of values of ε.

    :param gp: Kernel and mean function.
    :param parameters: The vector ε of trainable parameters.
    :param input_dim: The number D of columns of X.
    :param graphs: Those of the models of this kind.
    """

    def __init__(
        self, gp: GaussianProcess, parameters: Any, input_dim: int, graphs: Graphs
    ) -> None:
        self.gp = gp
        self.parameters = parameters
        inputs = spec(None, input_dim)
        made = partial(self._at_each, graphs)
        self.covariance = made(
            "covariance", lambda *both: between(gp.kernel, *both), inputs, inputs
        )
        self.among = made("among", lambda X: among(gp.kernel, X), inputs)
        self.variance = made("variance", lambda X: cov.variance(gp.kernel, X), inputs)
        self.mean = made("mean", lambda X: cov.to_groups(gp.prior_mean(X), gp.num_groups), inputs)

        derivatives = spec(None, None, None)
        self.pullback = graphs.compiled(
            self._pullback_at, spec(parameters.size), inputs, inputs, derivatives, derivatives
        )

    def _pullback_at(
        self,
        epsilon: tf.Tensor,
        X: tf.Tensor,
        X2: tf.Tensor,
        by_among: tf.Tensor,
        by_between: tf.Tensor,
    ) -> tf.Tensor:
        """The derivative by X of what has these by cov(X) and cov(X, X2)."""
        with self.parameters.substituted(epsilon), tf.GradientTape() as tape:
            tape.watch(X)
            among = by_among * cov.covariance(self.gp.kernel, X)
            between = by_between * cov.covariance(self.gp.kernel, X, X2)
            value = tf.reduce_sum(among) + tf.reduce_sum(between)
        return tape.gradient(value, X, unconnected_gradients="zero")

    def _at_each(
        self, graphs: Graphs, name: str, function: Callable[..., tf.Tensor], *inputs: Any
    ) -> Any:
        """``function`` of inputs at every ε of [S, E].

        One ε has a graph of its own, which is traced several times faster than one of any number.
        """

        def at(draws: tf.Tensor, *X: tf.Tensor) -> tf.Tensor:
            def at_one(epsilon: tf.Tensor) -> tf.Tensor:
                with self.parameters.substituted(epsilon):
                    return function(*X)

            return at_each_sample(at_one, draws)

        one, many = (
            graphs.compiled(at, spec(S, self.parameters.size), *inputs, of=name) for S in (1, None)
        )
        return lambda draws, *X: (one if len(draws) == 1 else many)(draws, *X)


@dataclass(frozen=True, eq=False)
class PriorAt:
    """The prior at S values of ε.

    For each there are G groups of latent functions; the S G groups of all follow one another.

    :param functions: Its compiled values.
    :param draws: The values of ε [S, E].
    """

    functions: PriorFunctions
    draws: np.ndarray

    @property
    def groups(self) -> list[int]:
        """Which group of the latent functions each of the S G groups is."""
        return list(range(self.functions.gp.num_groups)) * len(self.draws)

    @property
    def num_columns(self) -> int:
        """C, the number of latent functions of a group."""
        return self.functions.gp.num_latent // self.functions.gp.num_groups

    def covariances(self, X: np.ndarray, X2: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The covariance [N, N2] between f(X) and f(X2) of every group; X2 is X by default.

        White noise is shared by no two sets of inputs, even if they are equal.
        """
        number = self.functions.gp.num_groups
        size = number * len(X) * len(X if X2 is None else X2)
        at_once = max(1, MOST_ELEMENTS // max(1, size))
        for start in range(0, len(self.draws), at_once):
            draws = self.draws[start : start + at_once]
            if X2 is None:
                found = self.functions.among(draws, X)
            else:
                found = self.functions.covariance(draws, X, X2)
            for one in np.asarray(found):  # no copy, as numpy() would be
                yield from np.broadcast_to(one, (number, *one.shape[1:]))

    def covariance(self, X: np.ndarray, X2: np.ndarray | None = None) -> np.ndarray:
        """All of :meth:`covariances`: [S G, N, N2]."""
        return np.stack(list(self.covariances(X, X2)))

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variance [S G, N] of f(X)."""
        found = np.asarray(self.functions.variance(self.draws, X))
        shape = len(self.draws), self.functions.gp.num_groups, len(X)
        return np.broadcast_to(found, shape).reshape(-1, len(X))

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Mean [S G, N, C] of f(X)."""
        found = np.asarray(self.functions.mean(self.draws, X))
        return found.reshape(-1, *found.shape[2:])

    def pullback(
        self, X: np.ndarray, X2: np.ndarray, by_among: np.ndarray, by_between: np.ndarray
    ) -> np.ndarray:
        """The derivative [N, D] by X of what has these by cov(X) and by cov(X, X2), at one ε.

        :param by_among: [G, N, N].
        :param by_between: [G, N, N2].
        """
        (epsilon,) = self.draws
        return np.asarray(self.functions.pullback(epsilon, X, X2, by_among, by_between))
