"""Predictions of a process, integrated over q(ε).

Every prediction is a mixture over S values of ε: a fixed, seeded set of quasi-random draws from
q(ε), or the one point. The same model therefore gives the same answer twice, bit for bit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.compiled import at_each_sample, spec
from streaming_gp.gp.process.conditioning import GaussianProcess
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.moments import joint, marginals
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.tensor_predictor import HeldTensors, TensorPredictor
from streaming_gp.numerics.threads import blas_threads_for

Inputs: TypeAlias = np.ndarray | tf.Tensor
"""Inputs [N, D]: an array; or a tensor, for gradients and inside a caller's graph."""


@dataclass(frozen=True, eq=False)
class Held:
    """A process at some values of ε, factorised when it is first asked for, in arrays or tensors.

    :param token: What it was made for.
    :param factorised: It in arrays; None where it rests on conditional pseudo-points.
    """

    process: Process
    draws: np.ndarray
    token: bytes
    factorised: Factorised | None
    tensor_predictor: TensorPredictor

    @cached_property
    def tensors(self) -> HeldTensors:
        """It in tensors."""
        with tf.init_scope():  # now, even while a caller is being traced
            return self.tensor_predictor.conditioned(self.process, self.draws)


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
        self._prior = local.prior
        self.tensors = TensorPredictor(local, num_samples)
        self._held: Held | None = None
        self._conditioning = threading.Lock()
        S, L = num_samples, self.gp.num_latent
        draws, inputs = spec(S, self.epsilon.size), spec(None, self.input_dim)
        moments = spec(S, None, L)
        arguments = draws, inputs, moments, moments
        self.observe = local.graphs.compiled(partial(_observed, local), *arguments)
        self.score = local.graphs.compiled(
            partial(_scored, local), *arguments, spec(None, local.output_dim)
        )

    def at(self, process: Process, draws: np.ndarray, token: bytes) -> Predictor:
        """Factorise ``process`` at every ε in ``draws``; what is held of it already is extended.

        Threads that want the same process wait for the one that factorises it.

        :param process: Prior × factors.
        :param draws: The values of ε [S, E].
        :param token: Bytes that change whenever ε changes, or anything else that predictions depend
            on; under equal ones the draws that are held are kept, which rounding might change.
        :raises NumericalError: if the pseudo-observation covariance is not positive.
        """
        with self._conditioning:
            held = self._held
            if held is None or held.token != token:
                held = self._held = self._factorised(process, draws, token, None)
            elif held.process is not process:
                known = held.factorised
                held = self._held = self._factorised(process, held.draws, token, known)
        return Predictor(self, held)

    def _factorised(
        self, process: Process, draws: np.ndarray, token: bytes, known: Factorised | None
    ) -> Held:
        if type(self.gp) is not GaussianProcess:
            return Held(process, draws, token, None, self.tensors)
        known = known or Factorised(PriorAt(self._prior, draws))
        with blas_threads_for(process.num_pseudo_points):
            factorised = known.conditioned_on(plain(process))
        return Held(process, draws, token, factorised, self.tensors)


def _observed(
    local: LocalModel, draws: tf.Tensor, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance [S, N, P] of the observations at moments [S, N, L] of f."""

    def at(epsilon: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with local.parameters.substituted(epsilon):
            return site_rules.predictive_moments(local.likelihood, X, m, v)

    found: tuple[tf.Tensor, tf.Tensor] = at_each_sample(at, draws, mean, variance)
    return found


def _scored(local: LocalModel, draws: tf.Tensor, X: tf.Tensor, *given: tf.Tensor) -> tf.Tensor:
    """Log densities [S, N] of Y [N, P], which follows moments [S, N, L] of f."""
    *moments, Y = given

    def at(epsilon: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        with local.parameters.substituted(epsilon):
            return site_rules.predictive_log_density(local.likelihood, X, m, v, Y)

    return at_each_sample(at, draws, *moments)


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predictions of one process, whatever its model has learned since.

    :param functions: The compiled predictions of the model.
    :param held: The process.
    """

    functions: PredictionFunctions
    held: Held

    def f(
        self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [S, N, L] and (co)variance for each ε.

        Functions are independent given ε.

        :returns: mean, and variance [S, N, L]; with ``full_cov`` [S, L, N, N], with
            ``full_output_cov`` [S, N, L, L], with both [S, N, L, N, L].
        """
        mean, variance = self._moments(X, full_cov)
        if not full_output_cov:
            return mean, variance
        if not full_cov:
            return mean, tf.linalg.diag(variance)
        diagonal = tf.linalg.diag(tf.transpose(variance, [0, 2, 3, 1]))
        return mean, tf.transpose(diagonal, [0, 1, 3, 2, 4])

    def _moments(self, X: Inputs, full_cov: bool) -> tuple[tf.Tensor, tf.Tensor]:
        held = self.held
        if held.factorised is None or tf.is_tensor(X):
            mean, variance = self.functions.tensors.moments(held.tensors, X, full_cov)
        else:
            moments = joint if full_cov else marginals
            with blas_threads_for(held.process.num_pseudo_points):
                mean, variance = map(tf.constant, moments(held.factorised, X))
        if not tf.is_symbolic_tensor(mean):
            _refuse_overflow(X, mean, variance)
        return mean, variance

    def y(self, X: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [S, N, P] of the observations for each ε."""
        return self.functions.observe(self.held.draws, X, *self.f(X))

    def log_densities(self, X: Inputs, Y: np.ndarray) -> tf.Tensor:
        """``log p(y_n | ε)`` [S, N] for each ε."""
        return self.functions.score(self.held.draws, X, *self.f(X), Y)


def _refuse_overflow(X: Inputs, *moments: tf.Tensor) -> None:
    """Refuse inputs so large that squares of them are infinite.

    :raises NumericalError: if a moment is not finite.
    """
    if not all(np.isfinite(one).all() for one in moments):
        raise NumericalError(
            "predictions are not finite, as covariances overflow: wanted smaller inputs, got some "
            f"of size {np.abs(X).max():.3g}"
        )


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
