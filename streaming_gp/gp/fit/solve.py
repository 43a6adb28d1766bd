"""Maximises the local free energy of one batch: site steps and optimiser runs in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.gp.fit.frozen import FrozenObjective
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import NO_SITES, Objective, Problem
from streaming_gp.gp.fit.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.fit.sites import Sites, is_conjugate, nothing_said


@dataclass(frozen=True, eq=False)
class Solution:
    """An optimum of the local free energy.

    :param problem: The batch under its cavity.
    :param offsets: Those of the points [M D].
    :param variables: Those of ε [V].
    :param sites: Of Gaussian noise none.
    :param q: q(ε); None where ε is a point.
    :param epsilon: The point estimate of ε [E].
    :param free_energy: In nats, without what is known already.
    :param iterations: The number of optimiser iterations.
    :param clipped_sites: The number of sites whose negative precision was cut off.
    """

    problem: Problem
    offsets: np.ndarray
    variables: np.ndarray
    sites: Sites
    q: expfam.Gaussian | None
    epsilon: np.ndarray
    free_energy: float
    iterations: int = 0
    clipped_sites: int = 0

    @property
    def Z(self) -> np.ndarray:
        """The points [M, D]."""
        return np.asarray(self.problem.moved(self.offsets))


class Solver:
    """Maximises the local free energy of one batch under its cavity."""

    def __init__(
        self,
        objective: Objective | FrozenObjective,
        local: LocalModel,
        optimiser: LocalOptimiser,
        problem: Problem,
    ) -> None:
        self.objective = objective
        self.local = local
        self.optimiser = optimiser
        self.problem = problem
        self._is_conjugate = is_conjugate(local.likelihood)

    def solve(self, report: Report, move: bool) -> Solution:
        """The optimum of the local free energy.

        :param report: Called with (iteration, free energy).
        :param move: Whether the points may move.
        :raises NumericalError: if the bound is not finite.
        """
        local, optimiser, problem = self.local, self.optimiser, self.problem
        offsets, has_seen_data = np.zeros(problem.Z.size), bool(problem.earlier)
        variables = local.hyperparameters.initial(local.parameters, has_seen_data)
        sites = self._sites_at_first()
        rounds = 1 if self._is_conjugate else optimiser.rounds
        most = max(1, optimiser.iterations(sum(len(one.Z) for one in problem.earlier)) // rounds)
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._at_rest(offsets, variables, sites)
            run = self._run(offsets, variables, sites, most, report, iterations, move)
            offsets, variables, steps = run
            iterations += steps
            if move:
                offsets = self._relocated(offsets, variables, sites, rounds)
            elif steps == 0:
                break  # the sites rest at an optimum
        more = optimiser.more_iterations(most) if move and rounds == 1 else 0
        if more > 0 and iterations == most:  # over q(ε) alone
            run = self._run(offsets, variables, sites, more, report, most, move=False)
            _, variables, steps = run
            iterations += steps
        sites, clipped = self._at_rest(offsets, variables, sites)
        return self._solution(offsets, variables, sites, iterations, clipped)

    def at_rest(self) -> Solution:
        """The sites at the present q(ε) and the points at the start: nothing is optimised."""
        offsets = np.zeros(self.problem.Z.size)
        variables = self.local.hyperparameters.unmoved(self.local.parameters.size)
        sites, clipped = self._at_rest(offsets, variables, self._sites_at_first())
        return self._solution(offsets, variables, sites, 0, clipped)

    def _sites_at_first(self) -> Sites:
        if self._is_conjugate:
            return NO_SITES
        return nothing_said(len(self.problem.X), self.local.gp.num_latent)

    def _at_rest(
        self, offsets: np.ndarray, variables: np.ndarray, sites: Sites
    ) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites until they rest; also counts clipped ones."""
        if self._is_conjugate:
            return sites, 0
        most = self.optimiser.site_steps
        return self.objective.rest(offsets, variables, self.problem, sites, most)[:2]

    def _run(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        sites: Sites,
        most: int,
        report: Report,
        before: int,
        move: bool,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """One optimiser run, with the sites held: offsets, variables, iterations (``most``).

        :param before: The number of iterations that there were.
        """
        moving = offsets if move else np.zeros(0)
        limits: list[Any] = [(None, None)] * len(moving)
        limits += self.local.hyperparameters.limits(self.local.parameters)
        if not limits:
            return offsets, variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            places, rest = point[: len(moving)], point[len(moving) :]
            at = places if move else offsets
            loss, gradient = self.objective(at, rest, self.problem, sites)
            return loss, gradient[len(gradient) - len(point) :]

        def onward(iteration: int, free_energy: float) -> None:
            report(before + iteration, free_energy)

        start = np.concatenate([moving, variables])
        method, tolerance = self.optimiser.method, self.optimiser.tolerance
        point, steps = minimise(loss_and_gradient, start, limits, method, most, onward, tolerance)
        return point[: len(moving)] if move else offsets, point[len(moving) :], steps

    def _relocated(
        self, offsets: np.ndarray, variables: np.ndarray, sites: Sites, rounds: int
    ) -> np.ndarray:
        """Locations moved on at the centre of q(ε), which is one value of ε instead of S.

        Moved before q(ε) they would settle where the old ε wants them, and hold it there.
        """
        steps = self.optimiser.location_iterations // rounds
        if steps == 0:
            return offsets
        centre = replace(self.problem, noise=np.zeros_like(self.problem.noise[:1]))

        def loss_and_gradient(places: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.objective(places, variables, centre, sites)
            return loss, gradient[: len(places)]

        return minimise(loss_and_gradient, offsets, None, self.optimiser.method, steps)[0]

    def _solution(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        sites: Sites,
        iterations: int,
        clipped: int,
    ) -> Solution:
        problem, strategy = self.problem, self.local.hyperparameters
        loss, _ = self.objective(offsets, variables, problem, sites)
        q: Any = strategy.posterior(variables, problem.location, problem.scale)
        if q is None:
            given = variables, problem.location, problem.scale, problem.noise
            epsilon = strategy.draw(*map(tf.constant, given))[0].numpy()
        else:
            epsilon = np.asarray(q.mean)
        return Solution(
            problem, offsets, variables, sites, q, epsilon,
            -loss - self.objective.remembered, iterations, clipped,
        )  # fmt: skip
