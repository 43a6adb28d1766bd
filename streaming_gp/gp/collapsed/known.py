"""A batch under its cavity, or on points that take over what earlier ones said, from the prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streaming_gp.gp.collapsed.batch import BatchUnderCavity, UnderCavity, under_cavity
from streaming_gp.gp.collapsed.cavity import FEW_ROWS, Observed
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.taken_over import TakenOver, taken_over

Batch = BatchUnderCavity | TakenOver


class Known(NamedTuple):
    """What does not depend on ε.

    :param Y: Observations [N, P].
    :param factor: Precision factors of the cavity's pseudo-observations [G, n, m, m].
    :param targets: Their targets [G, n m, C].
    :param nuggets: Their nuggets [n m].
    :param speaks: Which of their rows are no padding [n, m].
    :param nugget: That of the batch's points [].
    :param shared: What of it earlier points that are taken over have in common with them [].
    """

    Y: np.ndarray
    factor: np.ndarray
    targets: np.ndarray
    nuggets: np.ndarray
    speaks: np.ndarray
    nugget: np.ndarray
    shared: np.ndarray


def described(
    known: Known, prior: PriorValues, group: int, Y: np.ndarray, on_points: bool, takes_over: bool
) -> tuple[Batch, UnderCavity]:
    """The batch in one group, of which observations are Y [N, C], and what it is.

    :param prior: The prior of the group; its points are the rows that speak and then the batch's.
    :param on_points: Whether the batch has points beside its data.
    :param takes_over: Whether these take over what earlier ones said.
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    said, nugget = observed(known, group), float(known.nugget) if on_points else 0.0
    if not takes_over:
        batch = under_cavity(prior, said, on_points)
        return batch, batch.described(prior, Y, nugget)
    rows = np.ravel(known.speaks)
    number = prior.among.shape[1] - len(said.nugget)
    shared = float(known.shared) * np.eye(len(rows), number)[rows]
    joint = taken_over(prior, said)
    return joint, joint.described(prior, Y, nugget, shared)


def observed(known: Known, group: int) -> Observed:
    """What the cavity is conditioned on, in one group."""
    blocks = [
        block if rows.all() else block[rows][:, rows]
        for block, rows in zip(known.factor[group], known.speaks, strict=True)
        if rows.any()
    ]
    rows = np.ravel(known.speaks)
    return Observed(_joined(blocks), known.targets[group][rows], known.nuggets[rows])


def _joined(blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Small diagonal blocks, one after another, as larger ones: a product takes as long with both,
    and there are fewer.
    """
    found: list[np.ndarray] = []
    some: list[np.ndarray] = []
    for block in blocks:
        some.append(block)
        if sum(map(len, some)) >= FEW_ROWS:
            found.append(_block_diagonal(some))
            some = []
    return [*found, _block_diagonal(some)] if some else found


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    number = sum(map(len, blocks))
    found, start = np.zeros((number, number)), 0
    for block in blocks:
        stop = start + len(block)
        found[start:stop, start:stop] = block
        start = stop
    return found
