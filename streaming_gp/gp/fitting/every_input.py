"""A pseudo-point at every input of a batch: its factor is its likelihood, known as soon as ε is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streaming_gp.gp.bounds.exact import at_every_input
from streaming_gp.gp.bounds.sites import Sites, nothing_said
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.numerics.linalg import LOG_TWO_PI

if TYPE_CHECKING:
    from streaming_gp.gp.fitting.fit import Fitter

ROWS = 300
"""ε is learned from so many data of a batch at most, under so many earlier points near them."""


def fitted(
    fitter: Fitter, cavity: Process, batch: Batch, most: int | None
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor of a batch: first ε, if anything is learned, then the likelihood at it.

    :param cavity: Prior times all other factors.
    :param most: The largest number of points; None for no limit.
    """
    if not batch.learn or not fitter.local.hyperparameters.limits(fitter.local.parameters):
        return _absorbed(fitter, cavity, batch, fitter.location(cavity), most)
    X, Y = batch.data
    some = np.sort(np.random.default_rng(batch.seed).permutation(len(X))[:ROWS])
    small = fitter.nearby(cavity, X[some], ROWS)
    part = replace(batch, data=(X[some], Y[some]))
    of_epsilon, report, sites = fitter.learned(small, part, _every_input)
    free_energy = report.free_energy * len(X) / len(some)
    if fitter.bound.is_conjugate and len(X) <= (most or np.inf):
        observations, constant = likelihood(fitter, batch, report.epsilon)
        factor = PseudoPointFactor((observations,), of_epsilon, constant)
        report = report._replace(free_energy=free_energy)
        return factor, fitter.of_what_is_kept(cavity, batch, factor, report)
    moved = cavity if of_epsilon is None else cavity.times([PseudoPointFactor((), of_epsilon)])
    start = None if sites is None else _among_others(sites, some, len(X))
    found, at_rest = _absorbed(fitter, moved, replace(batch, sites=start), report.epsilon, most)
    factor = replace(found, hyperparameters=of_epsilon)
    free_energy = at_rest.free_energy - _divergence(cavity, moved)
    report = at_rest._replace(free_energy=free_energy, iterations=report.iterations)
    return factor, fitter.of_what_is_kept(cavity, batch, factor, report)


def _every_input(candidates: Candidates) -> np.ndarray:
    return candidates.inputs


def _among_others(sites: Sites, some: np.ndarray, number: int) -> Sites:
    """Sites of some of the data, and for the others such as say next to nothing."""
    everywhere = nothing_said(number, sites.precision.shape[1])
    for part, values in zip(everywhere, sites, strict=True):
        part[some] = values
    return everywhere


def _divergence(before: Process, after: Process) -> float:
    """``KL(q(ε) ‖ q_cav(ε))`` in nats; 0 where ε is a point."""
    if before.hyperparameters is None or after.hyperparameters is None:
        return 0.0
    return float(after.hyperparameters.kl_divergence(before.hyperparameters))


def _absorbed(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray, most: int | None
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor at one ε, which is not learned; a batch of very many data comes part by part."""
    X, _ = batch.data
    size = most or len(X)
    factor, report = at_one_epsilon(fitter, cavity, _part(batch, slice(size)), epsilon)
    for start in range(size, len(X), size):
        part = _part(batch, slice(start, start + size))
        one, of_part = at_one_epsilon(fitter, cavity.times([factor]), part, epsilon)
        factor = fitter.merging.thinned(factor * one, Process(), epsilon, size)
        report = of_part._replace(free_energy=report.free_energy + of_part.free_energy)
    return factor, report


def _part(batch: Batch, rows: slice) -> Batch:
    """Some of its data, and where their sites start."""
    (X, Y), sites = batch.data, batch.sites
    some = None if sites is None else Sites(*(one[rows] for one in sites))
    return replace(batch, data=(X[rows], Y[rows]), sites=some)


def at_one_epsilon(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor of a batch at ε [E], with a point at each of its inputs; what was done."""
    if not fitter.bound.is_conjugate:
        at_rest = replace(batch, learn=False, epsilon=epsilon)
        return fitter.factor(cavity, at_rest, _every_input, move=False)
    observations, constant = likelihood(fitter, batch, epsilon)
    factor = PseudoPointFactor((observations,), cavity.unit_of_epsilon, constant)
    return factor, FitReport(epsilon, evidence(fitter, cavity, factor, epsilon), 0, 0.0, 0)


def evidence(
    fitter: Fitter, cavity: Process, factor: PseudoPointFactor, epsilon: np.ndarray
) -> float:
    """By how many nats a factor raises the log evidence at ε [E]."""
    says = PseudoPointFactor(factor.pseudo_observations)
    before, after = (
        fitter.factorisations.at(epsilon, one).log_normaliser
        for one in (cavity, cavity.times([says]))
    )
    return after - before + factor.log_scale


def likelihood(
    fitter: Fitter, batch: Batch, epsilon: np.ndarray
) -> tuple[PseudoObservations, float]:
    """Gaussian noise at ε as pseudo-observations at every input, and its log constant."""
    X, Y = batch.data
    precision = fitter.local.noise_precision(epsilon, X)
    found = at_every_input(X, Sites(precision * Y, precision), fitter.local.gp.num_groups)
    return found, 0.5 * float(np.sum(np.log(precision) - LOG_TWO_PI))
