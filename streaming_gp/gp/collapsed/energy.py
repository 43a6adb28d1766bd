"""A collapsed bound as a function of the prior's values: linear algebra in NumPy."""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.collapsed.bounds import CollapsedBound, OnPoints
from streaming_gp.gp.collapsed.known import Known, described
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.taken_over import value_and_gradient


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
    columns = np.split(known.Y, len(known.targets), axis=1)
    try:
        found = [
            _of_group(bound, values.of_group(group), known, group, Y, by_evidence, takes_over)
            for group, Y in enumerate(columns)
        ]
    except np.linalg.LinAlgError:
        return -np.inf, PriorValues(*map(np.zeros_like, values))
    totals, by_values = zip(*found, strict=True)
    return sum(totals), values.gathered(by_values)


def _of_group(
    bound: CollapsedBound,
    prior: PriorValues,
    known: Known,
    group: int,
    Y: np.ndarray,
    by_evidence: float,
    takes_over: bool,
) -> tuple[float, PriorValues]:
    """The same of one group, whose observations are Y [N, C]."""
    batch, found = described(known, prior, group, Y, bound.on_points, takes_over)
    if takes_over:
        assert isinstance(bound, OnPoints)
        value, by = value_and_gradient(bound, found, found.noise.shape[1] - len(Y))
    else:
        value, by = bound.value_and_gradient(found)
    return value + batch.log_evidence(by_evidence), batch.pulled_back(by, by_evidence, prior)
