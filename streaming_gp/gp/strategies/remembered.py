"""Observations that are remembered after their factors were merged.

A merged factor has been smoothed at the ε of that time, and does not show how f varies over shorter
distances. A random sample of the observations does, for a few of the bytes of the merged factor.
"""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.single_observations import SingleObservations, joined, singles
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.gp.strategies.two_scales import TwoScaleFactor, of_two_scales

SHARE = 0.25
"""Of the numbers that the precision of a full budget takes."""
MOST = 20_000
"""Beyond, to look for neighbours among them takes as long as to learn from these."""

ALL = 0.9
"""From this share on the sample is taken for all that was merged; the rest is lost then."""


def most(budget: int, input_dim: int) -> int:
    """How many observations are remembered within a budget of points."""
    return min(MOST, int(SHARE * budget**2 / (input_dim + 2)))


def known(ledger: GPLedger, batch: str) -> SingleObservations | None:
    """All observations of one input each that the factors of other batches hold or remember."""
    others = {name: factor for name, factor in ledger.factors.items() if name != batch}
    parts = [singles(Process(f.pseudo_observations)) for n, f in others.items() if n != MERGED]
    if MERGED in others:
        parts.append(of_two_scales(others[MERGED]).remembered)
    found = [part for part in parts if part is not None]
    return joined(found) if found else None


def is_complete(merged: TwoScaleFactor) -> bool:
    """Whether all observations that were merged are remembered, or nearly all."""
    found = merged.remembered
    if found is None or not merged.is_of_data:
        return False
    return found.targets.size >= ALL * merged.num_projected


def sampled(
    before: SingleObservations | None, num_before: int, new: SingleObservations, number: int
) -> SingleObservations:
    """A random sample of all observations so far.

    :param before: A sample of earlier ones.
    :param num_before: How many observations that is a sample of.
    :param number: The size of the sample.
    """
    if before is not None and len(before.Z) + len(new.Z) <= number:
        return joined([before, new])
    rng = np.random.default_rng(num_before)
    if before is None:
        return _some(new, number, rng)
    of_new = rng.hypergeometric(len(new.Z), max(num_before, number), number)
    of_new = max(int(of_new), number - len(before.Z))
    return joined([_some(before, number - of_new, rng), _some(new, of_new, rng)])


def _some(one: SingleObservations, number: int, rng: np.random.Generator) -> SingleObservations:
    return one.rows(np.sort(rng.permutation(len(one.Z))[:number]))
