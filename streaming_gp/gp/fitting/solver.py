"""Maximises the local free energy of one batch, or evaluates it where nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.bound_functions import BoundFunctions, closed_form, initial_sites
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.memory import DivergenceGained
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.process import Process


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch at hand.

    :param name: The name of its factor.
    :param data: X [N, D] and Y [N, P], validated.
    :param seed: The seed of the common random numbers over ε.
    :param report: Called with (iteration, free energy) as a fit goes on.
    :param hold: Whether points that the batch has had before stay where they are.
    :param learn: Whether anything is optimised; otherwise it is absorbed at the present q(ε).
    :param epsilon: The ε [E] at which it is absorbed, where a point was learned a moment ago.
    :param sites: Where sites start that are found at one ε; with nothing said by default.
    """

    name: str
    data: Data
    seed: int
    report: Report = lambda *_: None
    hold: bool = False
    learn: bool = True
    epsilon: np.ndarray | None = None
    sites: Sites | None = None


class FitReport(NamedTuple):
    """What a local fit reports beside its factor.

    :param epsilon: The point estimate of ε [E].
    :param free_energy: The local free energy, in nats.
    :param iterations: The number of optimiser iterations.
    :param nugget: The variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: The number of sites whose negative precision was cut off.
    :param unexplained: The variance of f at the data that the points leave, over that of the
        sites: a mean.
    :param shown_error: The standard deviation of errors at the points that the data show, over the
        predicted one; None where the bound does not know.
    """

    epsilon: np.ndarray
    free_energy: float
    iterations: int
    nugget: float
    clipped_sites: int
    unexplained: float = 0.0
    shown_error: float | None = None


class Solution(NamedTuple):
    """An optimum of the local free energy."""

    problem: Problem
    offsets: np.ndarray
    variables: np.ndarray
    sites: Sites
    hyperparameters: expfam.Gaussian | None
    report: FitReport

    def factor_of_epsilon(self, cavity: Process) -> expfam.Factor | None:
        """``q(ε)`` over that of the cavity; None where ε is a point."""
        q, q_cavity = self.hyperparameters, cavity.hyperparameters
        return None if q is None or q_cavity is None else (q / q_cavity).as_arrays()


NO_SITES = Sites(np.zeros((0, 0)), np.zeros((0, 0)))
"""Where a bound in closed form asks for none, and where they are still to be looked up."""


