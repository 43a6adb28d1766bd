"""Fits one batch under a cavity process: the local update rule of streaming GPs."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import FLOAT
from streaming_gp.gp.factor import PseudoObservations
from streaming_gp.gp.local_functions import LocalFunctions, Problem
from streaming_gp.gp.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.process import Process
from streaming_gp.gp.sites import Sites

NUGGET = 1e-6
"""Variance of the pseudo-points' white noise, relative to their mean cavity variance."""
NUGGET_ATTEMPTS = 4


class FitReport(NamedTuple):
    """What a local fit reports beside q: ε is its point estimate [E]."""

    epsilon: np.ndarray
    free_energy: float
    iterations: int
    nugget: float
    clipped_sites: int


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
        self, cavity: Process, data: tuple[np.ndarray, np.ndarray], seed: int, report: Report
    ) -> tuple[Process, FitReport]:
        """Maximise the local free energy of ``data`` under ``cavity``.

        :param data: X [N, D] and Y [N, P], validated.
        :param seed: of the common random numbers over ε.
        :param report: called with (iteration, free energy) as the fit goes on.
        :returns: the new posterior and what was done.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        problem = self._problem(cavity, data, seed)
        for _ in range(NUGGET_ATTEMPTS - 1):
            try:
                return self._fit(cavity, problem, report)
            except NumericalError as error:
                problem = problem._replace(nugget=10.0 * problem.nugget)
                warnings.warn(
                    f"{error}; trying again with nugget {float(problem.nugget):.1e}", stacklevel=2
                )
        return self._fit(cavity, problem, report)

    # ---- what is given ----

    def _problem(self, cavity: Process, data: tuple[np.ndarray, np.ndarray], seed: int) -> Problem:
        X, Y = (tf.constant(array, FLOAT) for array in data)
        stack = self.gp.stack(cavity.rows, X.shape[1])
        location, scale = self.hyperparameters.location_scale(cavity.hyperparameters, self.epsilon)
        V, variance = self.functions.features(location, stack, X)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        spread = np.std(data[0], axis=0)
        problem = Problem(
            X=X,
            Y=Y,
            stack=stack,
            location=tf.constant(location, FLOAT),
            scale=tf.constant(scale, FLOAT),
            noise=tf.constant(self.hyperparameters.noise(self.epsilon.size, seed), FLOAT),
            Z_start=X[:1],
            Z_unit=tf.constant(np.where(spread > 0.0, spread, 1.0), FLOAT),
            nugget=tf.constant(NUGGET * np.mean(variance), FLOAT),
        )
        chosen = self.pseudo_points.choose(
            variance.numpy(),
            lambda index: self.functions.column(location, X, V, index).numpy(),
            lambda: self._site_weights(problem),
        )
        return problem._replace(Z_start=tf.gather(X, chosen))

    def _site_weights(self, problem: Problem) -> np.ndarray:
        """Site precisions [N] at the cavity, summed over latent functions."""
        sites = self._initial_sites(problem)
        if not self.functions.conjugate:
            sites = self.functions.new_sites(self._initial_variables(problem), problem, sites)
        return np.maximum(sites.precision.numpy(), 0.0).sum(axis=1)

    def _initial_variables(self, problem: Problem) -> np.ndarray:
        moved = int(tf.size(problem.Z_start)) if self.pseudo_points.moves else 0
        has_seen_data = bool(np.any(problem.stack.root))
        epsilon = self.hyperparameters.initial(self.epsilon.size, has_seen_data)
        return np.concatenate([np.zeros(moved), epsilon])

    def _initial_sites(self, problem: Problem) -> Sites:
        if self.functions.conjugate:
            return self.functions.exact_sites(problem.location, problem.X, problem.Y)
        zeros = tf.zeros([problem.X.shape[0], self.gp.num_latent], FLOAT)
        return site_rules.clipped(Sites(zeros, zeros))

    # ---- the fit ----

    def _fit(self, cavity: Process, problem: Problem, report: Report) -> tuple[Process, FitReport]:
        """Site steps and optimiser runs in turn; exact sites need one run only."""
        variables, sites = self._initial_variables(problem), self._initial_sites(problem)
        rounds = 1 if self.functions.conjugate else self.optimiser.rounds
        iterations = 0
        for _ in range(rounds):
            sites, _ = self._refreshed(variables, problem, sites)
            onward = partial(_report_from, report, iterations)
            variables, steps = self._optimised(variables, problem, sites, rounds, onward)
            iterations += steps
        sites, clipped = self._refreshed(variables, problem, sites)
        free_energy = -float(self.functions.objective(variables, problem, sites)[0])
        q, epsilon = self._posterior(cavity, variables, problem, sites, free_energy)
        return q, FitReport(epsilon, free_energy, iterations, float(problem.nugget), clipped)

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

    def _optimised(
        self, variables: np.ndarray, problem: Problem, sites: Sites, rounds: int, report: Report
    ) -> tuple[np.ndarray, int]:
        """One of ``rounds`` optimiser runs, with the sites held: variables and iterations."""
        if variables.size == 0:
            return variables, 0

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = self.functions.objective(point, problem, sites)
            return float(loss), gradient.numpy()

        of_epsilon = self.hyperparameters.bounds(self.epsilon)
        free = variables.size - len(of_epsilon)
        return minimise(
            loss_and_gradient,
            variables,
            [(None, None)] * free + of_epsilon,
            self.optimiser.method,
            max(1, self.optimiser.max_iterations // rounds),
            report,
        )

    # ---- what comes out ----

    def _posterior(
        self,
        cavity: Process,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        free_energy: float,
    ) -> tuple[Process, np.ndarray]:
        """Cavity times the new factor, whose constant makes log normalisers add up to F."""
        q_epsilon, epsilon = self._hyperparameters(variables, problem)
        if self.functions.conjugate:
            sites = self.functions.exact_sites(epsilon, problem.X, problem.Y)
        rows = (*cavity.rows, self._row(epsilon, variables, problem, sites))
        before, after = (
            float(self.functions.log_normaliser(epsilon, stack))
            for stack in (problem.stack, self.gp.stack(rows, problem.X.shape[1]))
        )
        if not np.isfinite(after):
            raise NumericalError("the covariance of the pseudo-observations is not positive")
        log_scale = cavity.log_scale + free_energy - (after - before)
        return Process(rows, q_epsilon, log_scale), epsilon

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

    def _row(
        self, epsilon: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> PseudoObservations:
        if self.pseudo_points.exact:
            return lb.exact_row(problem.X.numpy(), sites, self.gp.num_groups)
        Z, white = self.functions.whitened(epsilon, variables, problem)
        if not (np.isfinite(white.A).all() and np.isfinite(white.mean_b).all()):
            raise NumericalError("the cavity covariance at the pseudo-points is not positive")
        nugget = float(problem.nugget)
        return lb.sparse_row(Z.numpy(), white, sites, self.gp.num_groups, nugget)


def _report_from(report: Report, start: int, iteration: int, free_energy: float) -> None:
    report(start + iteration, free_energy)
