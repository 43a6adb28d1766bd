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
    factor: PseudoPointFactor,
    epsilon: np.ndarray,
    batch: Batch,
    parts: Sequence[Data],
) -> list[PseudoPointFactor]:
    """A factor of several batches as one for each: what it says at the inputs of each, and a share
    of what all of them say of ε.
    """
    total, end, found = sum(len(X) for X, _ in parts), 0, []
    sites = None if fitter.bound.is_conjugate else joined_observations([factor])
    for X, Y in parts:
        share, start, end = factor ** (len(X) / total), end, end + len(X)
        if sites is None:
            rows, constant = every_input.likelihood(fitter, replace(batch, data=(X, Y)), epsilon)
            found.append(replace(share, pseudo_observations=(rows,), log_scale=constant))
        else:
            rows = sites.rows(np.arange(start, end)).as_pseudo_observations()
            found.append(with_targets(replace(share, pseudo_observations=(rows,)), (X, Y)))
    return found