class Solver:
    """Solves the problems of one model under one bound.

    :param bound: The bound's compiled functions.
    :param factorisations: Of its processes.
    :param optimiser: How the bound is maximised.
    """

    def __init__(
        self, bound: BoundFunctions, factorisations: Factorisations, optimiser: LocalOptimiser
    ) -> None:
        self.bound = bound
        self.factorisations = factorisations
        self.local: LocalModel = bound.local
        self.divergence_gained = DivergenceGained(self.local)
        self.optimiser = optimiser

    def solve(self, problem: Problem, cavity: Process, batch: Batch, move: bool) -> Solution:
        """The optimum of the local free energy; where the batch learns nothing, its start.

        :param problem: The batch under its cavity.
        :param cavity: Prior times all other factors.
        :param move: Whether the points may move.
        :raises NumericalError: if the bound is not finite.
        """
        offsets = np.zeros(int(tf.size(problem.Z_start)))
        if not batch.learn:
            return self.at_rest(problem, cavity, batch.sites)
        return self._optimum(problem, cavity, offsets, batch, move)

    def at_rest(self, problem: Problem, cavity: Process, sites: Sites | None = None) -> Solution:
        """The sites at the present q(ε) and the points at the start: nothing is optimised.

        :param sites: Where the sites start, if they are to start elsewhere.
        """
        offsets = np.zeros(int(tf.size(problem.Z_start)))
        variables = self.local.hyperparameters.unmoved(self.local.parameters.size)
        sites = initial_sites(self.bound, offsets, problem) if sites is None else sites
        sites, clipped = self._refreshed(offsets, variables, problem, sites)
        value = self.bound.value(offsets, variables, problem, sites)
        found = self._described(problem, cavity, offsets, variables, sites, value, 0, clipped)
        return found._replace(hyperparameters=cavity.hyperparameters)  # bit for bit

    def sites_of(self, solution: Solution) -> Sites:
        """The sites of a solution, at its ε where noise is Gaussian."""
        if solution.sites is not NO_SITES:
            return solution.sites
        return self.bound.known_sites(solution.report.epsilon, solution.offsets, solution.problem)

    def _optimum(
        self,
        problem: Problem,
        cavity: Process,
        offsets: np.ndarray,
        batch: Batch,
        move: bool,
    ) -> Solution:
        """Site steps and optimiser runs in turn; exact sites need one run only."""
        has_seen_data = bool(cavity.pseudo_observations)
        variables = self.local.hyperparameters.initial(self.local.parameters, has_seen_data)
        sites = NO_SITES
        if move or closed_form(self.bound, problem) is None:
            sites = initial_sites(self.bound, offsets, problem)
        rounds = 1 if self.bound.is_conjugate else self.optimiser.rounds
        most = max(1, self.optimiser.iterations(cavity.num_pseudo_points) // rounds)
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._refreshed(offsets, variables, problem, sites)
            onward = partial(_report_from, batch.report, iterations)
            offsets, variables, steps = self._optimised(
                offsets, variables, problem, sites, most, onward, move
            )
            iterations += steps
            if move:
                offsets = self._relocated(offsets, variables, problem, sites, rounds)
            elif steps == 0:
                break  # the sites rest at an optimum
        more = self.optimiser.more_iterations(most) if move and rounds == 1 else 0
        if more > 0 and iterations == most:
            onward = partial(_report_from, batch.report, most)
            _, variables, steps = self._optimised(
                offsets, variables, problem, sites, more, onward, move, hold=True
            )
            iterations += steps
        sites, clipped = self._refreshed(offsets, variables, problem, sites)
        loss, _ = self.bound.objective(offsets, variables, problem, sites, move)
        if self.bound.is_conjugate:
            sites = NO_SITES  # those of where ε was
        return self._described(
            problem, cavity, offsets, variables, sites, -loss, iterations, clipped
        )

    def _described(
        self,
        problem: Problem,
        cavity: Process,
        offsets: np.ndarray,
        variables: np.ndarray,
        sites: Sites,
        objective: float,
        iterations: int,
        clipped: int,
    ) -> Solution:
        q, epsilon = self._hyperparameters(variables, problem)
        earlier = Process(cavity.compact.pseudo_observations)  # as in the problem
        past = partial(self.factorisations.log_normaliser, epsilon, earlier)
        gained = partial(self.divergence_gained, epsilon, problem)
        free_energy = objective - float(self.local.hyperparameters.memory(past, gained))
        found = FitReport(epsilon, free_energy, iterations, float(problem.nugget), clipped)
        return Solution(problem, offsets, variables, sites, q, found)

    def _refreshed(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites until they rest; also counts clipped ones."""
        if self.bound.is_conjugate:
            return sites, 0
        steps = self.optimiser.steps_of_sites
        return self.bound.rested_sites(offsets, variables, problem, sites, steps)

    def _optimised(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        most: int,
        report: Report,
        move: bool,
        hold: bool = False,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """One optimiser run, with the sites held: offsets, variables, iterations (``most``).

        :param move: Whether the points may move.
        :param hold: Whether they rest all the same, with the function that is there for moves.
        """
        moves = move and not hold
        moving = offsets if moves else np.zeros(0)
        limits: list[Any] = [(None, None)] * len(moving)
        limits += self.local.hyperparameters.limits(self.local.parameters)
        if not limits:
            return offsets, variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            places, rest = point[: len(moving)], point[len(moving) :]
            at = places if moves else offsets
            loss, gradient = self.bound.objective(at, rest, problem, sites, move)
            return loss, gradient[len(gradient) - len(point) :]

        start = np.concatenate([moving, variables])
        method, tolerance = self.optimiser.method, self.optimiser.tolerance
        point, steps = minimise(loss_and_gradient, start, limits, method, most, report, tolerance)
        return point[: len(moving)] if moves else offsets, point[len(moving) :], steps

    def _relocated(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        rounds: int,
    ) -> np.ndarray:
        """Locations moved on at the centre of q(ε), which is one value of ε instead of S.

        Moved before q(ε) they would settle where the old ε wants them, and hold it there.
        """
        steps = self.optimiser.location_iterations // rounds
        if steps == 0:
            return offsets
        _, epsilon = self._hyperparameters(variables, problem)
        objective = partial(self.bound.objective_at, epsilon, problem=problem, sites=sites)
        return minimise(objective, offsets, None, self.optimiser.method, steps)[0]

    def _hyperparameters(
        self, variables: np.ndarray, problem: Problem
    ) -> tuple[expfam.Gaussian | None, np.ndarray]:
        """q(ε), or None, and the point estimate of ε."""
        strategy = self.local.hyperparameters
        q: Any = strategy.posterior(variables, problem.location.numpy(), problem.scale.numpy())
        if q is not None:
            return q, np.asarray(q.mean)
        rest = tf.constant(variables, tf.float64)
        draws = strategy.draw(rest, problem.location, problem.scale, problem.noise)
        return None, draws[0].numpy()


def _report_from(report: Report, start: int, iteration: int, free_energy: float) -> None:
    report(start + iteration, free_energy)
