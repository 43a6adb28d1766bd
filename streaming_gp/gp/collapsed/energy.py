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
    total = 0.0
    try:
        for group, Y in enumerate(np.split(known.Y, len(known.targets), axis=1)):
            observed = Observed(known.factor[group], known.targets[group], known.nuggets)
            prior = values.of_group(group)
            batch = under_cavity(prior, observed, bound.on_points)
            nugget = float(known.nugget) if bound.on_points else 0.0
            value, by = bound.value_and_gradient(batch.described(prior, Y, nugget))
            total += value + by_evidence * batch.cavity.log_evidence
            batch.pull_back(by, by_evidence, by_values.of_group(group))
    except np.linalg.LinAlgError:
        return -np.inf, PriorValues(*map(np.zeros_like, values))
    return total, by_values
