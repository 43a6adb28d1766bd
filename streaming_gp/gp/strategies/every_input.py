"""A pseudo-point at every input of a batch, while a budget lasts.

The factor of a batch is its likelihood, known as soon as ε is: nothing about f is optimised. What ε
is learned from need therefore be neither all of the batch nor all that is known of f.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streaming_gp import expfam
from streaming_gp.arguments import require_positive_integer
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Exact, PowerEP, Variational
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.budget import multiplied, newest
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.gp.strategies.selection import greedy_gain
from streaming_gp.linalg import LOG_TWO_PI
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True)
class LearningSample:
    """What ε is learned from, of a batch that has a pseudo-point at every input.

    :param num_data: The largest number of a batch's data.
    :param num_points: The largest number of pseudo-points at which these are looked at; None for
        one at every input, which is exact.
    :param num_earlier: The largest number of earlier pseudo-points that the cavity is reduced to.
    :param alpha: Where these are few and noise is Gaussian, the power of power EP's energy in
        [0, 1]: 1 is FITC, which finds the noise of the data; 0 is the variational bound, which
        takes for noise also what so few points leave unexplained.
    :raises InvalidDataError: if a number is not positive, or alpha out of its range.
    """

    num_data: int = 300
    num_points: int | None = None
    num_earlier: int = 200
    alpha: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_data", "num_points", "num_earlier"):
            if getattr(self, name) is not None:
                require_positive_integer(name, getattr(self, name))
        if not 0.0 <= self.alpha <= 1.0:
            raise InvalidDataError(f"alpha must lie in [0, 1], got {self.alpha}")


def fitted(
    fitter: Fitter, cavity: Process, batch: Batch, sample: LearningSample
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor of a batch: first ε, if anything is learned, then the likelihood at it.

    :param cavity: Prior times all other factors.
    :param sample: What ε is learned from.
    """
    hyperparameters = fitter.local.hyperparameters
    if not batch.learn or not hyperparameters.limits(fitter.local.parameters):
        return _absorbed(fitter, cavity, batch, fitter.location(cavity))
    learned, report = _learned(fitter, cavity, batch, sample)
    if fitter.bound.is_conjugate:
        observations, constant = _likelihood(fitter, batch, report.epsilon)
        return PseudoPointFactor((observations,), learned, constant), report
    moved = cavity if learned is None else cavity.times([PseudoPointFactor((), learned)])
    found, at_rest = _absorbed(fitter, moved, batch, report.epsilon)
    report = at_rest._replace(epsilon=report.epsilon, iterations=report.iterations)
    return replace(found, hyperparameters=learned), report


def _learned(
    fitter: Fitter, cavity: Process, batch: Batch, sample: LearningSample
) -> tuple[expfam.Factor | None, FitReport]:
    """The factor of ε, learned from a part of the batch under the part of the cavity near it."""
    X, Y = batch.data
    rng = np.random.default_rng(batch.seed)
    some = np.sort(rng.permutation(len(X))[: sample.num_data])
    needs_all = fitter.local.hyperparameters.past_evidence(lambda: 1.0) != 0.0
    small = cavity if needs_all else fitter.nearby(cavity, X[some], sample.num_earlier)
    number = len(some) if sample.num_points is None else sample.num_points
    bound = _bound(sample.alpha, fitter.bound.is_conjugate) if number < len(some) else Exact()
    part = replace(batch, data=(X[some], Y[some]))

    def place(candidates: Candidates) -> np.ndarray:
        if number >= len(some):
            return candidates.inputs
        return np.asarray(candidates.inputs[greedy_gain(candidates, number)])

    effort = min(fitter.optimiser.full_effort_points, sample.num_earlier - 1)
    found, report = fitter.by(bound, effort).fit(small, part, place, move=False)
    share = len(X) / len(some)
    return found.hyperparameters, report._replace(free_energy=share * report.free_energy)


def _bound(alpha: float, is_conjugate: bool) -> LocalBound:
    return PowerEP(alpha) if is_conjugate and alpha > 0.0 else Variational()


def _absorbed(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor at one ε, which is not learned."""
    if not fitter.bound.is_conjugate:
        at_rest = replace(batch, learn=False, epsilon=epsilon)
        return fitter.fit(cavity, at_rest, lambda candidates: candidates.inputs, move=False)
    observations, constant = _likelihood(fitter, batch, epsilon)
    before = fitter.factorised(epsilon, cavity)
    after = fitter.factorised(epsilon, cavity.times([PseudoPointFactor((observations,))]))
    free_energy = after.log_normaliser - before.log_normaliser + constant
    report = FitReport(epsilon, free_energy, 0, 0.0, 0)
    return PseudoPointFactor((observations,), cavity.unit_of_epsilon, constant), report


def _likelihood(fitter: Fitter, batch: Batch, epsilon: np.ndarray) -> tuple[Any, float]:
    """Gaussian noise at ε as pseudo-observations at every input, and its log constant."""
    problem = fitter.problems.without_cavity(batch.data)
    offsets = np.zeros(problem.Z_start.shape[1])
    sites = fitter.bound.known_sites(epsilon, offsets, problem)
    observations = fitter.bound.pseudo_observations(epsilon, offsets, np.zeros(0), problem, sites)
    constant = 0.5 * float(np.sum(np.log(sites.precision) - LOG_TWO_PI))
    return observations, constant


def within(fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, budget: int) -> GPLedger:
    """The ledger with at most ``budget`` points: of the older factors' points the least needed go.

    The newest batches that hold a tenth of the budget together stay apart. Where a batch is smaller
    than that, a tenth is freed at once, so that this is rare and its cost spread over many batches.

    :param epsilon: The ε [E] at which factors are projected.
    """
    held = ledger.posterior.num_pseudo_points
    if held <= budget:
        return ledger
    tenth = budget // 10
    apart = newest(ledger, tenth)
    older = [name for name in ledger.factors if name not in apart]
    after = multiplied(ledger, older)
    merged = after.factors[MERGED]
    spare = tenth if len(ledger.factors[list(ledger.factors)[-1]].Z) <= tenth else 0
    number = budget - spare - sum(len(ledger.factors[name].Z) for name in apart)
    return after.replaced(MERGED, fitter.thinned(merged, after.cavity(MERGED), epsilon, number))
