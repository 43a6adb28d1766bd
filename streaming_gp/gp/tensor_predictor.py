"""Predictions at inputs that are tensors: inside a caller's graph, and with gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.compiled import at_each_sample, spec
from streaming_gp.gp.process.conditioning import Conditioned, Stack
from streaming_gp.gp.process.moments import CHUNK_ELEMENTS
from streaming_gp.gp.process.process import Process


class HeldTensors(NamedTuple):
    """A process that is factorised at some values of ε [S, E]."""

    stack: Stack
    draws: tf.Tensor
    conditioned: Conditioned


class TensorPredictor:
    """Compiled moments of f for one model, whatever its pseudo-observations.

    :param local: The model.
    :param num_samples: The number S of values of ε that predictions are averaged over.
    """

    def __init__(self, local: LocalModel, num_samples: int) -> None:
        self.gp = local.gp
        self.epsilon = local.parameters
        self.input_dim = local.input_dim
        S, G, L = num_samples, self.gp.num_groups, self.gp.num_latent
        stack = self.gp.stack_spec(self.input_dim)
        conditioned = Conditioned(spec(S, None, None, None), spec(S, G, None, L // G))
        draws, inputs = spec(S, local.parameters.size), spec(None, self.input_dim)
        self._condition = local.graphs.compiled(self._condition_samples, draws, stack)
        self._marginals, self._joint = (
            local.graphs.compiled(
                partial(self._predict_samples, full_cov), draws, stack, conditioned, inputs,
                of=full_cov,
            )
            for full_cov in (False, True)
        )  # fmt: skip

    def _condition_samples(self, draws: tf.Tensor, stack: Stack) -> Conditioned:
        def at(epsilon: tf.Tensor) -> Conditioned:
            with self.epsilon.substituted(epsilon):
                return self.gp.condition(stack)

        return at_each_sample(at, draws)

    def _predict_samples(
        self, full_cov: bool, draws: tf.Tensor, stack: Stack, conditioned: Conditioned, X: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def at(epsilon: tf.Tensor, *parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with self.epsilon.substituted(epsilon):
                return self.gp.predict(stack, Conditioned(*parts), X, full_cov)

        return at_each_sample(at, draws, *conditioned)

    def conditioned(self, process: Process, draws: np.ndarray) -> HeldTensors:
        """The process factorised at every ε in ``draws`` [S, E].

        :raises NumericalError: if the pseudo-observation covariance is not positive.
        """
        stack = self.gp.stack(process.compact.pseudo_observations, self.input_dim)
        conditioned = self._condition(draws, stack)
        if not bool(tf.reduce_all(tf.math.is_finite(conditioned.white))):
            raise NumericalError("the pseudo-observation covariance I + RᵀKR is not positive")
        return HeldTensors(stack, tf.constant(draws), conditioned)

    def moments(self, held: HeldTensors, X: tf.Tensor, full_cov: bool) -> tuple[tf.Tensor, ...]:
        """Mean [S, N, L] of f(X), and variance [S, N, L] or covariance [S, L, N, N]."""
        stack, draws, conditioned = held
        if full_cov:
            return tuple(self._joint(draws, stack, conditioned, X))
        chunk = max(256, CHUNK_ELEMENTS // max(1, int(np.prod(conditioned.white.shape))))
        if X.shape[0] is None or X.shape[0] <= chunk:
            return tuple(self._marginals(draws, stack, conditioned, X))
        pieces = [
            self._marginals(draws, stack, conditioned, X[i : i + chunk])
            for i in range(0, X.shape[0], chunk)
        ]
        return tuple(tf.concat(parts, axis=1) for parts in zip(*pieces, strict=True))
