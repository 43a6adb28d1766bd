"""Stochastic power EP: one site for all data (Li et al. 2015; PVI 2018, algorithm 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_fraction, typed
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.ep.tilted import (
    Batch,
    evidence,
    minibatches,
    own_factor,
    product,
    refined,
    stacked,
    swept,
    tilted_factors,
)


@typed
@dataclass(frozen=True)
class StochasticEPUpdate:
    """``t ← t^(1−ρ) Π_n (proj[q_1 p(y_n | θ)^α] / q_1)^(ρN/(αB))`` under ``q_1 = q / t^(α/N)``.

    The client's N data share one site ``t^(1/N)``, and a minibatch of B gives that of an average
    datum. What is kept is one factor, where power EP keeps N of them; a step holds B for a
    moment. For α → 0 this is ``FixedPointUpdate`` on the same minibatches (property 7).

    - All data and damping 1, the default: averaged EP; of several clients, distributed averaged EP.
    - ``StochasticEPUpdate(steps=N, damping=1 / N, batch_size=1)``: a pass of stochastic EP; of
      several clients, distributed stochastic EP.

    :param alpha: The power α > 0.
    :param steps: The number of steps of one visit.
    :param damping: The damping ρ in (0, 1] of each step.
    :param batch_size: The number B of random rows in each step; all if None.
    """

    alpha: float = 1.0
    steps: int = 1
    damping: float = 1.0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.alpha > 0.0:
            raise InvalidDataError(
                f"alpha and steps must be positive, got {self.alpha} and {self.steps}"
            )
        require_fraction("damping", self.damping)

    def __call__(self, task: LocalTask) -> LocalResult:
        step = _RefineShared(self.alpha, self.damping)
        rows = minibatches(task, self.batch_size, self.steps)
        factor, _, skipped = swept(step, task, own_factor(task), rows)
        factor = factor.as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.steps, skipped)


@dataclass(frozen=True)
class _RefineShared:
    """All data share one."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: None, data: Batch
    ) -> tuple[Factor, None, tf.Tensor]:
        number = tf.cast(data.num_data, factor.log_scale.dtype)
        site = stacked(factor ** (1.0 / number))
        tied = stacked(cavity * factor) / site**self.alpha
        new, skipped = refined(site, tilted_factors(model, self.alpha, tied, data))
        target = product(new) ** (number / tf.cast(tf.shape(data.X)[0], number.dtype))
        return damped(factor, target, self.damping), None, skipped
