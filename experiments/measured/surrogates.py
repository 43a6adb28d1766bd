"""Models of one function whose values come one after another: all rows in, moments out.

A streaming surrogate, and GPflow's regression that is fitted anew at each step, as it is written
down in a few lines or with one compiled function.
"""

from __future__ import annotations

import time
from typing import Any

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.likelihoods import Gaussian

import streaming_gp as sgp
from streaming_gp.surrogate import StreamingSurrogate


def new_kernel(dim: int) -> gpflow.kernels.Kernel:
    kernel = gpflow.kernels.Matern52(lengthscales=np.full(dim, 0.5))
    tfd = tfp.distributions
    one, half, width = (tf.constant(x, tf.float64) for x in (0.0, np.log(0.5), 1.0))
    kernel.variance.prior = tfd.LogNormal(one, width)
    kernel.lengthscales.prior = tfd.LogNormal(half, width)
    return kernel


class Streaming:
    """Each row is absorbed; hyperparameters are learned when rows have grown by a quarter."""

    def __init__(self, dim: int, likelihood: Gaussian, hyperparameters: Any) -> None:
        self.surrogate = StreamingSurrogate(
            sgp.StreamingGP(
                new_kernel(dim),
                likelihood,
                pseudo_points=sgp.PrivatePseudoPoints("all"),
                hyperparameters=hyperparameters,
            )
        )

    def learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.surrogate.optimize((X, Y))

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.surrogate.model.predict_f(X)
        return np.asarray(mean)[:, 0], np.asarray(variance)[:, 0]

    def covariance(self, X: np.ndarray) -> np.ndarray:
        """Of f at inputs [N, D], as [N, N]."""
        return np.asarray(self.surrogate.predict_joint(X)[1])[0]

    @property
    def noise(self) -> float:
        return float(self.surrogate.get_observation_noise().numpy())


class Refit:
    """GPflow's regression as its documentation has it: a new fit from the values of the last."""

    def __init__(self, dim: int, likelihood: Gaussian) -> None:
        self.kernel, self.likelihood = new_kernel(dim), likelihood

    def learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.model = gpflow.models.GPR((X, Y), self.kernel, likelihood=self.likelihood)
        gpflow.optimizers.Scipy().minimize(self.model.training_loss, self.model.trainable_variables)

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.model.predict_f(X)
        return mean.numpy()[:, 0], variance.numpy()[:, 0]


class RefitCompiledOnce:
    """The same with data of any size in one compiled function, and a compiled prediction."""

    def __init__(self, dim: int, likelihood: Gaussian) -> None:
        X = tf.Variable(np.zeros((0, dim)), shape=[None, dim], trainable=False)
        Y = tf.Variable(np.zeros((0, 1)), shape=[None, 1], trainable=False)
        self.data = X, Y
        self.model = gpflow.models.GPR(self.data, new_kernel(dim), likelihood=likelihood)
        self.variables = self.model.trainable_variables
        self.predicted = tf.function(self.model.predict_f)
        self.predicted_jointly = tf.function(lambda X: self.model.predict_f(X, full_cov=True))
        self.value_and_gradient = tf.function(self._value_and_gradient)

    def _value_and_gradient(self) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self.model.training_loss()
        parts = tape.gradient(loss, self.variables)
        return loss, tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)

    def _assign(self, values: np.ndarray) -> None:
        start = 0
        for variable in self.variables:
            size = int(np.prod(variable.shape))
            variable.assign(values[start : start + size].reshape(variable.shape))
            start += size

    def _loss(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._assign(values)
        loss, gradient = self.value_and_gradient()
        return loss.numpy(), gradient.numpy()

    def learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        for variable, values in zip(self.data, (X, Y), strict=True):
            variable.assign(values)
        start = np.concatenate([variable.numpy().ravel() for variable in self.variables])
        found = scipy.optimize.minimize(self._loss, start, jac=True, method="L-BFGS-B")
        self._assign(found.x)

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.predicted(tf.constant(X))
        return mean.numpy()[:, 0], variance.numpy()[:, 0]

    def covariance(self, X: np.ndarray) -> np.ndarray:
        """Of f at inputs [N, D], as [N, N]."""
        covariance: np.ndarray = self.predicted_jointly(tf.constant(X))[1].numpy()[0]
        return covariance

    @property
    def noise(self) -> float:
        return float(self.model.likelihood.variance.numpy())


class Clock:
    """CPU seconds of this process within ``with`` blocks."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: Any) -> None:
        self.seconds += time.process_time() - self._start


def warm_up() -> None:
    """Let TensorFlow start before anything is timed; models of the process before it share that."""
    Refit(1, Gaussian()).learn(np.zeros((2, 1)), np.zeros((2, 1)))
