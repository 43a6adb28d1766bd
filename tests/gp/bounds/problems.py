"""Problems of local fits that no fit has come before."""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.problem import Problem
from streaming_gp.gp.process.pseudo_observations import ConditionalPseudoObservations

NUGGET, COLUMNS = 0.05, 2


def known_points(rng, number):
    """q(a) = N(m, S Sᵀ) of points that rest on no others, with an upper triangle S."""
    scale = 0.3 * np.triu(rng.standard_normal((1, number, number))) + 0.5 * np.eye(number)
    mean = 2.0 + 0.5 * rng.standard_normal((1, number, COLUMNS))
    Z = rng.uniform(-2.0, 2.0, (number, 2))
    return ConditionalPseudoObservations(Z, mean, np.zeros((1, number, 0)), scale, NUGGET)


def problem_of(local, data, known, rng, num_points=6):
    """A batch of two inputs and two outputs at new points, where others are known."""
    empty, nugget = tf.zeros([0], tf.float64), tf.constant(NUGGET, tf.float64)
    Z = tf.constant(rng.uniform(-2.0, 2.0, (num_points, 2)))
    at = tf.constant(local.parameters.value())
    return Problem(
        *map(tf.constant, data), local.gp.stack((known,), 2), at, empty, empty,
        Z, tf.ones([2], tf.float64), nugget,
    )  # fmt: skip


def columns_of(data, *known):
    """Data and points for each column of outputs alone."""
    X, Y = data
    for column in range(COLUMNS):
        mine = [column]
        yield (X, Y[:, mine]), *(replace(k, intercept=k.intercept[:, :, mine]) for k in known)
