"""Fits one batch under a cavity process: the local update rule of streaming GPs.

All TensorFlow work goes through a handful of functions that are compiled once for each model,
with unknown data shapes, so that a stream of any length neither retraces nor leaks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp import covariances as cov
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import FLOAT, compiled, mean_over_samples, spec
from streaming_gp.gp.factor import PseudoObservations
from streaming_gp.gp.hyperparameters import Bounds, HyperparameterStrategy
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.process import GaussianProcess, Process, Stack
from streaming_gp.gp.pseudo_points import PrivatePseudoPoints
from streaming_gp.gp.sites import Sites
from streaming_gp.linalg import compress_rows

NUGGET = 1e-6
"""Variance of the pseudo-points' white noise, relative to their mean cavity variance."""
NUGGET_ATTEMPTS = 4


@dataclass(frozen=True)
class LocalOptimiser:
    """How the local free energy is maximised.

    :param max_iterations: of the SciPy optimiser in all, over locations and q(ε).
    :param method: of ``scipy.optimize.minimize``: one that takes gradients and bounds, such as
        L-BFGS-B, TNC or SLSQP.
    :param rounds: for non-Gaussian likelihoods: alternations of site steps and optimiser runs.
    :param site_steps: fixed-point steps in each round (PVI 2018, eq. 10), at most.
    :param site_damping: ρ of these steps, in (0, 1].
    :param site_tolerance: largest change of a site at which these steps end early.
    """

    max_iterations: int = 50
    method: str = "L-BFGS-B"
    rounds: int = 8
    site_steps: int = 15
    site_damping: float = 0.5
    site_tolerance: float = 1e-7

    def __post_init__(self) -> None:
        if min(self.max_iterations, self.rounds, self.site_steps) < 1:
            raise InvalidDataError("max_iterations, rounds and site_steps must be positive")
        if not 0.0 < self.site_damping <= 1.0:
            raise InvalidDataError(f"site_damping must lie in (0, 1], got {self.site_damping}")


@dataclass(frozen=True)
class Progress:
    """Passed to the callback after every iteration of a local update.

    :param batch_id: the batch that is being fitted.
    :param iteration: optimiser iterations so far.
    :param max_iterations: at most so many will be made.
    :param free_energy: the local free energy now, in nats.
    """

    batch_id: str
    iteration: int
    max_iterations: int
    free_energy: float


Callback = Callable[[Progress], None]


class FitReport(NamedTuple):
    """What a local fit reports beside q."""

    epsilon: np.ndarray
    free_energy: float
    iterations: int
    nugget: float
    clipped_sites: int


class Problem(NamedTuple):
    """Everything a compiled function needs; one flat argument list, fixed for one update."""

    X: tf.Tensor
    Y: tf.Tensor
    stack: Stack
    location: tf.Tensor
    scale: tf.Tensor
    noise: tf.Tensor
    Z_start: tf.Tensor
    Z_unit: tf.Tensor
    nugget: tf.Tensor


