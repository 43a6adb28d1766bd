"""Fits one batch under a cavity process: the local update rule of streaming GPs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from streaming_gp import expfam, pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import FLOAT
from streaming_gp.gp.factor import PseudoPointFactor, Row
from streaming_gp.gp.hyperparameters import Bounds
from streaming_gp.gp.local_functions import LocalFunctions, Problem
from streaming_gp.gp.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.process import Process
from streaming_gp.gp.pseudo_points import greedy_variance
from streaming_gp.gp.sites import Sites

NUGGET = 1e-6
"""Variance of the pseudo-points' white noise, relative to their mean cavity variance."""
NUGGET_ATTEMPTS = 4

Data = tuple[np.ndarray, np.ndarray]
R = TypeVar("R")


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
        problem = self._problem(cavity, data, seed, at)

        def attempt(problem: Problem) -> tuple[Process, FitReport]:
            solution = self._solve(problem, cavity, report, hold)
            return self._posterior(cavity, cavity, solution), solution.report

        return _persistently(attempt, problem)

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
        problem = self._problem(Process((), old.hyperparameters), data, seed, at, old.compact.rows)

        def attempt(problem: Problem) -> tuple[pvi.Ledger[Process], Process, FitReport]:
            solution = self._solve(problem, old, report, hold=False)
            offsets = self._offsets(solution.variables, problem)
            moved = self.carried_over(ledger, solution.epsilon, offsets, problem)
            q = self._posterior(moved.cavity(batch_id), old, solution)
            return moved, q, solution.report

        return _persistently(attempt, problem)

    # ---- earlier rows on fewer points ----

    def fold(
        self, kept: Process, factor: PseudoPointFactor, number: int, epsilon: np.ndarray
    ) -> tuple[PseudoPointFactor, float]:
        """Carry ``factor`` over to at most ``number`` points, as the bound at ε loses least.

        :param kept: process conditioned on all other rows.
        :returns: the new factor, and the nats lost.
        """
        absorbed = Process(factor.rows).compact.rows
        Z = np.concatenate([row.Z for row in absorbed])
        problem = self._empty_problem(Z.shape[1])._replace(
            stack=self.gp.stack(kept.compact.rows, Z.shape[1]),
            absorbed=self.gp.stack(absorbed, Z.shape[1]),
        )
        problem = self._with_points(problem, epsilon, Z, number)
        ledger = pvi.Ledger(Process(), {"": PseudoPointFactor(absorbed, None, factor.log_scale)})

        def attempt(problem: Problem) -> tuple[PseudoPointFactor, float]:
            offsets, loss = self._best_offsets(epsilon, problem)
            carried = self.carried_over(ledger, epsilon, offsets, problem).factors[""]
            compact = Process(carried.rows, None, carried.log_scale).compact
            return replace(factor, rows=compact.rows, log_scale=compact.log_scale), loss

        return _persistently(attempt, problem)

    def _best_offsets(self, epsilon: np.ndarray, problem: Problem) -> tuple[np.ndarray, float]:
        """Where few points lose least, from the start that :meth:`choose` gave."""

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.functions.fold_objective(epsilon, point, problem)
            return float(loss), gradient.numpy()

        start = np.zeros(int(tf.size(problem.Z_start)))
        steps = self.optimiser.fold_iterations if self.pseudo_points.moves else 0
        if steps == 0:
            return start, loss_and_gradient(start)[0]
        bounds: list[Bounds] = [(None, None)] * start.size
        method = self.optimiser.method
        offsets, _ = minimise(loss_and_gradient, start, bounds, method, steps, lambda *_: None)
        return offsets, loss_and_gradient(offsets)[0]

    def carried_over(
        self,
        ledger: pvi.Ledger[Process],
        epsilon: np.ndarray,
        offsets: np.ndarray,
        problem: Problem,
    ) -> pvi.Ledger[Process]:
        """Every factor as its projection on the problem's points: ``exp E[log t(a) | b]``."""
        moved = {
            name: self._projected(factor, epsilon, offsets, problem)
            for name, factor in ledger.factors.items()
        }
        return pvi.Ledger(ledger.prior, moved)

    def _projected(
        self, factor: PseudoPointFactor, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem
    ) -> PseudoPointFactor:
        if float(problem.tie) == float(problem.nugget) > 0.0:
            return factor  # the points are the same variables
        G, C = self.gp.num_groups, self.gp.num_latent // self.gp.num_groups
        mine = problem._replace(absorbed=self.gp.stack(factor.rows, problem.Z_start.shape[1]))
        points, seen = self.functions.projected_row(epsilon, offsets, mine)
        design = np.swapaxes(seen.design.numpy(), -1, -2)
        nugget = float(problem.nugget)
        row, constant = lb.row_on_points(points, design, seen.residual.numpy(), G, nugget)
        if not np.isfinite(row.root).all():
            raise NumericalError("the covariance of the pseudo-points is not positive")
        constant -= 0.5 * C * float(np.sum(seen.prior_trace) - np.sum(design**2))
        return replace(factor, rows=(row,), log_scale=factor.log_scale + constant)

    # ---- what is given ----

    def _empty_problem(self, input_dim: int) -> Problem:
        """No data, no earlier rows: a place to start from."""
        E, empty = self.epsilon.size, self.gp.stack((), input_dim)
        point = tf.zeros([1, input_dim], FLOAT)
        return Problem(
            X=point,
            Y=tf.zeros([1, self.functions.output_dim], FLOAT),
            stack=empty,
            location=tf.zeros([E], FLOAT),
            scale=tf.zeros([E, E], FLOAT),
            noise=tf.constant(self.hyperparameters.noise(E, 0), FLOAT),
            Z_start=point,
            Z_unit=tf.ones([input_dim], FLOAT),
            nugget=tf.zeros([], FLOAT),
            absorbed=empty,
            tie=tf.zeros([], FLOAT),
        )

    def _problem(
        self,
        cavity: Process,
        data: Data,
        seed: int,
        at: Row | None,
        absorbed: tuple[Row, ...] = (),
    ) -> Problem:
        X, Y = (tf.constant(array, FLOAT) for array in data)
        input_dim = X.shape[1]
        location, scale = self.hyperparameters.location_scale(cavity.hyperparameters, self.epsilon)
        problem = self._empty_problem(input_dim)._replace(
            X=X,
            Y=Y,
            stack=self.gp.stack(cavity.compact.rows, input_dim),
            absorbed=self.gp.stack(absorbed, input_dim),
            location=tf.constant(location, FLOAT),
            scale=tf.constant(scale, FLOAT),
            noise=tf.constant(self.hyperparameters.noise(self.epsilon.size, seed), FLOAT),
        )
        if at is not None and at.nugget > 0.0:
            nugget = tf.constant(at.nugget, FLOAT)
            unit = tf.constant(_spread(data[0]), FLOAT)
            tie = nugget if absorbed else tf.zeros_like(nugget)
            Z = tf.constant(at.Z, FLOAT)
            return problem._replace(Z_start=Z, Z_unit=unit, nugget=nugget, tie=tie)
        candidates = np.concatenate([*(row.Z for row in absorbed), data[0]])
        return self._with_points(problem, location, candidates, None)

    def _with_points(
        self, problem: Problem, epsilon: np.ndarray, candidates: np.ndarray, number: int | None
    ) -> Problem:
        """The problem with points that start at some of the candidates [N, D].

        :param number: how many; by default as the strategy says.
        """
        inputs = tf.constant(candidates, FLOAT)
        V, variance = self.functions.features(epsilon, problem.stack, inputs)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        problem = problem._replace(
            Z_unit=tf.constant(_spread(candidates), FLOAT),
            nugget=tf.constant(NUGGET * np.mean(variance), FLOAT),
        )

        def column(index: int) -> np.ndarray:
            return self.functions.column(epsilon, inputs, V, index).numpy()

        if number is None:
            chosen = self.pseudo_points.choose(
                variance.numpy(),
                column,
                lambda: self._site_weights(problem),
                num_present=len(candidates) - int(problem.X.shape[0]),
            )
        else:
            chosen = greedy_variance(variance.numpy(), column, number, lambda _: False)
        return problem._replace(Z_start=tf.gather(inputs, chosen))

    def _site_weights(self, problem: Problem) -> np.ndarray:
        """Site precisions [N] at the cavity, summed over latent functions."""
        problem = problem._replace(Z_start=problem.X[:1])
        variables = self._initial_variables(problem, has_seen_data=False)
        sites = self._initial_sites(variables, problem)
        if not self.functions.conjugate:
            sites = self.functions.new_sites(variables, problem, sites)
        return np.maximum(sites.precision.numpy(), 0.0).sum(axis=1)

    def _initial_variables(self, problem: Problem, has_seen_data: bool) -> np.ndarray:
        moved = int(tf.size(problem.Z_start)) if self.pseudo_points.moves else 0
        epsilon = self.hyperparameters.initial(self.epsilon.size, has_seen_data)
        return np.concatenate([np.zeros(moved), epsilon])

    def _initial_sites(self, variables: np.ndarray, problem: Problem) -> Sites:
        if self.functions.conjugate:
            return self.functions.exact_sites(problem.location, variables, problem)
        zeros = tf.zeros([problem.X.shape[0], self.gp.num_latent], FLOAT)
        return site_rules.clipped(Sites(zeros, zeros))

    # ---- the fit ----

    def _solve(self, problem: Problem, old: Process, report: Report, hold: bool) -> _Solution:
        """Site steps and optimiser runs in turn; exact sites need one run only.

        :param old: prior times all other factors.
        :param hold: whether the points stay where they are.
        """
        variables = self._initial_variables(problem, has_seen_data=bool(old.rows))
        sites = self._initial_sites(variables, problem)
        rounds = 1 if self.functions.conjugate else self.optimiser.rounds
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._refreshed(variables, problem, sites)
            onward = partial(_report_from, report, iterations)
            variables, steps = self._optimised(variables, problem, sites, rounds, onward, hold)
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

        free: list[Bounds] = [(None, None)] * size
        offsets, _ = minimise(
            loss_and_gradient, variables[:size], free, self.optimiser.method, steps, lambda *_: None
        )
        return np.concatenate([offsets, variables[size:]])

    def _optimised(
        self,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        rounds: int,
        report: Report,
        hold: bool,
    ) -> tuple[np.ndarray, int]:
        """One of ``rounds`` optimiser runs, with the sites held: variables and iterations."""
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
            max(1, self.optimiser.max_iterations // rounds),
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


def _persistently(attempt: Callable[[Problem], R], problem: Problem) -> R:
    """Try again with a larger nugget, a few times, where a covariance is not positive."""
    for _ in range(NUGGET_ATTEMPTS - 1):
        try:
            return attempt(problem)
        except NumericalError as error:
            problem = problem._replace(nugget=10.0 * problem.nugget)
            warnings.warn(
                f"{error}; trying again with nugget {float(problem.nugget):.1e}", stacklevel=3
            )
    return attempt(problem)


def _spread(X: np.ndarray) -> np.ndarray:
    """Standard deviation of each input [D]; 1 where it is constant."""
    spread = np.std(X, axis=0)
    return np.where(spread > 0.0, spread, 1.0)


def _report_from(report: Report, start: int, iteration: int, free_energy: float) -> None:
    report(start + iteration, free_energy)
