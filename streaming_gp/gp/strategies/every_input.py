"""A pseudo-point at every input of a batch, while a budget lasts.

The factor of a batch is its likelihood, known as soon as ε is: nothing about f is optimised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import mul

import numpy as np

from streaming_gp.gp.bounds.exact import at_every_input
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.gp.process.single_observations import SingleObservations, singles
from streaming_gp.gp.strategies import merged_anew, remembered, two_scales
from streaming_gp.gp.strategies.budget import multiplied, newest
from streaming_gp.gp.strategies.learning_sample import (
    LearningSample,
    coarse,
    fine,
    learned,
    points_per_datum,
)
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.numerics.linalg import LOG_TWO_PI

MOST_MOVING = 300
"""So many points move when others are projected onto them; of more, each matters little."""
COARSER = 1.25
"""Where the noise of both ε is nearly the same, the fine one has no finer structure to lose."""


def fitted(
    fitter: Fitter,
    cavity: Process,
    batch: Batch,
    sample: LearningSample,
    most: int | None,
    known: SingleObservations | None = None,
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor of a batch: first ε, if anything is learned, then the likelihood at it.

    :param cavity: Prior times all other factors.
    :param sample: What ε is learned from.
    :param most: The largest number of points; None for no limit.
    :param known: Earlier observations of one input each, for :func:`learned`.
    """
    hyperparameters = fitter.local.hyperparameters
    if not batch.learn or not hyperparameters.limits(fitter.local.parameters):
        return _absorbed(fitter, cavity, batch, fitter.location(cavity), most)
    of_epsilon, report, sites = learned(fitter, cavity, batch, sample, known=known)
    if fitter.bound.is_conjugate and len(batch.data[0]) <= (most or np.inf):
        observations, constant = likelihood(fitter, batch, report.epsilon)
        factor = PseudoPointFactor((observations,), of_epsilon, constant)
        return factor, fitter.of_what_is_kept(cavity, batch, factor, report)
    moved = cavity if of_epsilon is None else cavity.times([PseudoPointFactor((), of_epsilon)])
    known_sites = replace(batch, sites=sites)
    found, at_rest = _absorbed(fitter, moved, known_sites, report.epsilon, most)
    factor = replace(found, hyperparameters=of_epsilon)
    told = at_rest.free_energy - _divergence(cavity, moved)
    report = at_rest._replace(free_energy=told, iterations=report.iterations)
    return factor, fitter.of_what_is_kept(cavity, batch, factor, report)


def _divergence(before: Process, after: Process) -> float:
    """``KL(q(ε) ‖ q_cav(ε))`` in nats; 0 where ε is a point."""
    if before.hyperparameters is None or after.hyperparameters is None:
        return 0.0
    return float(after.hyperparameters.kl_divergence(before.hyperparameters))


def fitted_at_two_scales(
    fitter: Fitter, ledger: GPLedger, cavity: Process, batch: Batch, budget: int, move: bool
) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
    """As :func:`fitted`, where a budget is full and noise Gaussian.

    :param cavity: Prior times all other factors of the ledger.
    :param budget: The largest number of points of all batches.
    :param move: Whether merged points may move where they are fitted anew.
    :returns: the ledger, on better points when that is due, and at the coarse ε from when that
        serves better; the factor; what was done.
    """
    if two_scales.is_coarse(ledger):
        return _fitted_coarse(fitter, ledger, batch, budget, move)
    if batch.name not in ledger.factors:
        ledger = merged_anew.on_better_points(fitter, ledger, move)
        cavity = ledger.posterior
    of_epsilon = two_scales.coarse_epsilon(ledger, batch.name)
    noise = _noise_variance(fitter, batch, cavity)
    larger = _noise_variance(fitter, batch, replace(cavity, hyperparameters=of_epsilon))
    smoother = two_scales.noisier(ledger, batch.name, of_epsilon, noise, larger)
    is_finer = larger > COARSER * noise
    loses_more = is_finer and two_scales.unexplained(ledger, noise) > larger
    if loses_more:
        assert cavity.hyperparameters is not None
        as_certain = two_scales.noisier(ledger, batch.name, cavity.hyperparameters, noise, noise)
        if fitter.log_density(smoother, batch) > fitter.log_density(as_certain, batch):
            ledger = two_scales.made_coarse(ledger, noise, larger)
            return _fitted_coarse(fitter, ledger, batch, budget, move)
    known = remembered.known(ledger, batch.name)
    number = len(batch.data[0])
    factor, report = fitted(fitter, cavity, batch, fine(number), budget, known)
    num_left = int(points_per_datum(budget) * two_scales.num_data(ledger))
    coarse_factor, *_ = learned(fitter, smoother, batch, coarse(number, budget), num_left)
    return ledger, replace(two_scales.of_two_scales(factor), coarse=coarse_factor), report


