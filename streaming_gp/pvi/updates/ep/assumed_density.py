"""Assumed density filtering: moment matching that keeps no sites (Minka 2001, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import typed
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.ep.tilted import (
    Batch,
    evidence,
    minibatches,
    product,
    refined,
    stacked,
    swept,
    tilted_factors,
)


@typed
@dataclass(frozen=True)
class AssumedDensityUpdate:
    """``q ← proj[q(θ) p(y_n | θ)]`` for one datum after another, in a random order.

    The first pass is that of EP. Nothing is ever taken out again: p passes count every datum p
    times, and q becomes too sure. Probabilistic back-propagation trains so (Hernández-Lobato &
    Adams 2015). Data whose tilted distribution is improper are left out, and counted.

    :param passes: The number of passes over the client's data in one visit.
    """

    passes: int = 1

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise InvalidDataError(f"passes must be positive, got {self.passes}")

    def __call__(self, task: LocalTask) -> LocalResult:
        rows = minibatches(task, 1, self.passes * task.num_data)
        factor, _, skipped = swept(_Include(), task, task.cavity**0.0, rows)
        factor = factor.as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.passes, skipped)


@dataclass(frozen=True)
class _Include:
    """All sites are kept as one product, the factor."""

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: None, data: Batch
    ) -> tuple[Factor, None, tf.Tensor]:
        q = stacked(cavity * factor)
        new, skipped = refined(q**0.0, tilted_factors(model, 1.0, q, data))
        return factor * product(new), None, skipped