class LocalUpdate:
    """Compiled local fits for one model.

    :param gp: the process' kernel and mean function.
    :param likelihood: any GPflow likelihood.
    :param epsilon: the vector of trainable parameters.
    :param dims: D and P, columns of X and Y.
    """

    def __init__(
        self,
        gp: GaussianProcess,
        likelihood: Any,
        epsilon: ParameterVector,
        pseudo_points: PrivatePseudoPoints,
        hyperparameters: HyperparameterStrategy,
        optimiser: LocalOptimiser,
        dims: tuple[int, int],
    ) -> None:
        self.gp = gp
        self.likelihood = likelihood
        self.epsilon = epsilon
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.optimiser = optimiser
        self.conjugate = site_rules.is_conjugate(likelihood)
        self.num_columns = gp.num_latent // gp.num_groups
        self.input_dim, self.output_dim = dims
        self._compile(*dims)

    def _compile(self, input_dim: int, output_dim: int) -> None:
        G, C, E = self.gp.num_groups, self.num_columns, self.epsilon.size
        stack = Stack(
            spec(None, None, input_dim),
            spec(G, None, None, None),
            spec(G, None, None, C),
            spec(None),
        )
        problem = Problem(
            X=spec(None, input_dim),
            Y=spec(None, output_dim),
            stack=stack,
            location=spec(E),
            scale=spec(E, E),
            noise=spec(*self.hyperparameters.noise(E, seed=0).shape),
            Z_start=spec(None, input_dim),
            Z_unit=spec(input_dim),
            nugget=spec(),
        )
        sites = Sites(spec(None, self.gp.num_latent), spec(None, self.gp.num_latent))
        variables = spec(None)

        self._objective = compiled(self._objective_and_gradient, variables, problem, sites)
        self._new_sites = compiled(self._average_sites, variables, problem, sites)
        self._whitened = compiled(self._whiten_at_location, spec(E), variables, problem)
        self._exact_sites = compiled(self._sites_at, spec(E), problem.X, problem.Y)
        self._features = compiled(self._features_at, spec(E), stack, problem.X)
        self._log_normaliser = compiled(self._log_normaliser_at, spec(E), stack)
        self._column = compiled(
            self._column_at, spec(E), problem.X, spec(G, None, None), tf.TensorSpec([], tf.int32)
        )

    # ---- one value of ε ----

    def _locations(self, variables: tf.Tensor, problem: Problem) -> tuple[tf.Tensor, tf.Tensor]:
        """Pseudo-inputs [M, D], and the variables that are left for ε."""
        if not self.pseudo_points.moves:
            return problem.Z_start, variables
        size = tf.size(problem.Z_start)
        offset = tf.reshape(variables[:size], tf.shape(problem.Z_start))
        return problem.Z_start + problem.Z_unit * offset, variables[size:]

    def _local_posterior(self, Z: tf.Tensor, problem: Problem, sites: Sites) -> lb.LocalPosterior:
        """q(f) at the data at the ε that the parameters now read."""
        conditioned = self.gp.condition(problem.stack)
        if self.pseudo_points.exact:
            return lb.exact_posterior(self.gp, problem.stack, conditioned, problem.X, sites)
        white = lb.whiten(self.gp, problem.stack, conditioned, problem.X, Z, problem.nugget)
        return lb.sparse_posterior(self.gp, white, sites)

    def _bound_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            if self.conjugate:
                sites = site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y)
            q = self._local_posterior(Z, problem, sites)
            expected = site_rules.expected_log_density(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )
        return expected - q.kl

    def _sites_step_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        with self.epsilon.substituted(epsilon):
            q = self._local_posterior(Z, problem, sites)
            return site_rules.fixed_point_sites(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )

    # ---- averages over q(ε) ----

    def _free_energy(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> tf.Tensor:
        Z, rest = self._locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        bound = mean_over_samples(lambda e: self._bound_at(e, Z, problem, sites), draws)
        with self.epsilon.substituted(draws[0]):
            return bound - self.hyperparameters.penalty(rest, self.epsilon)

    def _objective_and_gradient(
        self, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(variables)
            loss = -self._free_energy(variables, problem, sites)
        gradient = tape.gradient(loss, variables, unconnected_gradients="zero")
        return loss, gradient

    def _average_sites(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> Sites:
        Z, rest = self._locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        return mean_over_samples(lambda e: self._sites_step_at(e, Z, problem, sites), draws)

    # ---- at the final ε ----

    def _whiten_at_location(
        self, epsilon: tf.Tensor, variables: tf.Tensor, problem: Problem
    ) -> tuple[tf.Tensor, lb.Whitened]:
        Z, _ = self._locations(variables, problem)
        with self.epsilon.substituted(epsilon):
            conditioned = self.gp.condition(problem.stack)
            return Z, lb.whiten(self.gp, problem.stack, conditioned, problem.X, Z, problem.nugget)

    def _sites_at(self, epsilon: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> Sites:
        with self.epsilon.substituted(epsilon):
            return site_rules.conjugate_sites(self.likelihood, X, Y)

    def _features_at(
        self, epsilon: tf.Tensor, stack: Stack, X: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Cavity projection V [G, R, N] and cavity variance [N], averaged over groups."""
        with self.epsilon.substituted(epsilon):
            V = self.gp.project(stack, self.gp.condition(stack), X)
            return V, tf.reduce_mean(self.gp.variance(V, X), axis=0)

    def _column_at(
        self, epsilon: tf.Tensor, X: tf.Tensor, V: tf.Tensor, index: tf.Tensor
    ) -> tf.Tensor:
        """Cavity covariance [N] of all inputs with input ``index``, averaged over groups."""
        with self.epsilon.substituted(epsilon):
            prior = cov.covariance(self.gp.kernel, X, X[index][None])[:, :, 0]
            explained = tf.reduce_sum(V * V[:, :, index][:, :, None], axis=1)
            return tf.reduce_mean(prior - explained, axis=0)

    def _log_normaliser_at(self, epsilon: tf.Tensor, stack: Stack) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            return self.gp.log_normaliser(self.gp.condition(stack))

    # ---- the fit ----

    def fit(
        self,
        cavity: Process,
        data: tuple[np.ndarray, np.ndarray],
        seed: int,
        report: Callable[[int, float], None],
    ) -> tuple[Process, FitReport]:
        """Maximise the local free energy of ``data`` under ``cavity``.

        :param data: X [N, D] and Y [N, P], validated.
        :param seed: of the common random numbers over ε.
        :param report: called with (iteration, free energy) as the fit goes on.
        :returns: the new posterior and what was done.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        problem = self._problem(cavity, data, seed)
        for attempt in range(NUGGET_ATTEMPTS):
            try:
                return self._fit_problem(cavity, problem, report)
            except NumericalError as error:
                if attempt == NUGGET_ATTEMPTS - 1:
                    raise
                problem = problem._replace(nugget=10.0 * problem.nugget)
                warnings.warn(
                    f"{error}; trying again with nugget {float(problem.nugget):.1e}", stacklevel=2
                )
        raise AssertionError("unreachable")

    def _problem(self, cavity: Process, data: tuple[np.ndarray, np.ndarray], seed: int) -> Problem:
        X, Y = (tf.constant(array, FLOAT) for array in data)
        stack = self.gp.stack(cavity.rows, self.input_dim)
        strategy = self.hyperparameters
        location, scale = strategy.location_scale(cavity.hyperparameters, self.epsilon)
        noise = strategy.noise(self.epsilon.size, seed)
        V, variance = self._features(location, stack, X)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        spread = np.std(data[0], axis=0)
        problem = Problem(
            X=X,
            Y=Y,
            stack=stack,
            location=tf.constant(location, FLOAT),
            scale=tf.constant(scale, FLOAT),
            noise=tf.constant(noise, FLOAT),
            Z_start=X[:1],
            Z_unit=tf.constant(np.where(spread > 0.0, spread, 1.0), FLOAT),
            nugget=tf.constant(NUGGET * np.mean(variance), FLOAT),
        )
        chosen = self.pseudo_points.choose(
            variance.numpy(),
            lambda index: self._column(location, X, V, index).numpy(),
            self._weights(problem),
        )
        return problem._replace(Z_start=tf.gather(X, chosen))

    def _weights(self, problem: Problem) -> np.ndarray:
        """Site precisions [N] at the cavity, summed over latent functions."""
        sites = self._initial_sites(problem)
        if not self.conjugate:
            sites = self._new_sites(self._initial_variables(problem), problem, sites)
        return np.maximum(sites.precision.numpy(), 0.0).sum(axis=1)

    def _initial_variables(self, problem: Problem) -> np.ndarray:
        moved = int(tf.size(problem.Z_start)) if self.pseudo_points.moves else 0
        has_seen_data = problem.stack.Z.shape[0] > 0
        epsilon = self.hyperparameters.initial(self.epsilon.size, has_seen_data)
        return np.concatenate([np.zeros(moved), epsilon])

    def _initial_sites(self, problem: Problem) -> Sites:
        if self.conjugate:
            return self._exact_sites(problem.location, problem.X, problem.Y)
        zeros = tf.zeros([problem.X.shape[0], self.gp.num_latent], FLOAT)
        return site_rules.clipped(Sites(zeros, zeros))

    def _fit_problem(
        self, cavity: Process, problem: Problem, report: Callable[[int, float], None]
    ) -> tuple[Process, FitReport]:
        variables, sites = self._initial_variables(problem), self._initial_sites(problem)
        rounds = 1 if self.conjugate else self.optimiser.rounds
        iterations, clipped = 0, 0
        for _ in range(rounds):
            sites, clipped = self._refresh(variables, problem, sites)
            variables, steps = self._optimise(
                variables, problem, sites, rounds, partial(_report_from, report, iterations)
            )
            iterations += steps
        sites, clipped = self._refresh(variables, problem, sites)
        free_energy = -float(self._objective(variables, problem, sites)[0])
        q, epsilon = self._posterior(cavity, variables, problem, sites, free_energy)
        return q, FitReport(epsilon, free_energy, iterations, float(problem.nugget), clipped)

    def _refresh(self, variables: np.ndarray, problem: Problem, sites: Sites) -> tuple[Sites, int]:
        """Damped fixed-point steps on the sites, until they rest; also counts clipped ones."""
        if self.conjugate:
            return sites, 0
        rho, clipped = self.optimiser.site_damping, 0
        for _ in range(self.optimiser.site_steps):
            raw = self._new_sites(variables, problem, sites)
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

    def _optimise(
        self,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        rounds: int,
        report: Callable[[int, float], None],
    ) -> tuple[np.ndarray, int]:
        """A run of the SciPy optimiser with the sites held; returns variables and iterations."""
        if variables.size == 0:
            return variables, 0
        worst = -np.inf

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal worst
            loss, gradient = (part.numpy() for part in self._objective(point, problem, sites))
            if np.isfinite(loss) and np.isfinite(gradient).all():
                worst = max(worst, float(loss))
                return float(loss), gradient
            if not np.isfinite(worst):
                raise NumericalError("the cavity covariance at the pseudo-points is not positive")
            return worst + 1e3 * (1.0 + abs(worst)), np.zeros_like(gradient)

        progress = _IterationCounter(report)
        result = scipy.optimize.minimize(
            objective,
            variables,
            jac=True,
            method=self.optimiser.method,
            callback=progress,
            bounds=self._bounds(variables),
            options={"maxiter": max(1, self.optimiser.max_iterations // rounds)},
        )
        return result.x, progress.count

    def _bounds(self, variables: np.ndarray) -> list[Bounds]:
        of_epsilon = self.hyperparameters.bounds(self.epsilon)
        return [(None, None)] * (variables.size - len(of_epsilon)) + of_epsilon

    def _posterior(
        self,
        cavity: Process,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
        free_energy: float,
    ) -> tuple[Process, np.ndarray]:
        """Cavity times the new factor, whose constant makes log normalisers add up to F."""
        _, rest = self._locations(tf.constant(variables, FLOAT), problem)
        q_epsilon = self.hyperparameters.posterior(
            rest.numpy(), problem.location.numpy(), problem.scale.numpy()
        )
        epsilon = self._point_estimate(q_epsilon, rest, problem)
        if self.conjugate:
            sites = self._exact_sites(epsilon, problem.X, problem.Y)
        row = self._row(epsilon, variables, problem, sites)
        process = Process((*cavity.rows, row), q_epsilon, cavity.log_scale)
        gained = self._log_normaliser(
            epsilon, self.gp.stack(process.rows, self.input_dim)
        ) - self._log_normaliser(epsilon, problem.stack)
        if not np.isfinite(gained):
            raise NumericalError(
                "the new posterior's pseudo-observation covariance is not positive"
            )
        log_scale = cavity.log_scale + free_energy - float(gained)
        return Process(process.rows, q_epsilon, log_scale), epsilon

    def _point_estimate(self, q_epsilon: Any, rest: tf.Tensor, problem: Problem) -> np.ndarray:
        if q_epsilon is not None:
            return np.asarray(q_epsilon.mean)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        return draws[0].numpy()

    def _row(
        self, epsilon: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> PseudoObservations:
        """The sites as pseudo-observations of the new points, at one ε."""
        G = self.gp.num_groups
        mean, precision = (cov.to_groups(part, G).numpy() for part in sites)
        root = np.sqrt(precision[:, :, :1])
        if self.pseudo_points.exact:
            diagonal = root * np.eye(root.shape[1])
            return PseudoObservations(problem.X.numpy(), diagonal, mean / root, 0.0)
        Z, white = self._whitened(epsilon, variables, problem)
        A, chol = white.A.numpy(), white.chol.numpy()
        if not (np.isfinite(A).all() and np.isfinite(chol).all()):
            raise NumericalError("the cavity covariance at the pseudo-points is not positive")
        mean_f, mean_b = (cov.to_groups(part, G).numpy() for part in (white.mean_f, white.mean_b))
        # sites on f are observations A of c; QR makes them M, and L carries them over to b
        rows, targets = compress_rows(
            root * np.swapaxes(A, -1, -2), (mean - precision * mean_f) / root
        )
        R_transposed = _solve_right(rows, chol)
        targets = targets + R_transposed @ mean_b
        R = np.swapaxes(R_transposed, -1, -2)
        return PseudoObservations(Z.numpy(), R, targets, float(problem.nugget))


def _report_from(
    report: Callable[[int, float], None], start: int, iteration: int, free_energy: float
) -> None:
    report(start + iteration, free_energy)


class _IterationCounter:
    """SciPy's callback: counts iterations and passes them on."""

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self.count = 0
        self._report = report

    def __call__(self, intermediate_result: scipy.optimize.OptimizeResult) -> None:
        self.count += 1
        self._report(self.count, -float(intermediate_result.fun))


def _solve_right(rows: np.ndarray, chol: np.ndarray) -> np.ndarray:
    """``rows L⁻¹`` for each group: [G, M, M]."""
    transposed = tf.linalg.triangular_solve(
        np.broadcast_to(chol, rows.shape), np.swapaxes(rows, -1, -2), adjoint=True
    )
    return np.swapaxes(transposed.numpy(), -1, -2)