def _fitted_coarse(
    fitter: Fitter, ledger: GPLedger, batch: Batch, budget: int, move: bool
) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
    """The same once the ledger has the coarse ε: it is learned from all data at once, while these
    are remembered, and from the batch afterwards.
    """
    if merged_anew.serves(fitter, ledger):
        ledger = merged_anew.fitted(fitter, ledger, move, batch.report)
        batch = replace(batch, learn=False)
    others = ledger.without(batch.name) if batch.name in ledger.factors else ledger
    few = coarse(len(batch.data[0]), budget)
    return ledger, *fitted(fitter, others.posterior, batch, few, budget)


def _noise_variance(fitter: Fitter, batch: Batch, cavity: Process) -> float:
    """Of a batch's data at the mean of q(ε), in squared units of Y."""
    return _noise_at(fitter, fitter.location(cavity), batch.data[0])


def _noise_at(fitter: Fitter, epsilon: np.ndarray, X: np.ndarray) -> float:
    """At ε [E] and at inputs [N, D]."""
    return float(1.0 / np.mean(fitter.local.noise_precision(epsilon, X)))


def _absorbed(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray, most: int | None
) -> tuple[PseudoPointFactor, FitReport]:
    """The factor at one ε, which is not learned; a batch of very many data comes part by part."""
    X, _ = batch.data
    size = most or len(X)
    found, report = at_one_epsilon(fitter, cavity, _part(batch, slice(size)), epsilon)
    for start in range(size, len(X), size):
        part = _part(batch, slice(start, start + size))
        one, of_part = at_one_epsilon(fitter, cavity.times([found]), part, epsilon)
        found = _thinned(fitter, [found, one], cavity, epsilon, size)
        report = of_part._replace(free_energy=report.free_energy + of_part.free_energy)
    return found, report


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
        return fitter.fit(cavity, at_rest, lambda candidates: candidates.inputs, move=False)
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


def within(
    fitter: Fitter,
    ledger: GPLedger,
    epsilon: np.ndarray,
    budget: int,
    move: bool,
    remembers: bool = False,
) -> GPLedger:
    """The ledger with at most ``budget`` points: of the older factors' points the least needed go.

    The newest batches that hold a tenth of the budget together stay apart, and what is merged says
    all that it knows without them, as they are merged later on. Where a batch is smaller than that,
    a tenth is freed at once, so that this is rare and its cost spread over many batches.

    :param epsilon: The ε [E] at which factors are projected.
    :param move: Whether the points that stay may move, where they are few.
    :param remembers: Whether to keep a sample of the observations, if ε has a distribution.
    """
    held = ledger.posterior.num_pseudo_points
    if held <= budget:
        return ledger
    tenth = budget // 10
    apart = newest(ledger, tenth)
    older = [name for name in ledger.factors if name not in apart]
    spare = tenth if len(ledger.factors[list(ledger.factors)[-1]].Z) <= tenth else 0
    number = budget - spare - sum(len(ledger.factors[name].Z) for name in apart)
    after = multiplied(ledger, older)
    factors = [ledger.factors[name] for name in ledger.factors if name not in apart]
    moves = move and number <= MOST_MOVING
    iterations = fitter.optimiser.projection_iterations if moves else 0
    fewer = two_scales.marked(_thinned(fitter, factors, Process(), epsilon, number, iterations))
    if remembers and fewer.hyperparameters is not None:
        fewer = _remembering(fewer, factors, budget)
    after = after.replaced(MERGED, fewer)
    if fewer.is_coarse and not merged_anew.serves(fitter, after):  # nothing is learned under it
        return after.replaced(MERGED, replace(fewer, remembered=None))
    return after


def _remembering(
    merged: two_scales.TwoScaleFactor, factors: Sequence[PseudoPointFactor], budget: int
) -> two_scales.TwoScaleFactor:
    """The merged factor with a sample of the observations that it was merged from."""
    alone = [f for f in factors if two_scales.of_two_scales(f).num_projected == 0]
    new = singles(Process(tuple(one for f in alone for one in f.pseudo_observations)))
    if new is None:
        return merged
    num_before = merged.num_projected // new.targets[:, 0].size - len(new.Z)
    number = remembered.most(budget, new.Z.shape[1])
    found = remembered.sampled(merged.remembered, num_before, new, number)
    return replace(merged, remembered=found)


def _thinned(
    fitter: Fitter,
    factors: Sequence[PseudoPointFactor],
    others: Process,
    epsilon: np.ndarray,
    number: int,
    iterations: int = 0,
) -> two_scales.TwoScaleFactor:
    """The product of factors on ``number`` of their points, which knows what that lost."""
    product = reduce(mul, map(two_scales.narrowed, factors))
    fewer = fitter.merging.thinned(product, others, epsilon, number, iterations, watch=False)
    found = two_scales.projected(product, fewer, factors)
    if not fitter.bound.is_conjugate:
        return found
    return two_scales.widened(found, _noise_at(fitter, epsilon, found.Z))
