"""Builds the problem of a local fit: cavity, data, where points start, common random numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import Exact
from streaming_gp.gp.bounds.problem import Earlier, Problem
from streaming_gp.gp.bounds.sites import SiteSteps
from streaming_gp.gp.fitting.bound_functions import BoundFunctions, initial_sites
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.cavity_functions import CavityFunctions
from streaming_gp.gp.hyperparameters import Limits
from streaming_gp.gp.process.graphs import FLOAT
from streaming_gp.gp.process.observations import Observations
from streaming_gp.gp.process.process import Process

NUGGET = 1e-6
"""Variance of the pseudo-points' white noise, relative to their mean cavity variance."""
ONE_STEP = SiteSteps(most=1, damping=1.0, tolerance=0.0)

Data = tuple[np.ndarray, np.ndarray]
Place = Callable[[Candidates], np.ndarray]
"""Chooses pseudo-inputs [M, D]."""


class ProblemBuilder:
    """Builds the problems of one model.

    :param bound: The bound's compiled functions.
    :param cavity: The cavity's compiled functions.
    """

    def __init__(self, bound: BoundFunctions, cavity: CavityFunctions) -> None:
        self._bound = bound
        self._cavity = cavity
        self._local = bound.local

    def with_data(
        self,
        data: Data,
        noise: np.ndarray,
        cavity: Process,
        place: Place,
        at: Observations | None,
        takes_over: bool = False,
    ) -> Problem:
        """The problem of a batch.

        :param data: X [N, D] and Y [N, P], validated.
        :param noise: Common random numbers over ε [S, E].
        :param cavity: Prior times all other factors.
        :param place: Chooses where the points start.
        :param at: The points to start from instead, if the batch has had some before.
        :param takes_over: Whether the points take over what the cavity is conditioned on, so that
            this enters the problem as observations.
        """
        hyperparameters, parameters = self._local.hyperparameters, self._local.parameters
        location, scale = hyperparameters.location_scale(cavity.hyperparameters, parameters)
        present = cavity.compact.pseudo_observations
        problem = self._blank(() if takes_over else present)._replace(
            X=tf.constant(data[0], FLOAT),
            Y=tf.constant(data[1], FLOAT),
            location=tf.constant(location, FLOAT),
            scale=tf.constant(scale, FLOAT),
            noise=tf.constant(noise, FLOAT),
        )
        earlier = present if takes_over else ()
        if takes_over:
            problem = problem._replace(earlier=self._earlier(present))
        if type(self._bound.bound) is Exact:
            return self._at_every_input(problem)
        if at is not None and at.nugget > 0.0:
            return self._at(problem, at)
        candidates = np.concatenate([*(one.Z for one in earlier), data[0]])
        return self._with_points(problem, location, candidates, place)

    # ---- parts ----

    def _stack(self, observations: tuple[Observations, ...]) -> object:
        return self._local.gp.stack(observations, self._local.input_dim)

    def _earlier(self, observations: tuple[Observations, ...]) -> Earlier:
        return Earlier(self._stack(observations), tf.zeros([], FLOAT))

    def _blank(self, conditioned_on: tuple[Observations, ...]) -> Problem:
        """No data and no points: a place to start from."""
        E, D = self._local.parameters.size, self._local.input_dim
        point = tf.zeros([1, D], FLOAT)
        return Problem(
            X=point,
            Y=tf.zeros([1, self._local.output_dim], FLOAT),
            stack=self._stack(conditioned_on),
            location=tf.zeros([E], FLOAT),
            scale=tf.zeros([E, E], FLOAT),
            noise=tf.constant(self._local.hyperparameters.noise(E, 0), FLOAT),
            Z_start=point,
            Z_unit=tf.ones([D], FLOAT),
            nugget=tf.zeros([], FLOAT),
        )

    def _at_every_input(self, problem: Problem) -> Problem:
        """The problem with a point at every input: nothing is chosen, and no nugget is needed."""
        return problem._replace(
            Z_start=problem.X, Z_unit=tf.constant(spread(problem.X.numpy()), FLOAT)
        )

    def _at(self, problem: Problem, at: Observations) -> Problem:
        """The problem with points that a batch has had before."""
        nugget = tf.constant(np.array(at.nugget), FLOAT)
        if problem.earlier:
            problem = problem._replace(earlier=problem.earlier._replace(shared_nugget=nugget))
        return problem._replace(
            Z_start=tf.constant(at.Z, FLOAT),
            Z_unit=tf.constant(spread(problem.X.numpy()), FLOAT),
            nugget=nugget,
        )

    def _with_points(
        self, problem: Problem, epsilon: np.ndarray, candidates: np.ndarray, place: Place
    ) -> Problem:
        """The problem with points that start among the candidates [N, D].

        :raises NumericalError: if the cavity covariance is not finite.
        """
        inputs = tf.constant(candidates, FLOAT)
        V, variance = self._cavity.features(epsilon, problem.stack, inputs)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        problem = problem._replace(
            Z_unit=tf.constant(spread(candidates), FLOAT),
            nugget=tf.constant(np.array(NUGGET * np.mean(variance)), FLOAT),
        )
        found = Candidates(
            candidates,
            variance.numpy(),
            lambda some: self._cavity.columns(epsilon, inputs, V, some).numpy(),
            lambda some: self._covariances(epsilon, inputs, V, some),
            lambda: self._site_weights(problem),
            num_present=len(candidates) - int(problem.X.shape[0]),
        )
        return problem._replace(Z_start=tf.constant(place(found), FLOAT))

    def _covariances(
        self, epsilon: np.ndarray, X: tf.Tensor, V: tf.Tensor, some: np.ndarray
    ) -> np.ndarray:
        """Cavity covariances [K, K] of K of the inputs."""
        X, V = tf.gather(X, some), tf.gather(V, some, axis=2)
        return np.asarray(self._cavity.columns(epsilon, X, V, np.arange(len(some))))

    def _site_weights(self, problem: Problem) -> np.ndarray:
        """Site precisions [N] at the cavity, summed over latent functions."""
        bound, parameters = self._bound, self._local.parameters
        problem = problem._replace(Z_start=problem.X[:1])
        offsets = np.zeros(self._local.input_dim)
        sites = initial_sites(bound, offsets, problem)
        if not bound.is_conjugate:
            variables = self._local.hyperparameters.initial(parameters, False)
            sites, _ = bound.rested_sites(offsets, variables, problem, sites, ONE_STEP)
        return np.asarray(sites.precision).sum(axis=1)


def spread(X: np.ndarray) -> np.ndarray:
    """Standard deviation of each input [D]; 1 where it is constant."""
    spread = np.std(X, axis=0)
    return np.where(spread > 0.0, spread, 1.0)


def limits_within(X: np.ndarray, start: np.ndarray, unit: np.ndarray) -> list[Limits]:
    """Limits of offsets [M D], in a unit [D], that keep places within the range of X [N, D].

    Under a kernel that grows without bound places would move on for ever, until rounding is all
    that is left.
    """
    least, most = (np.ravel((edge - start) / unit) for edge in (X.min(axis=0), X.max(axis=0)))
    return list(zip(least, most, strict=True))
