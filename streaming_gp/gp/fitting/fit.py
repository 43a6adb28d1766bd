"""Fits one batch under a cavity process: the local update of streaming Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.bound_functions import BoundFunctions
from streaming_gp.gp.fitting.cavity_functions import CavityFunctions
from streaming_gp.gp.fitting.optimiser import (
    LocalOptimiser,
    Report,
    minimise,
    with_larger_nuggets,
)
from streaming_gp.gp.fitting.problem import Data, Place, ProblemBuilder
from streaming_gp.gp.fitting.projection import GPLedger, Projection
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import Observations


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch at hand.

    :param name: The name of its factor.
    :param data: X [N, D] and Y [N, P], validated.
    :param seed: The seed of the common random numbers over ε.
    :param report: Called with (iteration, free energy) as a fit goes on.
    :param hold: Whether points that the batch has had before stay where they are.
    """

    name: str
    data: Data
    seed: int
    report: Report = lambda *_: None
    hold: bool = False


class FitReport(NamedTuple):
    """What a local fit reports beside its factor.

    :param epsilon: The point estimate of ε [E].
    :param free_energy: The local free energy, in nats.
    :param iterations: The number of optimiser iterations.
    :param nugget: The variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: The number of sites whose negative precision was cut off.
    """

    epsilon: np.ndarray
    free_energy: float
    iterations: int
    nugget: float
    clipped_sites: int


class _Solution(NamedTuple):
    """An optimum of the local free energy."""

    problem: Problem
    offsets: np.ndarray
    variables: np.ndarray
    sites: Sites
    hyperparameters: expfam.Gaussian | None
    past_evidence: float
    report: FitReport


