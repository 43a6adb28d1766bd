"""A collapsed bound as a function of the prior's values: linear algebra in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming_gp.gp.collapsed.batch import under_cavity
from streaming_gp.gp.collapsed.bounds import CollapsedBound
from streaming_gp.gp.collapsed.cavity import Observed
from streaming_gp.gp.collapsed.prior_values import PriorValues


class Known(NamedTuple):
    """What does not depend on ε.

    :param Y: Observations [N, P].
    :param factor: Precision factors of the cavity's pseudo-observations [G, n, m, m].
    :param targets: Their targets [G, n m, C].
    :param nuggets: Their nuggets [n m].
    :param nugget: That of the batch's points [].
    """

    Y: np.ndarray
    factor: np.ndarray
    targets: np.ndarray
    nuggets: np.ndarray
    nugget: np.ndarray


def energy(
    bound: CollapsedBound, values: PriorValues, known: Known, by_evidence: float
) -> tuple[float, PriorValues]:
    """The bound, summed over ε, and its derivatives; minus infinity and zeros if a covariance is
    not positive.

    :param by_evidence: How often the log evidence of the cavity is added.
    """
    by_values = PriorValues(*map(np.zeros_like, values))
    said = _rows_that_speak(known.factor)
    num_own = values.among.shape[-1] - said.size
    points = np.append(np.ravel(said), np.ones(num_own, dtype=bool))
    total = 0.0
    try:
        for group, Y in enumerate(np.split(known.Y, len(known.targets), axis=1)):
            prior = values.of_group(group).at_points(points)
            batch = under_cavity(prior, _observed(known, said, group), bound.on_points)
            nugget = float(known.nugget) if bound.on_points else 0.0
            value, by = bound.value_and_gradient(batch.described(prior, Y, nugget))
            total += value + by_evidence * batch.cavity.log_evidence
            found = batch.pulled_back(by, by_evidence, prior)
            by_values.of_group(group).add_at_points(points, found)
    except np.linalg.LinAlgError:
        return -np.inf, PriorValues(*map(np.zeros_like, values))
    return total, by_values


def _rows_that_speak(factor: np.ndarray) -> np.ndarray:
    """Which rows [n, m] of the blocks [G, n, m, m] are no padding."""
    said = factor != 0.0
    found = np.any(said, axis=(0, 2)) | np.any(said, axis=(0, 3))
    if not np.any(found):
        found[0, 0] = True  # nothing is known: one row that says nothing stands for it
    return np.asarray(found)


def _observed(known: Known, said: np.ndarray, group: int) -> Observed:
    """What the cavity is conditioned on, in one group."""
    blocks = [
        block[rows][:, rows]
        for block, rows in zip(known.factor[group], said, strict=True)
        if np.any(rows)
    ]
    rows = np.ravel(said)
    return Observed(blocks, known.targets[group][rows], known.nuggets[rows])
