"""Sites of labels and counts that are found anew while a stream grows.

A site is fitted where its batch expects f. While labels of one class come, f goes far up, and there
a label says next to nothing of how far f may come down again: when the other class comes, f does,
and what was known of the first is lost. With a point at every input factors know their targets, so
that all sites can be found once more, together, as a further pass of PVI over these batches would.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.several_batches import data_of, divided, joined_data, without
from streaming_gp.gp.strategies.together import ENOUGH
from streaming_gp.gp.strategies.with_targets import FactorWithTargets, joined_observations, sites_of

GROWTH = 0.25
"""Sites are found anew whenever the points that are held have grown by this share."""
MOST_POINTS = 2000
"""Of more, that takes too long for one batch."""


def refreshed(
    fitter: Fitter,
    ledger: GPLedger,
    batch: Batch,
    factor: PseudoPointFactor,
    epsilon: np.ndarray,
) -> tuple[GPLedger, PseudoPointFactor]:
    """The ledger and the factor of a new batch, with sites at ε found anew if that is due.

    What factors say of ε stays. Where a covariance is not positive sites stay as well.

    :param ledger: The ledger without the batch.
    :param factor: The batch's factor.
    :param epsilon: ε [E].
    """
    known = [n for n, one in ledger.factors.items() if isinstance(one, FactorWithTargets)]
    knows = isinstance(factor, FactorWithTargets)
    if not (knows and known) or not _is_due(ledger.posterior.num_pseudo_points, len(factor.Z)):
        return ledger, factor
    rest, old = without(ledger, known), [*(ledger.factors[name] for name in known), factor]
    parts = [data_of(one) for one in old]
    data = joined_data(parts)
    sites = sites_of(joined_observations(old))
    joined = replace(batch, data=data, num_joined=len(data[0]), sites=sites)
    with suppress(NumericalError):
        found, _ = every_input.at_one_epsilon(fitter, rest.posterior, joined, epsilon)
        *earlier, factor = (
            replace(new, hyperparameters=one.hyperparameters)
            for new, one in zip(
                divided(fitter, rest.posterior, found, epsilon, batch, parts), old, strict=True
            )
        )
        ledger = ledger.with_factors({**ledger.factors, **dict(zip(known, earlier, strict=True))})
    return ledger, factor


def _is_due(num_held: int, num_new: int) -> bool:
    """Whether the next power of 1 + growth is reached, so that a ledger alone decides.

    Of fewer points all sites are found together whenever ε is learned.
    """
    if num_held < ENOUGH or num_held + num_new > MOST_POINTS:
        return False
    before, after = np.log([num_held, num_held + num_new]) / np.log(1.0 + GROWTH)
    return int(after) > int(before)