class Fitter:
    """Local fits of one model under one bound.

    :param bound: The local bound.
    :param local: The model.
    :param optimiser: How the bound is maximised.
    """

    def __init__(self, bound: LocalBound, local: LocalModel, optimiser: LocalOptimiser) -> None:
        self.local = local
        self.optimiser = optimiser
        self.bound = BoundFunctions(bound, local)
        self.cavity = CavityFunctions(local)
        self.problems = ProblemBuilder(self.bound, self.cavity)
        self.projection = Projection(local, optimiser)

    def fit(
        self,
        cavity: Process,
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> tuple[PseudoPointFactor, FitReport]:
        """Maximise the local free energy of a batch under ``cavity``, on points of its own.

        :param cavity: Prior times all other factors.
        :param batch: The batch.
        :param place: Chooses where its points start.
        :param at: The points to start from instead, if the batch has had some before.
        :param move: Whether the points move from there.
        :returns: the batch's factor and what was done.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        noise = self._noise(cavity, batch.seed)
        problem = self.problems.with_data(batch.data, noise, cavity, place, at)

        def attempt(problem: Problem) -> tuple[PseudoPointFactor, FitReport]:
            solution = self._solve(problem, cavity, batch.report, move)
            return self._factor(cavity, cavity.log_scale, solution), solution.report

        return with_larger_nuggets(attempt, problem)

    def fit_onto_shared(
        self,
        ledger: GPLedger,
        cavity: Process,
        cavity_in: Callable[[GPLedger], Process],
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        """Fit a batch and all other pseudo-observations on one set of points (PVI 2018, app. C.3).

        The others enter the bound as observations ``s ≈ Rᵀf(Z_a)``, and what they said under the
        prior is taken off again, so that the free energy is that of this batch.

        :param ledger: All factors.
        :param cavity: Prior times all other factors.
        :param cavity_in: Gives that product in a ledger whose factors are on the new points.
        :returns: the ledger on the new points, the batch's factor, and what was done.
        """
        noise = self._noise(cavity, batch.seed)
        problem = self.problems.with_data(batch.data, noise, cavity, place, at, takes_over=True)

        def attempt(problem: Problem) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
            solution = self._solve(problem, cavity, batch.report, move)
            epsilon = solution.report.epsilon
            moved = self.projection.of_ledger(ledger, epsilon, solution.offsets, problem)
            factor = self._factor(cavity_in(moved), cavity.log_scale, solution)
            return moved, factor, solution.report

        return with_larger_nuggets(attempt, problem)

    # ---- the fit ----

    def _noise(self, earlier: Process, seed: int) -> np.ndarray:
        """Common random numbers [S, E], fewer where there are many earlier points."""
        full = self.optimiser.is_full_effort(earlier.num_pseudo_points)
        return self.local.hyperparameters.noise(self.local.parameters.size, seed, full)

    def _solve(self, problem: Problem, cavity: Process, report: Report, move: bool) -> _Solution:
        """Site steps and optimiser runs in turn; exact sites need one run only."""
        size = self.local.parameters.size
        offsets = np.zeros(int(tf.size(problem.Z_start)))
        has_seen_data = bool(cavity.pseudo_observations)
        variables = self.local.hyperparameters.initial(size, has_seen_data)
        sites = self.bound.initial_sites(offsets, problem)
        rounds = 1 if self.bound.is_conjugate else self.optimiser.rounds
        most = max(1, self.optimiser.iterations(cavity.num_pseudo_points) // rounds)
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._refreshed(offsets, variables, problem, sites)
            onward = partial(_report_from, report, iterations)
            offsets, variables, steps = self._optimised(
                offsets, variables, problem, sites, most, onward, move
            )
            iterations += steps
            if move:
                offsets = self._relocated(offsets, variables, problem, sites, rounds)
        sites, clipped = self._refreshed(offsets, variables, problem, sites)
        loss, _ = self.bound.objective(offsets, variables, problem, sites, move)
        q, epsilon = self._hyperparameters(variables, problem)
        past = self.cavity.log_normaliser(epsilon, Process(cavity.pseudo_observations))
        free_energy = -loss - float(self.local.hyperparameters.past_evidence(lambda: past))
        if self.bound.is_conjugate:
            sites = self.bound.known_sites(epsilon, offsets, problem)
        found = FitReport(epsilon, free_energy, iterations, float(problem.nugget), clipped)
        return _Solution(problem, offsets, variables, sites, q, past, found)

    def _refreshed(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites until they rest; also counts clipped ones."""
        if self.bound.is_conjugate:
            return sites, 0
        rho, clipped = self.optimiser.site_damping, 0
        for _ in range(self.optimiser.site_steps):
            raw = self.bound.next_sites(offsets, variables, problem, sites)
            if not all(np.isfinite(part).all() for part in raw):
                raise NumericalError("the local posterior covariance gave non-finite sites")
            clipped = int(np.sum(raw.precision < site_rules.MIN_SITE_PRECISION))
            target = site_rules.clipped(raw)
            new = Sites(*((1 - rho) * a + rho * b for a, b in zip(sites, target, strict=True)))
            change = max(float(np.max(np.abs(a - b))) for a, b in zip(sites, new, strict=True))
            sites = new
            if change < self.optimiser.site_tolerance:
                break
        return sites, clipped

    def _optimised(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        most: int,
        report: Report,
        move: bool,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """One optimiser run, with the sites held: offsets, variables, iterations (``most``)."""
        moving = offsets if move else np.zeros(0)
        limits: list[Any] = [(None, None)] * len(moving)
        limits += self.local.hyperparameters.limits(self.local.parameters)
        if not limits:
            return offsets, variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            places, rest = point[: len(moving)], point[len(moving) :]
            return self.bound.objective(places if move else offsets, rest, problem, sites, move)

        start = np.concatenate([moving, variables])
        point, steps = minimise(
            loss_and_gradient, start, limits, self.optimiser.method, most, report
        )
        return point[: len(moving)] if move else offsets, point[len(moving) :], steps

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

    # ---- what comes out ----

    def _factor(
        self, cavity: Process, old_log_scale: float, solution: _Solution
    ) -> PseudoPointFactor:
        """The new factor, whose constant makes log normalisers add up to the free energy.

        :param cavity: Prior times all other factors, on the points that they are on now.
        :param old_log_scale: The log constant of that product before it was projected onto them.
        """
        epsilon = solution.report.epsilon
        found = self.bound.pseudo_observations(
            epsilon, solution.offsets, solution.variables, solution.problem, solution.sites
        )
        after = self.cavity.log_normaliser(epsilon, Process((*cavity.pseudo_observations, found)))
        if not np.isfinite(after):
            raise NumericalError("the covariance of the pseudo-observations is not positive")
        q, q_cavity = solution.hyperparameters, cavity.hyperparameters
        of_epsilon = None if q is None or q_cavity is None else (q / q_cavity).as_arrays()
        before = old_log_scale + solution.past_evidence
        log_scale = before + solution.report.free_energy - after - cavity.log_scale
        return PseudoPointFactor((found,), of_epsilon, log_scale)

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
