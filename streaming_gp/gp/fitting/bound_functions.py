"""The compiled functions of a bound.

Each is traced once for a kind of model, with unknown data shapes, so that a stream of any length
neither retraces nor leaks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.base import BoundOfProjections
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import ApproximatesByPoints, LocalBound, ShowsErrors
from streaming_gp.gp.bounds.sites import Sites, SiteSteps
from streaming_gp.gp.fitting.absorbed import Left
from streaming_gp.gp.fitting.collapsed import (
    LossAndGradient,
    collapsed_objective,
    power_of,
    site_functions,
)
from streaming_gp.gp.process.graphs import FLOAT, spec
from streaming_gp.gp.process.observations import Observations


class BoundFunctions:
    """Objective, sites and factor of one bound for one model.

    Where the points are is said by offsets [M D] from ``problem.Z_start``, and where ε is by
    the optimiser variables [V] of the hyperparameter strategy.

    :param bound: The local bound.
    :param local: The model.
    """

    def __init__(self, bound: LocalBound, local: LocalModel) -> None:
        self.bound = bound
        self.local = local
        self.is_conjugate = site_rules.is_conjugate(local.likelihood)
        self.collapsed = collapsed_objective(bound, local)
        self.at_sites = site_functions(bound, local)
        self._compiled: dict[tuple[str, bool], Any] = {}

    # ---- what a fit asks for ----

    def objective(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites, move: bool
    ) -> tuple[float, np.ndarray]:
        """The negative free energy, and its gradient.

        :param move: Whether the gradient is by the offsets and the variables, one after another;
            otherwise it is by the variables alone.
        """
        collapsed = closed_form(self, problem)
        if collapsed is not None:
            return collapsed(offsets, variables, problem, move)
        if self.at_sites is not None:
            return self.at_sites.loss_and_gradient(offsets, variables, problem, sites, move)
        function = self._by_all if move else self._by_epsilon
        loss, gradient = self._call(function, problem, offsets, variables, problem, sites)
        return float(loss), gradient.numpy()

    def value(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> float:
        """The free energy."""
        collapsed = closed_form(self, problem)
        if collapsed is not None:  # the graph of fits, whose gradient costs little
            return -collapsed(offsets, variables, problem, True)[0]
        if self.at_sites is not None:
            return -self.at_sites.loss(offsets, variables, problem, sites)
        return float(self._call(self._free_energy, problem, offsets, variables, problem, sites))

    def objective_at(
        self, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[float, np.ndarray]:
        """The negative bound at one ε [E], and its gradient by the offsets alone."""
        loss, gradient = self._call(self._by_offsets, problem, epsilon, offsets, problem, sites)
        return float(loss), gradient.numpy()

    def rested_sites(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        steps: SiteSteps,
    ) -> tuple[Sites, int]:
        """Sites after fixed-point steps, averaged over ε, and how many of them were cut off.

        :raises NumericalError: if a step is not finite.
        """
        if self.at_sites is not None:
            return self.at_sites.rested(offsets, variables, problem, sites, steps)
        numbers = (np.asarray(number, float) for number in steps)
        arguments = (offsets, variables, problem, sites, *numbers)
        found, clipped, is_finite = self._call(self._rested_sites, problem, *arguments)
        if not is_finite:
            raise NumericalError("the local posterior covariance gave non-finite sites")
        return found, int(clipped)

    def known_sites(self, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem) -> Sites:
        """The sites of Gaussian noise at ε [E]."""
        found: Sites = self._call(self._known_sites, problem, epsilon, offsets, problem)
        return found

    def pseudo_observations(
        self,
        epsilon: np.ndarray,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
    ) -> tuple[Observations, Left]:
        """What the ledger keeps of a solution, and what its points leave of the data.

        :raises NumericalError: if a covariance was not positive.
        """
        arguments = (epsilon, offsets, variables, problem, sites)
        summary = self._call(self._summary, problem, *arguments)
        found = self.bound.pseudo_observations(self.local, summary, problem, sites)
        left, given = Left(), (self.local, summary, problem, sites)
        if isinstance(self.bound, ApproximatesByPoints):
            left = left._replace(unexplained=self.bound.unexplained(*given))
        if isinstance(self.bound, ShowsErrors):
            left = left._replace(shown_error=self.bound.shown_error(*given))
        return found, left

    # ---- what is compiled ----

    def _call(self, function: Callable[..., Any], problem: Problem, *arguments: Any) -> Any:
        key = function.__name__, bool(problem.earlier)
        if key not in self._compiled:
            signature = _signature(self.local, *key)
            self._compiled[key] = self.local.graphs_of_fits.compiled(
                function, *signature, of=self.bound
            )
        return self._compiled[key](*arguments)

    def _free_energy(
        self, offsets: tf.Tensor, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        local, draws = self.local, _draws(self.local, variables, problem)
        bound = self.bound.free_energy(local, draws, problem.moved(offsets), problem, sites)
        with local.parameters.substituted(draws[0]):
            return bound - local.hyperparameters.penalty(variables, local.parameters)

    def _by_all(
        self, offsets: tf.Tensor, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch((offsets, variables))
            loss = -self._free_energy(offsets, variables, problem, sites)
        gradients = tape.gradient(loss, (offsets, variables), unconnected_gradients="zero")
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(
        self, offsets: tf.Tensor, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(variables)
            loss = -self._free_energy(offsets, variables, problem, sites)
        return loss, tape.gradient(loss, variables, unconnected_gradients="zero")

    def _by_offsets(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(offsets)
            Z = problem.moved(offsets)
            loss = -self.bound.free_energy(self.local, epsilon[None], Z, problem, sites)
        return loss, tape.gradient(loss, offsets, unconnected_gradients="zero")

    def _rested_sites(
        self,
        offsets: tf.Tensor,
        variables: tf.Tensor,
        problem: Problem,
        sites: Sites,
        *steps: tf.Tensor,
    ) -> tuple[Sites, tf.Tensor, tf.Tensor]:
        local, bound, Z = self.local, self.bound, problem.moved(offsets)
        draws = _draws(local, variables, problem)
        step = partial(bound.next_sites, local, draws, Z, problem)
        if isinstance(bound, BoundOfProjections):
            shared = bound.projections(local, draws, Z, problem)
            step = partial(bound.next_sites_of, local, draws, shared, problem)
        return site_rules.rested(step, sites, *steps)

    def _known_sites(self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem) -> Sites:
        return self.bound.known_sites(self.local, epsilon, problem.moved(offsets), problem)

    def _summary(
        self,
        epsilon: tf.Tensor,
        offsets: tf.Tensor,
        variables: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> Any:
        Z, draws = problem.moved(offsets), _draws(self.local, variables, problem)
        return self.bound.summary(self.local, draws, epsilon, Z, problem, sites)


def closed_form(functions: BoundFunctions, problem: Problem) -> LossAndGradient | None:
    """The objective in closed form, which asks for no sites, where there is one."""
    is_known = not problem.earlier or power_of(functions.bound) is not None
    return functions.collapsed if is_known else None


def initial_sites(functions: BoundFunctions, offsets: np.ndarray, problem: Problem) -> Sites:
    """Exact sites of Gaussian noise; else sites that say next to nothing."""
    local = functions.local
    if functions.is_conjugate:
        return functions.known_sites(problem.location, offsets, problem)
    zeros = tf.zeros([problem.X.shape[0], local.gp.num_latent], FLOAT)
    return site_rules.clipped(Sites(zeros, zeros))


def _draws(local: LocalModel, variables: tf.Tensor, problem: Problem) -> tf.Tensor:
    """Values of ε [S, E]."""
    return local.hyperparameters.draw(variables, problem.location, problem.scale, problem.noise)


def _signature(local: LocalModel, name: str, takes_over: bool) -> tuple[Any, ...]:
    """The arguments of a function that is compiled, of any sizes."""
    epsilon, numbers = spec(local.parameters.size), spec(None)
    problem = local.problem_spec(takes_over)
    sites = Sites(spec(None, local.gp.num_latent), spec(None, local.gp.num_latent))
    special = {
        "_by_offsets": (epsilon, numbers, problem, sites),
        "_known_sites": (epsilon, numbers, problem),
        "_rested_sites": (numbers, numbers, problem, sites, spec(), spec(), spec()),
        "_summary": (epsilon, numbers, numbers, problem, sites),
    }
    return special.get(name, (numbers, numbers, problem, sites))
