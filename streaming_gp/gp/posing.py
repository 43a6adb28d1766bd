"""Poses the problem of a local update: cavity, data, where points start, common random numbers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import FLOAT
from streaming_gp.gp.factor import Row
from streaming_gp.gp.local_functions import LocalFunctions
from streaming_gp.gp.problem import Problem
from streaming_gp.gp.pseudo_points import Candidates, greedy_variance
from streaming_gp.gp.sites import Sites

NUGGET = 1e-6
"""Variance of the pseudo-points' white noise, relative to their mean cavity variance."""

Data = tuple[np.ndarray, np.ndarray]
Rows = tuple[Row, ...]


def with_data(
    functions: LocalFunctions,
    data: Data,
    noise: np.ndarray,
    kept: Rows,
    absorbed: Rows,
    q: expfam.Gaussian | None,
    at: Row | None,
) -> Problem:
    """The problem of a batch.

    :param data: X [N, D] and Y [N, P], validated.
    :param noise: common random numbers over ε [S, E].
    :param kept: rows of the cavity.
    :param absorbed: rows that the new points take over.
    :param q: q_cav(ε), or None where ε is a point.
    :param at: where the points start, if the batch has had some before.
    """
    X, Y = (tf.constant(array, FLOAT) for array in data)
    location, scale = functions.hyperparameters.location_scale(q, functions.epsilon)
    problem = _blank(functions)._replace(
        X=X,
        Y=Y,
        stack=functions.gp.stack(kept, functions.input_dim),
        absorbed=functions.gp.stack(absorbed, functions.input_dim),
        location=tf.constant(location, FLOAT),
        scale=tf.constant(scale, FLOAT),
        noise=tf.constant(noise, FLOAT),
    )
    if at is not None and at.nugget > 0.0:
        nugget = tf.constant(at.nugget, FLOAT)
        return problem._replace(
            Z_start=tf.constant(at.Z, FLOAT),
            Z_unit=tf.constant(_spread(data[0]), FLOAT),
            nugget=nugget,
            tie=nugget if absorbed else tf.zeros_like(nugget),
        )
    candidates = np.concatenate([*(row.Z for row in absorbed), data[0]])
    return _with_points(functions, problem, location, candidates, None)


def without_data(
    functions: LocalFunctions, kept: Rows, absorbed: Rows, epsilon: np.ndarray, number: int
) -> Problem:
    """The problem of carrying ``absorbed`` rows over to at most ``number`` of their points."""
    problem = _blank(functions)._replace(
        stack=functions.gp.stack(kept, functions.input_dim),
        absorbed=functions.gp.stack(absorbed, functions.input_dim),
    )
    candidates = np.concatenate([row.Z for row in absorbed])
    return _with_points(functions, problem, epsilon, candidates, number)


def _blank(functions: LocalFunctions) -> Problem:
    """No data, no rows, no points: a place to start from."""
    E, D = functions.epsilon.size, functions.input_dim
    empty = functions.gp.stack((), D)
    point = tf.zeros([1, D], FLOAT)
    return Problem(
        X=point,
        Y=tf.zeros([1, functions.output_dim], FLOAT),
        stack=empty,
        location=tf.zeros([E], FLOAT),
        scale=tf.zeros([E, E], FLOAT),
        noise=tf.constant(functions.hyperparameters.noise(E, 0), FLOAT),
        Z_start=point,
        Z_unit=tf.ones([D], FLOAT),
        nugget=tf.zeros([], FLOAT),
        absorbed=empty,
        tie=tf.zeros([], FLOAT),
    )


def _with_points(
    functions: LocalFunctions,
    problem: Problem,
    epsilon: np.ndarray,
    candidates: np.ndarray,
    number: int | None,
) -> Problem:
    """The problem with points that start at some of the candidates [N, D].

    :param number: how many; by default as the strategy says.
    :raises NumericalError: if the cavity covariance is not finite.
    """
    inputs = tf.constant(candidates, FLOAT)
    V, variance = functions.features(epsilon, problem.stack, inputs)
    if not np.isfinite(variance).all():
        raise NumericalError("the cavity covariance at the batch is not finite")
    problem = problem._replace(
        Z_unit=tf.constant(_spread(candidates), FLOAT),
        nugget=tf.constant(NUGGET * np.mean(variance), FLOAT),
    )

    found = Candidates(
        variance.numpy(),
        lambda some: functions.columns(epsilon, inputs, V, some).numpy(),
        lambda some: _covariances(functions, epsilon, inputs, V, some),
        lambda: _site_weights(functions, problem),
        num_present=len(candidates) - int(problem.X.shape[0]),
    )
    strategy = functions.pseudo_points
    chosen = strategy.choose(found) if number is None else greedy_variance(found, number)
    return problem._replace(Z_start=tf.gather(inputs, chosen))


def _covariances(
    functions: LocalFunctions, epsilon: np.ndarray, X: tf.Tensor, V: tf.Tensor, some: np.ndarray
) -> np.ndarray:
    """Cavity covariances [K, K] of K of the inputs."""
    X, V = tf.gather(X, some), tf.gather(V, some, axis=2)
    return np.asarray(functions.columns(epsilon, X, V, np.arange(len(some))))


def _site_weights(functions: LocalFunctions, problem: Problem) -> np.ndarray:
    """Site precisions [N] at the cavity, summed over latent functions."""
    problem = problem._replace(Z_start=problem.X[:1])
    variables = initial_variables(functions, problem, has_seen_data=False)
    sites = initial_sites(functions, variables, problem)
    if not functions.conjugate:
        sites = functions.new_sites(variables, problem, sites)
    return np.maximum(sites.precision.numpy(), 0.0).sum(axis=1)


def initial_variables(
    functions: LocalFunctions, problem: Problem, has_seen_data: bool
) -> np.ndarray:
    """Offsets of the points, if they move, and the variables of ε, where an optimiser starts."""
    moved = int(tf.size(problem.Z_start)) if functions.pseudo_points.moves else 0
    epsilon = functions.hyperparameters.initial(functions.epsilon.size, has_seen_data)
    return np.concatenate([np.zeros(moved), epsilon])


def initial_sites(functions: LocalFunctions, variables: np.ndarray, problem: Problem) -> Sites:
    """Exact sites of Gaussian noise; else sites that say next to nothing."""
    if functions.conjugate:
        return functions.exact_sites(problem.location, variables, problem)
    zeros = tf.zeros([problem.X.shape[0], functions.gp.num_latent], FLOAT)
    return site_rules.clipped(Sites(zeros, zeros))


def _spread(X: np.ndarray) -> np.ndarray:
    """Standard deviation of each input [D]; 1 where it is constant."""
    spread = np.std(X, axis=0)
    return np.where(spread > 0.0, spread, 1.0)
