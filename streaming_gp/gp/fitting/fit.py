"""Fits one batch under a cavity process: the local update of streaming Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting import every_input, kept_on_shared
from streaming_gp.gp.fitting.absorbed import Left
from streaming_gp.gp.fitting.absorbing import Absorbing
from streaming_gp.gp.fitting.bound_functions import BoundFunctions
from streaming_gp.gp.fitting.cavity_functions import CavityFunctions
from streaming_gp.gp.fitting.compression import nearby
from streaming_gp.gp.fitting.enough_values import over_enough_values
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.fitted import Fitted
from streaming_gp.gp.fitting.kept_bound import KeptBound
from streaming_gp.gp.fitting.merging import Merging
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, with_larger_nuggets
from streaming_gp.gp.fitting.problem import Data, Place, ProblemBuilder
from streaming_gp.gp.fitting.projection import GPLedger, Projection, projection_of
from streaming_gp.gp.fitting.solver import Batch, FitReport, Solution, Solver
from streaming_gp.gp.fitting.watch import Watch
from streaming_gp.gp.process.graphs import FLOAT
from streaming_gp.gp.process.observations import Observations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.numerics.threads import one_blas_thread

MOST_POINTS = 300
"""The free energy of what is kept is computed at every draw of ε as long as so few are held."""


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
        self.factorisations = Factorisations(local)
        self.problems = ProblemBuilder(self.bound, CavityFunctions(local))
        self.solver = Solver(self.bound, self.factorisations, optimiser)
        self.absorbing = Absorbing(local, bound, self.factorisations, optimiser.steps_of_sites)
        self.kept_bound = KeptBound(local)
        self.watch = Watch()
        self.merging = Merging(self.factorisations, optimiser, self.watch)

    def location(self, cavity: Process) -> np.ndarray:
        """The mean [E] of the cavity's q(ε), or the point that the parameters hold."""
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        return hyperparameters.location_scale(cavity.hyperparameters, parameters)[0]

    @one_blas_thread()
    def nearby(self, cavity: Process, X: np.ndarray, number: int) -> Process:
        """The part of a cavity that matters at X [N, D], on at most ``number`` of its points."""
        if cavity.num_pseudo_points <= number:
            return cavity
        epsilon = self.location(cavity)
        prior = PriorAt(self.local.prior, epsilon[None])
        at = partial(self.factorisations.at, epsilon)
        return nearby(prior, at, cavity, X, number)

    def fit(
        self,
        cavity: Process,
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> Fitted:
        """Maximise the local free energy of a batch under ``cavity``, on points of its own.

        :param cavity: Prior times all other factors.
        :param batch: The batch.
        :param place: Chooses where its points start.
        :param at: The points to start from instead, if the batch has had some before.
        :param move: Whether the points move from there.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        factor, report = self.factor(cavity, batch, place, at, move)
        kept = self.of_what_is_kept(cavity, batch, factor, report)
        constant = factor.log_scale + kept.free_energy - report.free_energy
        return Fitted(replace(factor, log_scale=constant), *kept)

    def fit_at_every_input(self, cavity: Process, batch: Batch, most: int | None) -> Fitted:
        """As :meth:`fit`, with a point at every input.

        :param most: The largest number of points; None for no limit.
        """
        factor, report = every_input.fitted(self, cavity, batch, most)
        return Fitted(factor, *report)

    def factor(
        self,
        cavity: Process,
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> tuple[PseudoPointFactor, FitReport]:
        """The batch's factor and what was done, as the optimiser leaves it."""

        def attempt(problem: Problem) -> tuple[PseudoPointFactor, FitReport]:
            solution = self.solver.solve(problem, cavity, batch, move)
            return self._factor(cavity, cavity, solution)

        if self.absorbing.serves(batch):
            factor, report = self.absorbing(cavity, batch, place, at)
        else:
            factor, report = with_larger_nuggets(attempt, self.problem(cavity, batch, place, at))
        self._warn(batch, factor, report)
        return factor, report

    def learned(
        self, cavity: Process, batch: Batch, place: Place
    ) -> tuple[expfam.Factor | None, FitReport, Sites | None]:
        """As :meth:`fit` on points that do not move: the factor of ε, what was done, and the sites
        [N, L] if noise is not Gaussian.
        """

        def attempt(problem: Problem) -> tuple[expfam.Factor | None, FitReport, Sites | None]:
            solution = self.solver.solve(problem, cavity, batch, move=False)
            solution = over_enough_values(self.solver, solution, cavity, batch)
            sites = None if self.bound.is_conjugate else solution.sites
            return solution.factor_of_epsilon(cavity), solution.report, sites

        return with_larger_nuggets(attempt, self.problem(cavity, batch, place))

    def problem(
        self, cavity: Process, batch: Batch, place: Place, at: Observations | None = None
    ) -> Problem:
        """A batch under its cavity, on points of its own."""
        noise = self._noise(cavity, batch)
        problem = self.problems.with_data(batch.data, noise, cavity, place, at)
        if batch.epsilon is None:
            return problem
        return problem._replace(location=tf.constant(batch.epsilon, FLOAT))

    def fit_onto_shared(
        self,
        ledger: GPLedger,
        cavity: Process,
        cavity_in: Callable[[GPLedger], Process],
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> Fitted:
        """Fit a batch and all other pseudo-observations on one set of points (PVI 2018, app. C.3).

        The others enter the bound as observations ``s ≈ Rᵀf(Z_a)``, and what they said under the
        prior is taken off again, so that the free energy is that of this batch.

        :param ledger: All factors.
        :param cavity: Prior times all other factors.
        :param cavity_in: Gives that product in a ledger whose factors are on the new points.
        :returns: the batch's factor, the ledger on the new points, and what was done.
        """

        def attempt(problem: Problem) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
            solution = self.solver.solve(problem, cavity, batch, move)
            onto = projection_of(self.local, solution.report.epsilon, solution.offsets, problem)
            moved = onto.of_ledger(ledger)
            return moved, *self._factor(cavity_in(moved), cavity, solution, onto)

        if self.absorbing.serves(batch):
            found = self.absorbing.onto_shared(ledger, cavity, cavity_in, batch, place, at)
        else:
            noise = self._noise(cavity, batch)
            problem = self.problems.with_data(batch.data, noise, cavity, place, at, takes_over=True)
            found = with_larger_nuggets(attempt, problem)
        moved, factor, report = found
        self._warn(batch, factor, report)
        after = cavity_in(moved).times([factor])
        kept = self.of_what_is_kept_on_shared(cavity, after, batch, report)
        return Fitted(factor, *kept, ledger=moved)

    def _warn(self, batch: Batch, factor: PseudoPointFactor, report: FitReport) -> None:
        self.watch.points(batch.name, len(factor.Z), report)
        self.watch.noise(self.local, batch, len(factor.Z), report)

    def watch_first(self, prior: Process, batches: Iterable[Data]) -> None:
        """Warn if the first data are far from what a distribution over ε expects."""
        if prior.hyperparameters is not None and self.local.parameters.size:
            for X, Y in batches:
                self.watch.inputs(self.local, prior.hyperparameters, X)
                self.watch.targets(self.local, prior.hyperparameters, X, Y)

    def of_what_is_kept(
        self, cavity: Process, batch: Batch, factor: PseudoPointFactor, report: FitReport
    ) -> FitReport:
        """The report with the free energy of the factor, which is the same for all ε.

        A fit's own is as large or larger: it knows a better factor for every ε. Where very many
        points are held it is reported all the same, as the other would cost more than the fit.
        """
        is_bound = getattr(self.bound.bound, "is_evidence_bound", False)
        number = cavity.num_pseudo_points + len(factor.Z)
        if not (is_bound and batch.learn) or number > MOST_POINTS or factor.hyperparameters is None:
            return report
        q = cavity.times([factor]).hyperparameters
        assert q is not None
        (kept,) = plain(Process(factor.pseudo_observations))
        found = self.kept_bound.free_energy(cavity, kept, q, batch.data, batch.seed)
        return report._replace(free_energy=found)

    def of_what_is_kept_on_shared(
        self, cavity: Process, after: Process, batch: Batch, report: FitReport
    ) -> FitReport:
        """As :meth:`of_what_is_kept`, where the points of all batches have moved.

        :param cavity: Prior times all other factors, on the points that they were on.
        :param after: Prior times all factors, on the new points.
        """
        is_bound = getattr(self.bound.bound, "is_evidence_bound", False)
        number = max(cavity.num_pseudo_points, after.num_pseudo_points)
        q, q_cavity = after.hyperparameters, cavity.hyperparameters
        if not (is_bound and batch.learn) or number > MOST_POINTS or q is None or q_cavity is None:
            return report
        draws = self.kept_bound.draws(q, batch.seed)
        found = kept_on_shared.bound_at(self.kept_bound, cavity, after, draws, batch.data)
        return report._replace(free_energy=found - float(q.kl_divergence(q_cavity)))

    def _noise(self, earlier: Process, batch: Batch) -> np.ndarray:
        """Common random numbers [S, E], fewer where there are many earlier points."""
        size = self.local.parameters.size
        if not batch.learn:
            return np.zeros((1, size))
        full = self.optimiser.is_full_effort(earlier.num_pseudo_points)
        return self.local.hyperparameters.noise(size, batch.seed, full)

    # ---- what comes out ----

    def _factor(
        self,
        cavity: Process,
        old_cavity: Process,
        solution: Solution,
        onto: Projection | None = None,
    ) -> tuple[PseudoPointFactor, FitReport]:
        """The new factor, and the report, which says what the points leave of the data.

        :param cavity: Prior times all other factors, on the points that they are on now.
        :param old_cavity: That product before it was projected onto them.
        :param onto: That projection, if there was one.
        """
        epsilon, report = solution.report.epsilon, solution.report
        found, left = _said(self, old_cavity, solution, onto)
        factor = PseudoPointFactor((found,), solution.factor_of_epsilon(cavity))
        factor = self.factorisations.scaled(factor, epsilon, report.free_energy, old_cavity, cavity)
        return factor, report._replace(**left._asdict())


def _said(
    fitter: Fitter, cavity: Process, solution: Solution, onto: Projection | None
) -> tuple[Observations, Left]:
    """What the batch says of its points, and what these leave of the data."""
    on_points = fitter.absorbing.on_points
    if on_points is not None:
        return on_points.of_solution(fitter.factorisations, cavity, solution, onto)
    return fitter.bound.pseudo_observations(
        solution.report.epsilon, solution.offsets, solution.variables, solution.problem,
        fitter.solver.sites_of(solution),
    )  # fmt: skip
