"""Fits one batch under a cavity process: the local update rule of streaming GPs."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import expfam, pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp import posing
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.carrying import carried_over
from streaming_gp.gp.compiled import FLOAT
from streaming_gp.gp.factor import Row
from streaming_gp.gp.hyperparameters import Bounds
from streaming_gp.gp.local_functions import LocalFunctions
from streaming_gp.gp.optimiser import LocalOptimiser, Report, minimise, persistently
from streaming_gp.gp.posing import Data
from streaming_gp.gp.problem import Problem
from streaming_gp.gp.process import Process
from streaming_gp.gp.sites import Sites


class FitReport(NamedTuple):
    """What a local fit reports beside q: ε is its point estimate [E]."""

    epsilon: np.ndarray
    free_energy: float
    iterations: int
    nugget: float
    clipped_sites: int


class _Solution(NamedTuple):
    """An optimum of the local free energy; ε is its point estimate [E]."""

    problem: Problem
    variables: np.ndarray
    sites: Sites
    hyperparameters: expfam.Gaussian | None
    epsilon: np.ndarray
    report: FitReport


class LocalUpdate:
    """Local fits of one model.

    :param functions: the model's compiled functions.
    :param optimiser: how the bound is maximised.
    """

    def __init__(self, functions: LocalFunctions, optimiser: LocalOptimiser) -> None:
        self.functions = functions
        self.optimiser = optimiser
        self.gp = functions.gp
        self.epsilon = functions.epsilon
        self.pseudo_points = functions.pseudo_points
        self.hyperparameters = functions.hyperparameters

    def fit(
        self,
        cavity: Process,
        data: Data,
        seed: int,
        report: Report,
        at: Row | None = None,
        hold: bool = False,
    ) -> tuple[Process, FitReport]:
        """Maximise the local free energy of ``data`` under ``cavity``, on points of their own.

        :param data: X [N, D] and Y [N, P], validated.
        :param seed: of the common random numbers over ε.
        :param report: called with (iteration, free energy) as the fit goes on.
        :param at: where the points start, if the batch has had some before.
        :param hold: whether they stay there.
        :returns: the new posterior and what was done.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        problem = posing.with_data(
            self.functions, data, self._noise(cavity, seed), cavity.compact.rows, (),
            cavity.hyperparameters, at,
        )  # fmt: skip

        def attempt(problem: Problem) -> tuple[Process, FitReport]:
            solution = self._solve(problem, cavity, report, hold)
            return self._posterior(cavity, cavity, solution), solution.report

        return persistently(attempt, problem)

    def fit_shared(
        self,
        ledger: pvi.Ledger[Process],
        batch_id: str,
        data: Data,
        seed: int,
        report: Report,
        at: Row | None = None,
    ) -> tuple[pvi.Ledger[Process], Process, FitReport]:
        """Fit ``data`` and all other rows on one set of points (PVI 2018, appendix C.3).

        The other rows enter the bound as observations ``s ≈ Rᵀf(Z_a)``, and what they were worth
        under the prior is taken off again, so that the free energy is that of this batch.

        :param batch_id: whose data these are.
        :param at: the points to stay on, if they are not to move.
        :returns: the ledger carried over to the new points, the new posterior, and what was done.
        """
        old = ledger.cavity(batch_id)
        problem = posing.with_data(
            self.functions, data, self._noise(old, seed), (), old.compact.rows,
            old.hyperparameters, at,
        )  # fmt: skip

        def attempt(problem: Problem) -> tuple[pvi.Ledger[Process], Process, FitReport]:
            solution = self._solve(problem, old, report, hold=False)
            offsets = self._offsets(solution.variables, problem)
            moved = carried_over(self.functions, ledger, solution.epsilon, offsets, problem)
            q = self._posterior(moved.cavity(batch_id), old, solution)
            return moved, q, solution.report

        return persistently(attempt, problem)

    # ---- the fit ----

    def _noise(self, earlier: Process, seed: int) -> np.ndarray:
        """Common random numbers [S, E], fewer where there are many earlier points."""
        full = self.optimiser.is_full_effort(earlier.num_pseudo_points)
        return self.hyperparameters.noise(self.epsilon.size, seed, full)

    def _solve(self, problem: Problem, old: Process, report: Report, hold: bool) -> _Solution:
        """Site steps and optimiser runs in turn; exact sites need one run only.

        :param old: prior times all other factors.
        :param hold: whether the points stay where they are.
        """
        variables = posing.initial_variables(self.functions, problem, bool(old.rows))
        sites = posing.initial_sites(self.functions, variables, problem)
        rounds = 1 if self.functions.conjugate else self.optimiser.rounds
        most = self.optimiser.iterations(old.num_pseudo_points)
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._refreshed(variables, problem, sites)
            onward = partial(_report_from, report, iterations)
            variables, steps = self._optimised(
                variables, problem, sites, max(1, most // rounds), onward, hold
            )
            iterations += steps
            if not hold:
                variables = self._relocated(variables, problem, sites, rounds)
        sites, clipped = self._refreshed(variables, problem, sites)
        free_energy = -float(self.functions.objective(variables, problem, sites)[0])
        q, epsilon = self._hyperparameters(variables, problem)
        if self.hyperparameters.remembers:
            free_energy -= self._log_normaliser(epsilon, Process(old.rows))
        if self.functions.conjugate:
            sites = self.functions.exact_sites(epsilon, variables, problem)
        nugget = float(problem.nugget)
        found = FitReport(epsilon, free_energy, iterations, nugget, clipped)
        return _Solution(problem, variables, sites, q, epsilon, found)

    def _refreshed(
        self, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites until they rest; also counts clipped ones."""
        if self.functions.conjugate:
            return sites, 0
        rho, clipped = self.optimiser.site_damping, 0
        for _ in range(self.optimiser.site_steps):
            raw = self.functions.new_sites(variables, problem, sites)
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

    def _relocated(
        self, variables: np.ndarray, problem: Problem, sites: Sites, rounds: int
    ) -> np.ndarray:
        """Locations moved on at the centre of q(ε): cheap, as the cavity is factorised only once.

        Moved before q(ε) they would settle where the old ε wants them, and hold it there.
        """
        steps = self.optimiser.location_iterations // rounds
        if steps == 0 or not self.functions.relocates:
            return variables
        _, epsilon = self._hyperparameters(variables, problem)
        size = int(tf.size(problem.Z_start))
        cavity = self.functions.cavity(epsilon, problem)

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.functions.location_objective(
                epsilon, point, problem, *cavity, sites
            )
            return float(loss), gradient.numpy()

        offsets, _ = minimise(
            loss_and_gradient, variables[:size], None, self.optimiser.method, steps
        )
        return np.concatenate([offsets, variables[size:]])

    def _optimised(
        self,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        most: int,
        report: Report,
        hold: bool,
    ) -> tuple[np.ndarray, int]:
        """One optimiser run, with the sites held: variables and iterations, at most ``most``."""
        of_epsilon = self.hyperparameters.bounds(self.epsilon)
        num_offsets = variables.size - len(of_epsilon)
        if len(of_epsilon) == 0 and (hold or num_offsets == 0):
            return variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.functions.objective(point, problem, sites)
            return float(loss), gradient.numpy()

        of_offsets: list[Bounds] = [(0.0, 0.0) if hold else (None, None)] * num_offsets
        return minimise(
            loss_and_gradient,
            variables,
            of_offsets + of_epsilon,
            self.optimiser.method,
            most,
            report,
        )

    # ---- what comes out ----

    def _offsets(self, variables: np.ndarray, problem: Problem) -> np.ndarray:
        """Offsets of the points from their start, zeros where they do not move."""
        size = int(tf.size(problem.Z_start))
        return variables[:size] if self.pseudo_points.moves else np.zeros(size)

    def _posterior(self, cavity: Process, old: Process, solution: _Solution) -> Process:
        """Cavity times the new factor, whose constant makes log normalisers add up to F.

        :param old: the cavity before its rows were carried over to the new points, if they were.
        """
        found = self.functions.row(
            solution.epsilon, solution.variables, solution.problem, solution.sites
        )
        rows = (*cavity.rows, found)
        after = self._log_normaliser(solution.epsilon, Process(rows))
        if not np.isfinite(after):
            raise NumericalError("the covariance of the pseudo-observations is not positive")
        before = old.log_scale + self._log_normaliser(solution.epsilon, Process(old.rows))
        log_scale = before + solution.report.free_energy - after
        return Process(rows, solution.hyperparameters, log_scale)

    def _log_normaliser(self, epsilon: np.ndarray, process: Process) -> float:
        """Of the rows of ``process`` and its own scale, at ε."""
        compact = process.compact
        stack = self.gp.stack(compact.rows, self.functions.input_dim)
        return compact.log_scale + float(self.functions.log_normaliser(epsilon, stack))

    def _hyperparameters(
        self, variables: np.ndarray, problem: Problem
    ) -> tuple[expfam.Gaussian | None, np.ndarray]:
        """q(ε), or None, and the point estimate of ε."""
        _, rest = self.functions.locations(tf.constant(variables, FLOAT), problem)
        q: Any = self.hyperparameters.posterior(
            rest.numpy(), problem.location.numpy(), problem.scale.numpy()
        )
        if q is not None:
            return q, np.asarray(q.mean)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        return None, draws[0].numpy()


def _report_from(report: Report, start: int, iteration: int, free_energy: float) -> None:
    report(start + iteration, free_energy)
