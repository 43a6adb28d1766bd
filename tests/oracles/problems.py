"""Problems of local fits that no fit has come before."""

from dataclasses import replace

import gpflow
import numpy as np
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp.bounds.problem import Problem
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from tests.oracles.builders import NOISE, kernel, mean_of_two

NUGGET, COLUMNS = 0.05, 2


def model_of_columns(pseudo_points, hyperparameters, groups):
    """Of two outputs: one group of both with one kernel, or one group of each with its own."""
    of_all = kernel()
    if groups == COLUMNS:
        other = gpflow.kernels.Matern52(variance=0.5, lengthscales=[0.7, 1.3])
        of_all = gpflow.kernels.SeparateIndependent([of_all, other])
    return sgp.StreamingGP(
        of_all, gpflow.likelihoods.Gaussian(NOISE), mean_of_two(),
        pseudo_points=pseudo_points, hyperparameters=hyperparameters,
    )  # fmt: skip


def kernels_of(model):
    """The kernel of each column."""
    separate = isinstance(model.kernel, gpflow.kernels.SeparateIndependent)
    return model.kernel.kernels if separate else COLUMNS * [model.kernel]


def known_points(rng, number, groups=1):
    """q(a) = N(m, S Sᵀ) of points that rest on no others, with an upper triangle S."""
    scale = 0.3 * np.triu(rng.standard_normal((groups, number, number))) + 0.5 * np.eye(number)
    mean = 2.0 + 0.5 * rng.standard_normal((groups, number, COLUMNS // groups))
    Z = rng.uniform(-2.0, 2.0, (number, 2))
    return ConditionalPseudoObservations(Z, mean, np.zeros((groups, number, 0)), scale, NUGGET)


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
        yield (X, Y[:, [column]]), *(_of_column(one, column) for one in known)


def _of_column(one, column):
    g, c = divmod(column, one.intercept.shape[2])
    mine = slice(g, g + 1)
    return replace(
        one, intercept=one.intercept[mine, :, c : c + 1], slope=one.slope[mine],
        scale=one.scale[mine],
    )  # fmt: skip
