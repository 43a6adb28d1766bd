"""Streaming sparse GPs with shared points (Bui, Nguyen & Turner 2017), Gaussian noise.

The collapsed bound of their section 3.1 (appendix 1.1), with kernel, noise and points learned at
every batch. What came before is summarised by q(a) = N(m_a, S_a) at the old points a and by the
prior covariance K'_aa that they had under the old hyperparameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
from gpflow.models.training_mixins import InternalDataTrainingLossMixin

from experiments.benchmarks.methods.learner import Held, Prediction, Setup

JITTER = 1e-6
STAY = 0.7
"""The share of old points that start where they were; the others start at new inputs."""
ITERATIONS = 30
LARGEST_CHANGE = 1.5
"""Of an unconstrained hyperparameter in one batch: about a factor of five."""


@dataclass(frozen=True, eq=False)
class Old:
    """The points Z [M, D], mean [M, 1] and covariance [M, M] of q(a), and p(a)'s covariance."""

    Z: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    prior: np.ndarray


class Terms:
    """Matrices that bound and prediction have in common, in the paper's letters."""

    def __init__(self, gp: StreamingSparseGP) -> None:
        X, Y = gp.data
        self.noise = gp.likelihood.variance
        self.Lb = tf.linalg.cholesky(_jittered(gp.kernel(gp.Z)))
        self.bf = self._whitened(gp.kernel(gp.Z, X)) / tf.sqrt(self.noise)
        D, c = self.bf @ tf.transpose(self.bf), self.bf @ Y / tf.sqrt(self.noise)
        self.data_gram, self.ba = D, None
        if gp.old is not None:
            self.ba = self._whitened(gp.kernel(gp.Z, gp.old.Z))
            self.La = tf.linalg.cholesky(tf.constant(gp.old.prior))
            self.LSa = tf.linalg.cholesky(tf.constant(gp.old.covariance))
            of_q = tf.linalg.triangular_solve(self.LSa, tf.transpose(self.ba))
            of_p = tf.linalg.triangular_solve(self.La, tf.transpose(self.ba))
            D = D + tf.transpose(of_q) @ of_q - tf.transpose(of_p) @ of_p
            c = c + self.ba @ tf.linalg.cholesky_solve(self.LSa, tf.constant(gp.old.mean))
        self.LD = tf.linalg.cholesky(_jittered(D + tf.eye(tf.shape(D)[0], dtype=D.dtype)))
        self.c = tf.linalg.triangular_solve(self.LD, c)

    def _whitened(self, cross: tf.Tensor) -> tf.Tensor:
        return tf.linalg.triangular_solve(self.Lb, cross)

    def moments(self, cross: tf.Tensor, prior: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [N, 1] and covariance [N, N] of f from k(b, x) [M, N] and k(x, x)."""
        white = self._whitened(cross)
        whiter = tf.linalg.triangular_solve(self.LD, white)
        covariance = prior - tf.transpose(white) @ white + tf.transpose(whiter) @ whiter
        return tf.transpose(whiter) @ self.c, covariance

    def marginals(self, cross: tf.Tensor, prior: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [N, 1] and variance [N] of f from k(b, x) [M, N] and k's diagonal [N]."""
        white = self._whitened(cross)
        whiter = tf.linalg.triangular_solve(self.LD, white)
        variance = prior - tf.reduce_sum(white**2, 0) + tf.reduce_sum(whiter**2, 0)
        return tf.transpose(whiter) @ self.c, variance


class StreamingSparseGP(gpflow.models.BayesianModel, InternalDataTrainingLossMixin):
    """One batch, given what is left of earlier ones."""

    def __init__(
        self,
        data: tuple[np.ndarray, np.ndarray],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Gaussian,
        Z: np.ndarray,
        old: Old | None,
    ) -> None:
        super().__init__()
        self.data = tuple(map(tf.constant, data))
        self.kernel, self.likelihood, self.old = kernel, likelihood, old
        self.Z = gpflow.Parameter(Z)

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        X, Y = self.data
        terms, number = Terms(self), tf.cast(tf.shape(X)[0], X.dtype)
        missing = tf.reduce_sum(self.kernel(X, full_cov=False)) / terms.noise
        bound = -0.5 * number * tf.math.log(2.0 * np.pi * terms.noise)
        bound -= 0.5 * tf.reduce_sum(Y**2) / terms.noise - 0.5 * tf.reduce_sum(terms.c**2)
        bound -= _half_log_det(terms.LD)
        bound -= 0.5 * (missing - tf.linalg.trace(terms.data_gram))
        return bound if self.old is None else bound + self._of_old_points(terms, self.old)

    def _of_old_points(self, terms: Terms, old: Old) -> tf.Tensor:
        white_mean = tf.linalg.triangular_solve(terms.LSa, tf.constant(old.mean))
        difference = self.kernel(old.Z) - tf.transpose(terms.ba) @ terms.ba
        under_q = tf.linalg.trace(tf.linalg.cholesky_solve(terms.LSa, difference))
        under_p = tf.linalg.trace(tf.linalg.cholesky_solve(terms.La, difference))
        log_ratio = _half_log_det(terms.La) - _half_log_det(terms.LSa)
        return log_ratio - 0.5 * (tf.reduce_sum(white_mean**2) + under_q - under_p)

    def summary(self) -> Old:
        """What the next batch needs to know.

        Both covariances have the same nugget: q(a) must not seem wider than p(a).
        """
        prior = _jittered(self.kernel(self.Z))
        mean, covariance = Terms(self).moments(self.kernel(self.Z), prior)
        return Old(self.Z.numpy(), mean.numpy(), covariance.numpy(), prior.numpy())

    def predict_y(self, X: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        cross, prior = self.kernel(self.Z, X), self.kernel(X, full_cov=False)
        mean, variance = Terms(self).marginals(cross, prior)
        return mean, variance[:, None] + self.likelihood.variance


def _jittered(matrix: tf.Tensor) -> tf.Tensor:
    return tf.linalg.set_diag(matrix, tf.linalg.diag_part(matrix) + JITTER)


def _half_log_det(lower: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.math.log(tf.linalg.diag_part(lower)))


def train(model: StreamingSparseGP, iterations: int) -> None:
    """L-BFGS, within limits; points from which a matrix has no Cholesky factor count as very bad.

    Without that, one such trial step ends the search, or it ends at lengthscales of zero.
    """
    variables, tools = model.trainable_variables, gpflow.optimizers.Scipy
    start = tools.initial_parameters(variables).numpy()
    points = model.Z.unconstrained_variable
    reach = [
        np.full(one.numpy().size, np.inf if one is points else LARGEST_CHANGE) for one in variables
    ]
    most = np.concatenate(reach)

    @tf.function
    def loss_and_gradient(vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tools.assign_tensors(variables, tools.unpack_tensors(variables, vector))
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return loss, tools.pack_tensors(tape.gradient(loss, variables))

    very_bad = 1e3 + 2.0 * abs(float(model.training_loss()))

    def at(vector: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = (one.numpy() for one in loss_and_gradient(tf.constant(vector)))
        if np.isfinite(loss) and np.isfinite(gradient).all():
            return float(loss), gradient
        return very_bad, np.zeros_like(gradient)

    found = scipy.optimize.minimize(
        at, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations},
        bounds=scipy.optimize.Bounds(start - most, start + most),
    )  # fmt: skip
    tools.assign_tensors(variables, tools.unpack_tensors(variables, tf.constant(found.x)))


class Shared2017:
    """Batch after batch; the first one gets as many points as it has inputs, at most ``number``."""

    def __init__(self, setup: Setup, number: int) -> None:
        self._number, self._iterations = number, setup.iterations(ITERATIONS)
        self._kernel = setup.hyperparameters.kernel()
        self._likelihood = gpflow.likelihoods.Gaussian(setup.hyperparameters.noise)
        self._rng = np.random.default_rng(setup.seed)
        self._model: StreamingSparseGP | None = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        old = None if self._model is None else self._model.summary()
        Z = self._start(X, old)
        self._model = StreamingSparseGP((X, Y), self._kernel, self._likelihood, Z, old)
        train(self._model, self._iterations)

    def _start(self, X: np.ndarray, old: Old | None) -> np.ndarray:
        if old is None:
            return X[self._rng.permutation(len(X))[: self._number]]
        room = self._number - len(old.Z)
        wanted = min(len(X), max(room, round((1.0 - STAY) * self._number)))
        stay = self._rng.permutation(len(old.Z))[: self._number - wanted]
        return np.concatenate([old.Z[stay], X[self._rng.permutation(len(X))[:wanted]]])

    def predict(self, X: np.ndarray) -> Prediction:
        assert self._model is not None
        mean, variance = self._model.predict_y(X)
        return Prediction(mean.numpy()[:, 0], variance.numpy()[:, 0])

    def held(self) -> Held:
        assert self._model is not None
        old = self._model.summary()
        arrays = (old.Z, old.mean, old.covariance, old.prior)
        return Held(len(old.Z), "points", sum(array.nbytes for array in arrays))


def shared(setup: Setup, number: int) -> Shared2017:
    return Shared2017(setup, min(number, setup.num_data))
