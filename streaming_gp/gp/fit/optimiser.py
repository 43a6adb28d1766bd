"""How a local free energy is maximised, and how its progress is reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import scipy.optimize

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.hyperparameters.strategies import Limits
from streaming_gp.inputs import require_not_negative, typed
from streaming_gp.numerics.threads import one_blas_thread
from streaming_gp.serialization import storable

FEWEST_ITERATIONS = 5
EPSILON_ITERATIONS = 20
"""Over q(ε) alone, at most, if locations have used up all others and noise is Gaussian: many
locations leave the width of q(ε) where it started, half as wide as before, but rounds of site steps
do not. An update that gets fewer iterations gets as many fewer of these."""
PATIENCE = 5
"""Iterations whose gains are added up before they are held to be too little."""
NUGGET_ATTEMPTS = 4

R = TypeVar("R")

METHODS = ("l-bfgs-b", "tnc", "slsqp", "trust-constr")
Report = Callable[[int, float], None]
"""Called with (iteration, free energy)."""


@storable
@typed
@dataclass(frozen=True)
class LocalOptimiser:
    """How the local free energy is maximised.

    :param max_iterations: The number of iterations of the SciPy optimiser, over locations and q(ε);
        a fit that moves locations and ends by it has up to 15 more, over q(ε) alone.
    :param tolerance: The gain in nats: a run ends when its last five iterations together raised the
        free energy by less. Differences of free energies far below one are lost on predictions.
    :param method: The name of a method of ``scipy.optimize.minimize`` that takes gradients and
        bounds: L-BFGS-B, TNC, SLSQP or trust-constr.
    :param rounds: The number of alternations of site steps and optimiser runs, for likelihoods that
        are not Gaussian.
    :param site_steps: The largest number of fixed-point steps in each round (PVI 2018, eq. 10).
    :param full_effort_points: An update under so many earlier pseudo-points gets all iterations and
        samples of ε. Under more it gets half the samples, and fewer iterations, so that it takes no
        longer: by then there is little left to learn about ε.
    :param location_iterations: The number of iterations over the locations alone, at the centre of
        q(ε), after that.
    :param projection_iterations: The number of iterations over locations when earlier factors are
        projected onto fewer points.
    :raises InvalidDataError: if a number is out of its range, or there is no such method.

    >>> points, soon = sgp.PrivatePseudoPoints(5), sgp.LocalOptimiser(max_iterations=3)
    >>> hasty = sgp.StreamingGP(*parts, pseudo_points=points, optimiser=soon)
    >>> hasty.update((X, Y)).iterations <= 3 + 15
    True
    """

    max_iterations: int = 50
    tolerance: float = 1e-2
    method: str = "L-BFGS-B"
    rounds: int = 8
    site_steps: int = 15
    full_effort_points: int = 100
    location_iterations: int = 0
    projection_iterations: int = 20

    def __post_init__(self) -> None:
        if min(self.max_iterations, self.rounds, self.site_steps) < 1:
            raise InvalidDataError("max_iterations, rounds and site_steps must be positive")
        if self.method.lower() not in METHODS:
            raise InvalidDataError(f"method must be in {list(METHODS)}, got {self.method!r}")
        for name in ("tolerance", "location_iterations", "projection_iterations"):
            require_not_negative(name, getattr(self, name))

    def is_full_effort(self, num_points: int) -> bool:
        """Whether an update under so many earlier points gets all iterations and samples."""
        return num_points <= self.full_effort_points

    def iterations(self, num_points: int) -> int:
        """Iterations of an update under so many earlier points: its work goes with their square."""
        if self.is_full_effort(num_points):
            return self.max_iterations
        share = 2.0 * (self.full_effort_points / num_points) ** 2
        return max(FEWEST_ITERATIONS, int(self.max_iterations * min(1.0, share)))

    def more_iterations(self, iterations: int) -> int:
        """Iterations over q(ε) alone after so many over locations as well."""
        return -(-iterations * EPSILON_ITERATIONS // self.max_iterations)  # rounded up

    @property
    def most_iterations(self) -> int:
        """All iterations that an update may take."""
        return self.max_iterations + EPSILON_ITERATIONS


@dataclass(frozen=True)
class Progress:
    """Passed to the callback after every iteration of a local update.

    :param batch_id: The name of the batch that is being fitted.
    :param iteration: The number of optimiser iterations so far.
    :param max_iterations: The largest number of iterations that will be made.
    :param free_energy: The local free energy now, in nats.

    >>> seen = []
    >>> info = model.update((X, np.cos(X)), callback=seen.append)
    """

    batch_id: str
    iteration: int
    max_iterations: int
    free_energy: float


Callback = Callable[[Progress], None]


@one_blas_thread()
def minimise(
    loss_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    limits: list[Limits] | None,
    method: str,
    max_iterations: int,
    report: Report = lambda *_: None,
    tolerance: float = 0.0,
) -> tuple[np.ndarray, int]:
    """Run SciPy's optimiser; returns the variables and the number of iterations.

    Its own matrices are tiny: with several BLAS threads a step of L-BFGS takes 200 times as long.
    Where the loss is not finite (a covariance lost its definiteness) a high plateau stands in for
    it, so that the line search turns back.

    :param loss_and_gradient: Gives the negative free energy and its gradient.
    :param start: The variables at the start [V].
    :param limits: The least and the largest value of each variable.
    :param method: The name of SciPy's method.
    :param max_iterations: The largest number of iterations.
    :param report: Called with (iteration, free energy).
    :param tolerance: The gain of five iterations, in nats, under which they are the last.
    :raises NumericalError: if the loss is not finite at the start.
    """
    worst = -np.inf

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal worst
        loss, gradient = loss_and_gradient(point)
        if np.isfinite(loss) and np.isfinite(gradient).all():
            worst = max(worst, loss)
            return loss, gradient
        if not np.isfinite(worst):
            raise NumericalError("the cavity covariance at the pseudo-points is not positive")
        return worst + 1e3 * (1.0 + abs(worst)), np.zeros_like(gradient)

    losses: list[float] = []

    def progress(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        loss = float(intermediate_result.fun)
        losses.append(loss)
        report(len(losses), -loss)
        if len(losses) > PATIENCE and losses[-1 - PATIENCE] - loss < tolerance:
            raise StopIteration

    result = scipy.optimize.minimize(
        objective, start, jac=True, method=method, bounds=limits, callback=progress,
        options={"maxiter": max_iterations},
    )  # fmt: skip
    return result.x, len(losses)


def with_larger_nuggets(attempt: Callable[[Any], R], problem: Any) -> R:
    """Try again with a larger nugget, a few times, where a covariance is not positive.

    Where there is no nugget there is nothing to enlarge.

    :param problem: What is attempted: a dataclass that has a ``nugget``.
    :raises NumericalError: of the last attempt.
    """
    for _ in range(NUGGET_ATTEMPTS - 1 if problem.nugget > 0.0 else 0):
        try:
            return attempt(problem)
        except NumericalError as error:
            problem = replace(problem, nugget=10.0 * problem.nugget)
            warnings.warn(
                f"{error}; trying again with nugget {float(problem.nugget):.1e}", stacklevel=3
            )
    return attempt(problem)


def reporter(callback: Callback | None, batch_id: str, max_iterations: int) -> Report:
    """A function that tells a user's of each iteration of a batch's fit.

    :raises InvalidDataError: if it is no function.
    """
    if not (callback is None or callable(callback)):
        raise InvalidDataError(f"callback must be a function or None, got {callback!r:.100}")

    def report(iteration: int, free_energy: float) -> None:
        if callback is None:
            return
        try:
            callback(Progress(batch_id, iteration, max_iterations, free_energy))
        except StopIteration as error:  # by which SciPy would end the fit, as if it were done
            raise RuntimeError("the callback raised StopIteration") from error

    return report
