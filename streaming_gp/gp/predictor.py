"""Predictions of a process, integrated over q(ε).

Every prediction is a mixture over S values of ε: a fixed, seeded set of quasi-random draws from
q(ε), or the one point. The same model therefore gives the same answer twice, bit for bit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.compiled import at_each_sample, compiled, spec
from streaming_gp.gp.process.conditioning import Conditioned, Stack
from streaming_gp.gp.process.process import Process

CHUNK_ELEMENTS = 2**24
"""The largest number of elements that an intermediate array of a prediction should have."""


class Held(NamedTuple):
    """A factorised process, and what it was factorised for."""

    process: Process
    token: bytes
    stack: Stack
    draws: tf.Tensor
    conditioned: Conditioned


class PredictionFunctions:
    """Compiled predictions for one model.

    :param local: The model.
    :param num_samples: The number S of values of ε that predictions are averaged over.
    """

    def __init__(self, local: LocalModel, num_samples: int) -> None:
        self.gp = local.gp
        self.likelihood = local.likelihood
        self.epsilon = local.parameters
        self.input_dim = local.input_dim
        self._held: Held | None = None
        self._conditioning = threading.Lock()
        S, G, L = num_samples, self.gp.num_groups, self.gp.num_latent
        C = L // G

        stack = self.gp.stack_spec(self.input_dim)
        conditioned = Conditioned(spec(S, None, None, None), spec(S, G, None, C))
        draws, inputs = spec(S, local.parameters.size), spec(None, self.input_dim)

        self._condition = compiled(self._condition_samples, draws, stack)
        self.marginals = compiled(
            lambda e, s, c, X: self._predict_samples(e, s, c, X, False),
            draws, stack, conditioned, inputs,
        )  # fmt: skip
        self.joint = compiled(
            lambda e, s, c, X: self._predict_samples(e, s, c, X, True),
            draws, stack, conditioned, inputs,
        )  # fmt: skip
        moments = spec(S, None, L)
        self.observe = compiled(self._observe_samples, draws, inputs, moments, moments)
        self.score = compiled(
            self._score_samples, draws, inputs, moments, moments, spec(None, local.output_dim)
        )

    # ---- compiled ----

    def _condition_samples(self, draws: tf.Tensor, stack: Stack) -> Conditioned:
        def at(epsilon: tf.Tensor) -> Conditioned:
            with self.epsilon.substituted(epsilon):
                return self.gp.condition(stack)

        return at_each_sample(at, draws)

    def _predict_samples(
        self, draws: tf.Tensor, stack: Stack, conditioned: Conditioned, X: tf.Tensor, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def at(epsilon: tf.Tensor, *parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with self.epsilon.substituted(epsilon):
                return self.gp.predict(stack, Conditioned(*parts), X, full_cov)

        return at_each_sample(at, draws, *conditioned)

    def _observe_samples(
        self, draws: tf.Tensor, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def at(epsilon: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with self.epsilon.substituted(epsilon):
                return site_rules.predictive_moments(self.likelihood, X, m, v)

        return at_each_sample(at, draws, mean, variance)

    def _score_samples(
        self, draws: tf.Tensor, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
    ) -> tf.Tensor:
        def at(epsilon: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
            with self.epsilon.substituted(epsilon):
                return site_rules.predictive_log_density(self.likelihood, X, m, v, Y)

        return at_each_sample(at, draws, mean, variance)

    # ---- for the model ----

    def at(self, process: Process, draws: np.ndarray, token: bytes) -> Predictor:
        """Factorise ``process`` at every ε in ``draws``, unless that is what is held already.

        Threads that want the same process wait for the one that factorises it.

        :param process: Prior × factors.
        :param draws: The values of ε [S, E].
        :param token: Bytes that change whenever anything else changes that the process depends on.
        :raises NumericalError: if the pseudo-observation covariance is not positive.
        """
        token += draws.tobytes()
        with self._conditioning:
            held = self._held
            if held is None or held.process is not process or held.token != token:
                held = self._held = self._factorised(process, draws, token)
        return Predictor(self, held)

    def _factorised(self, process: Process, draws: np.ndarray, token: bytes) -> Held:
        stack = self.gp.stack(process.compact.pseudo_observations, self.input_dim)
        conditioned = self._condition(draws, stack)
        if not bool(tf.reduce_all(tf.math.is_finite(conditioned.white))):
            raise NumericalError("the pseudo-observation covariance I + RᵀKR is not positive")
        return Held(process, token, stack, tf.constant(draws), conditioned)


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predictions of one process, whatever its model has learned since.

    :param functions: The compiled predictions of the model.
    :param held: The process.
    """

    functions: PredictionFunctions
    held: Held

    def f(
        self, X: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [S, N, L] and (co)variance for each ε.

        Functions are independent given ε.

        :returns: mean, and variance [S, N, L]; with ``full_cov`` [S, L, N, N], with
            ``full_output_cov`` [S, N, L, L], with both [S, N, L, N, L].
        """
        mean, variance = self._joint_over_inputs(X) if full_cov else self._at_inputs(X)
        if not full_output_cov:
            return mean, variance
        if not full_cov:
            return mean, tf.linalg.diag(variance)
        diagonal = tf.linalg.diag(tf.transpose(variance, [0, 2, 3, 1]))
        return mean, tf.transpose(diagonal, [0, 1, 3, 2, 4])

    def _joint_over_inputs(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, _, stack, draws, conditioned = self.held
        return self.functions.joint(draws, stack, conditioned, X)

    def _at_inputs(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, _, stack, draws, conditioned = self.held
        chunk = max(256, CHUNK_ELEMENTS // max(1, int(np.prod(conditioned.white.shape))))
        if X.shape[0] is None or X.shape[0] <= chunk:
            return self.functions.marginals(draws, stack, conditioned, X)
        pieces = [
            self.functions.marginals(draws, stack, conditioned, X[i : i + chunk])
            for i in range(0, X.shape[0], chunk)
        ]
        mean, variance = (tf.concat(parts, axis=1) for parts in zip(*pieces, strict=True))
        return mean, variance

    def y(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [S, N, P] of the observations for each ε."""
        return self.functions.observe(self.held.draws, X, *self.f(X))

    def log_densities(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """``log p(y_n | ε)`` [S, N] for each ε."""
        return self.functions.score(self.held.draws, X, *self.f(X), Y)


_BETWEEN = {
    (False, False): "snp,snp->np",
    (True, False): "snp,smp->pnm",
    (False, True): "snp,snq->npq",
    (True, True): "snp,smq->npmq",
}


def mixture_moments(
    means: tf.Tensor, variances: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and (co)variance of an equal mixture over the leading axis, in GPflow's shapes.

    ε moves all means together, so that outputs are correlated even where they are independent
    given ε.

    :param means: The mean under each ε, [S, N, P].
    :param variances: The (co)variance under each ε, as :meth:`Predictor.f` gives it.
    :returns: mean [N, P], and variance [N, P] or covariance [P, N, N], [N, P, P] or [N, P, N, P].
    """
    mean = tf.reduce_mean(means, axis=0)
    shift = means - mean
    between = tf.einsum(_BETWEEN[full_cov, full_output_cov], shift, shift)
    weight = 1.0 / tf.cast(tf.shape(means)[0], means.dtype)
    return mean, tf.reduce_mean(variances, axis=0) + weight * between


def mixture_log_density(log_densities: tf.Tensor) -> tf.Tensor:
    """``log E_ε[p(y_n | ε)]`` [N] of an equal mixture of S densities [S, N]."""
    number = tf.cast(tf.shape(log_densities)[0], log_densities.dtype)
    return tf.reduce_logsumexp(log_densities, axis=0) - tf.math.log(number)
