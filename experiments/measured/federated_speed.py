"""Seconds of one epoch of ten clients, beside a plain Keras loop of the same network.

The Keras network 784-200-10 draws Gaussian noise on its weights at every step (means and log
standard deviations are trained, without KL), sees the same minibatches of 200 and is compiled by
XLA as well. Each side is warmed up by one epoch, then timed for some more.

--quick times one epoch of 6,000 images.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf
from common import parser, run, write_results

from streaming_gp import bnn, datasets, pvi

BATCH, NUM_CLIENTS = 200, 10


@keras.saving.register_keras_serializable()
class NoisyDense(keras.layers.Layer):
    """A dense layer whose weights are drawn anew at every step."""

    def __init__(self, units: int, relu: bool) -> None:
        super().__init__()
        self.units, self.relu = units, relu

    def build(self, shape: Any) -> None:
        size = (shape[-1] + 1, self.units)
        self.mean = self.add_weight(shape=size, initializer="glorot_uniform")
        start = keras.initializers.Constant(np.log(0.03))
        self.log_scale = self.add_weight(shape=size, initializer=start)

    def call(self, h: tf.Tensor) -> tf.Tensor:
        noise = tf.random.normal(tf.shape(self.mean))
        weights = self.mean + tf.exp(self.log_scale) * noise
        a = h @ weights[:-1] + weights[-1]
        return tf.nn.relu(a) if self.relu else a


def keras_seconds(X: np.ndarray, Y: np.ndarray, epochs: int) -> float:
    """Mean seconds of an epoch of ``fit``."""
    model = keras.Sequential([NoisyDense(200, relu=True), NoisyDense(10, relu=False)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, jit_compile=True)
    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    start = time.perf_counter()
    model.fit(X, Y, batch_size=BATCH, epochs=epochs, verbose=0)
    return (time.perf_counter() - start) / epochs


def federated_seconds(X: np.ndarray, Y: np.ndarray, rounds: int, seed: int) -> float:
    """Mean seconds of a synchronous round in which every client makes one epoch."""
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    shards = datasets.partition_iid(X, Y, NUM_CLIENTS, seed)
    update = pvi.VariationalUpdate(epochs=1, batch_size=BATCH, learning_rate=2e-3)
    server = pvi.Server(net.prior(), pvi.make_clients(net, shards, update, seed), seed=seed)
    first = pvi.fit(server)[-1].seconds
    return float((pvi.fit(server, rounds=rounds)[-1].seconds - first) / rounds)


def main(arguments: argparse.Namespace) -> None:
    data = datasets.load_mnist(arguments.data)
    size, repeats = (6000, 1) if arguments.quick else (60_000, 3)
    X, Y = data.X[:size], data.Y[:size]
    plain = keras_seconds(X, Y, repeats)
    federated = federated_seconds(X, Y, repeats, arguments.seed)
    print(f"Keras {plain:.2f} s, ten clients {federated:.2f} s: ratio {federated / plain:.2f}")
    results = {
        "summary": {"keras": plain, "federated": federated, "ratio": federated / plain},
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
