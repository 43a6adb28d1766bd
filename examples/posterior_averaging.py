"""Federated posterior averaging (FedPA: Al-Shedivat, Gillenwater, Xing & Rostamizadeh 2021).

A client runs SGD at a constant rate, which wanders about its local posterior. Each epoch after the
first gives a sample, the mean of its iterates. With their mean x̄ and covariance S, shrunk to
Σ = ρ I + (1 − ρ) S with ρ = 1 / (1 + (l − 1) s) of l samples, the client answers θ − Δ, where
Δ = Σ⁻¹ (θ − x̄) and θ is what the server sent. One sample is federated averaging.
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
from streaming_gp.pvi.compiled import compiled_for


@dataclass(frozen=True)
class PosteriorAveraging(pvi.VariationalUpdate):
    """The local fit of a client, for ``AveragingUpdate``, of networks without a spread.

    :param rate: The rate of SGD on the mean loss of a minibatch.
    :param shrinkage: s of the covariance's shrinkage.
    """

    epochs: int = 5
    batch_size: int | None = 50
    rate: float = 0.05
    shrinkage: float = 0.01
    divergence: Divergence = field(default_factory=KL)

    def fitted(self, task: pvi.LocalTask) -> tuple[MeanFieldNormal, float, int]:
        X, Y = task.data
        theta = start = tf.convert_to_tensor(np.asarray(task.start.mean)[None])
        step, rate = compiled_for(task.model, "SGD of weights", _descent), tf.constant(self.rate)
        a_pass = -(-task.num_data // task.size_of(self.batch_size))
        batches, samples = task.minibatches(self.batch_size), []
        for epoch in range(self.epochs):
            total = tf.zeros_like(theta)
            for rows in islice(batches, a_pass):
                theta = step(theta, X[rows], Y[rows], rate)
                total += theta
            if epoch > 0:
                samples.append(total[0].numpy() / a_pass)
        change = shrunk_solve(np.array(samples), start[0].numpy(), self.shrinkage)
        mean = (start[0].numpy() - change).astype(np.float32)
        width = np.full_like(mean, float(np.mean(task.start.variance)))
        q = MeanFieldNormal.from_mean_variance(mean, width)
        return q, math.nan, self.epochs * a_pass


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
    """One step of SGD on the mean loss of some rows, compiled."""

    @tf.function(reduce_retracing=True)
    def step(theta: Any, X: Any, Y: Any, rate: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(theta)
            loss = -tf.reduce_sum(model.log_likelihood(theta, X, Y))
        size = tf.cast(tf.shape(X)[0], theta.dtype)
        return theta - rate * tape.gradient(loss, theta) / size

    return step
