"""Several batches with a point at every input as one, and one factor as one for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.with_targets import (
    FactorWithTargets,
    joined_observations,
    with_targets,
)


def data_of(factor: PseudoPointFactor) -> Data:
    """X [N, D] and Y [N, P] of a batch whose factor is its likelihood, or has the targets."""
    if isinstance(factor, FactorWithTargets):
        return factor.Z, factor.targets
    (one,) = plain(Process(factor.pseudo_observations))
    return SingleObservations.of(one).data


def joined_data(parts: Sequence[Data]) -> Data:
    """One batch of several, one after another."""
    X, Y = zip(*parts, strict=True)
    return np.concatenate(X), np.concatenate(Y)


def without(ledger: GPLedger, names: Sequence[str]) -> GPLedger:
    """The ledger without some of its factors."""
    for name in names:
        ledger = ledger.without(name)
    return ledger


def divided(
    fitter: Fitter,
    cavity: Process,
    factor: PseudoPointFactor,
    epsilon: np.ndarray,
    batch: Batch,
    parts: Sequence[Data],
) -> list[PseudoPointFactor]:
    """A factor of several batches as one for each: what it says at the inputs of each, and a share
    of what all of them say of ε.

    :param cavity: Prior times all factors of other batches.
    """
    total = sum(len(X) for X, _ in parts)
    shares = [factor.saying_less_of_epsilon(len(X) / total) for X, _ in parts]
    if not fitter.bound.is_conjugate:
        return _sites_divided(fitter, cavity, factor, epsilon, shares, parts)
    found = []
    for share, data in zip(shares, parts, strict=True):
        rows, constant = every_input.likelihood(fitter, replace(batch, data=data), epsilon)
        found.append(replace(share, pseudo_observations=(rows,), log_scale=constant))
    return found


def _sites_divided(
    fitter: Fitter,
    cavity: Process,
    factor: PseudoPointFactor,
    epsilon: np.ndarray,
    shares: Sequence[PseudoPointFactor],
    parts: Sequence[Data],
) -> list[PseudoPointFactor]:
    """The same where noise is not Gaussian."""
    says = PseudoPointFactor(factor.pseudo_observations)
    posterior = fitter.factorisations.at(epsilon, cavity.times([says]))
    sites, end, found = joined_observations([factor]), 0, []
    for share, data in zip(shares, parts, strict=True):
        start, end = end, end + len(data[0])
        own = sites.rows(np.arange(start, end))
        constant = _log_scale(fitter, posterior, epsilon, own, data)
        rows = own.as_pseudo_observations()
        one = replace(share, pseudo_observations=(rows,), log_scale=constant)
        found.append(with_targets(one, data))
    return found


def _log_scale(
    fitter: Fitter, posterior: Factorised, epsilon: np.ndarray, said: SingleObservations, data: Data
) -> float:
    """``E_q[log p(y | f)] + ½ E_q[‖s − r f‖²]``: with it a site of a batch is worth what its data
    are, in expectation. Those of all batches add up to that of their product.
    """
    mean, variance = posterior.marginals(said.Z)
    residual = said.targets - said.roots[:, :, None] * mean
    moments = mean[:, :, 0].T[None], variance.T[None]
    expected = fitter.local.at_data.step(epsilon[None], *data, *moments).expected
    return expected + 0.5 * float(np.sum(residual**2) + np.sum(said.roots**2 * variance))
