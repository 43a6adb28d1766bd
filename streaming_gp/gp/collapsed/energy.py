"""A collapsed bound as a function of the prior's values: linear algebra in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from streaming_gp.gp.collapsed.batch import under_cavity
from streaming_gp.gp.collapsed.bounds import CollapsedBound, OnPoints
from streaming_gp.gp.collapsed.cavity import FEW_ROWS, Observed
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.taken_over import TakenOver


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


def energy(
    bound: CollapsedBound,
    values: PriorValues,
    known: Known,
    by_evidence: float,
    takes_over: bool = False,
) -> tuple[float, PriorValues]:
    """The bound, summed over ε, and its derivatives; minus infinity and zeros if a covariance is
    not positive.

    :param values: The prior; its points are the rows that speak and then the batch's.
    :param by_evidence: How often the log evidence of the cavity is added.
    :param takes_over: Whether the batch's points take over what earlier ones said, which is the
        cavity of the batch otherwise.
    """
    groups = range(len(known.targets))
    columns = np.split(known.Y, len(groups), axis=1)
    of_one: Callable[..., Any] = _taken_over if takes_over else _under_cavity
    of_group = partial(of_one, bound, known)
    try:
        found = [
            of_group(values.of_group(group), observed(known, group), Y, by_evidence)
            for group, Y in zip(groups, columns, strict=True)
        ]
    except np.linalg.LinAlgError:
        return -np.inf, PriorValues(*map(np.zeros_like, values))
    totals, by_values = zip(*found, strict=True)
    return sum(totals), values.gathered(by_values)


def _under_cavity(
    bound: CollapsedBound,
    known: Known,
    prior: PriorValues,
    observed: Observed,
    Y: np.ndarray,
    by_evidence: float,
) -> tuple[float, PriorValues]:
    """The same of one group, whose observations are Y [N, C]."""
    nugget = float(known.nugget) if bound.on_points else 0.0
    batch = under_cavity(prior, observed, bound.on_points)
    value, by = bound.value_and_gradient(batch.described(prior, Y, nugget))
    value += by_evidence * batch.cavity.log_evidence
    return value, batch.pulled_back(by, by_evidence, prior)


def _taken_over(
    bound: OnPoints,
    known: Known,
    prior: PriorValues,
    observed: Observed,
    Y: np.ndarray,
    by_evidence: float,
) -> tuple[float, PriorValues]:
    """Likewise."""
    rows = np.ravel(known.speaks)
    number = prior.among.shape[1] - len(observed.nugget)
    shared = float(known.shared) * np.eye(len(rows), number)[rows]
    batch = TakenOver(prior, observed, Y, float(known.nugget), shared)
    return batch.value_and_gradient(bound, by_evidence)


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
