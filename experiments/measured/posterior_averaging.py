"""Local fits of federated averaging, and of federated posterior averaging (FedPA).

FedPA is by Al-Shedivat, Gillenwater, Xing & Rostamizadeh (2021). A client runs SGD at a constant
rate, which wanders about its local posterior. Each epoch after the first gives a sample, the mean
of its iterates. With their mean x̄ and covariance S, shrunk to Σ = ρ I + (1 − ρ) S with
ρ = 1 / (1 + (l − 1) s) of l samples, the client answers θ − Δ, where Δ = Σ⁻¹ (θ − x̄) and θ is what
the server sent. One sample is federated averaging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp import pvi
from streaming_gp.expfam import KL, Divergence, MeanFieldNormal
from streaming_gp.pvi.model import compiled_for

AT_ONCE = 10
"""So many steps are one call of a compiled function."""


@dataclass(frozen=True)
class LocalSGD(pvi.VariationalUpdate):
    """SGD on the mean loss of minibatches, of networks without a spread: for ``AveragingUpdate``.

    :param rate: The rate of a step.
    :param proximal: FedProx' strength, of the pull to the weights that the server sent.
    """

    epochs: int = 5
    batch_size: int | None = 50
    rate: float = 0.05
    proximal: float = 0.0
    divergence: Divergence = field(default_factory=KL)

    def fitted(self, task: pvi.LocalTask) -> tuple[MeanFieldNormal, float, int]:
        start = np.asarray(task.start.mean)
        last, means = self.walked(task, start)
        mean = self.answer(start, last, means).astype(np.float32)
        width = np.full_like(mean, float(np.mean(task.start.variance)))
        steps = self.epochs * self.steps_of_an_epoch(task)
        return MeanFieldNormal.from_mean_variance(mean, width), math.nan, steps

    def steps_of_an_epoch(self, task: pvi.LocalTask) -> int:
        return -(-task.num_data // task.size_of(self.batch_size))

    def walked(self, task: pvi.LocalTask, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last iterate [D], and the mean of each epoch's iterates [E, D]."""
        (X, Y), batches = task.data, task.minibatches(self.batch_size)
        walk = compiled_for(task.model, "SGD of weights", _descent)
        rate, pull = tf.constant(self.rate), tf.constant(self.proximal)
        theta = origin = tf.convert_to_tensor(start[None])
        a_pass, means = self.steps_of_an_epoch(task), []
        for _ in range(self.epochs):
            total = tf.zeros_like(theta)
            for first in range(0, a_pass, AT_ONCE):
                rows = np.array(list(islice(batches, min(AT_ONCE, a_pass - first))))
                number, filled = tf.constant(len(rows)), np.resize(rows, (AT_ONCE, rows.shape[1]))
                theta, total = walk(theta, total, X[filled], Y[filled], number, rate, pull, origin)
            means.append(total[0].numpy() / a_pass)
        return theta[0].numpy(), np.array(means)

    def answer(self, start: np.ndarray, last: np.ndarray, means: np.ndarray) -> np.ndarray:
        """The weights that the client sends: the last ones."""
        return last


@dataclass(frozen=True)
class PosteriorAveraging(LocalSGD):
    """FedPA: each epoch after the first gives a sample.

    :param shrinkage: s of the covariance's shrinkage.
    """

    shrinkage: float = 0.01

    def answer(self, start: np.ndarray, last: np.ndarray, means: np.ndarray) -> np.ndarray:
        return start - shrunk_solve(means[1:], start, self.shrinkage)


def shrunk_solve(samples: np.ndarray, start: np.ndarray, shrinkage: float) -> np.ndarray:
    """``Σ⁻¹ (θ − x̄)`` of samples [l, D], by the matrix inversion lemma: [D]."""
    number, mean = len(samples), samples.mean(axis=0)
    rho = 1.0 / (1.0 + (number - 1) * shrinkage)
    away, spread = start - mean, samples - mean
    if number == 1:
        return away
    weight = (1.0 - rho) / (number - 1)
    inner = rho * np.eye(number) + weight * spread @ spread.T
    return (away - weight * spread.T @ np.linalg.solve(inner, spread @ away)) / rho


def _descent(model: Any) -> Any:
    """Steps of SGD on the mean loss of so many minibatches X [AT_ONCE, B, D], compiled: θ after
    them, and the sum with all θ on the way.
    """

    @tf.function(jit_compile=True)
    def walk(
        theta: Any, total: Any, X: Any, Y: Any, number: Any, rate: Any, pull: Any, origin: Any
    ) -> Any:
        def step(count: Any, theta: Any, total: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(theta)
                loss = -tf.reduce_sum(model.log_likelihood(theta, X[count], Y[count])) / X.shape[1]
            theta -= rate * (tape.gradient(loss, theta) + pull * (theta - origin))
            return count + 1, theta, total + theta

        return tf.while_loop(lambda count, *_: count < number, step, (0, theta, total))[1:]

    return walk
