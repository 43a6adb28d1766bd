"""Stochastic power EP: one site for all data (Li et al. 2015; PVI 2018, algorithm 4), or for all
pieces of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_fraction, require_positive, require_positive_integer, typed
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.power_ep import (
    evidence,
    minibatches,
    own_factor,
    product,
    refine,
    repeated,
    sweep,
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
        require_positive("alpha", self.alpha)
        require_positive_integer("steps", self.steps)
        require_fraction("damping", self.damping)

    def __call__(self, task: LocalTask) -> LocalResult:
        step = _RefineShared(self.alpha, self.damping)
        rows = minibatches(task, self.batch_size, self.steps)
        factor, _, skipped = sweep(step, task, own_factor(task), rows)
        factor = factor.as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.steps, skipped)


@dataclass(frozen=True)
class _RefineShared:
    """All data share one."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: None, X: Any, Y: Any, number: Any
    ) -> tuple[Factor, None, tf.Tensor]:
        number = tf.cast(number, factor.log_scale.dtype)
        site = repeated(factor ** (1.0 / number))
        tied = repeated(cavity * factor) / site**self.alpha
        new, skipped = refine(site, tilted_factors(model, self.alpha, tied, X, Y))
        target = product(new) ** (number / tf.cast(tf.shape(X)[0], number.dtype))
        return damped(factor, target, self.damping), None, skipped


@dataclass(frozen=True)
class TiedUpdate:
    """Stochastic EP over pieces of data: ``t ← t^(1−1/K) t_k`` with ``t_k`` under ``q / t^(1/K)``.

    A client's data are cut into K pieces, whose factors all are ``t^(1/K)``. The rule fits piece k
    under the cavity that leaves out one of them, and ``t_k`` is its answer. So stochastic EP takes
    moments by sampling (supplement, C.2), as distributed EP does, at a K-th of its memory:
    ``TiedUpdate(MomentSharingUpdate(...), 20)``. With single data as pieces and
    ``PowerEPUpdate.one_step()`` it is ``StochasticEPUpdate``.

    :param rule: The rule that fits a piece.
    :param pieces: The number of pieces K; rows are cut where they are, in order.
    :param passes: The number of passes over all pieces in one visit.
    :param averaged: Whether all pieces are fitted under one q, and then ``t ← Π_k t_k`` (averaged
        EP); else one after another, in a random order.
    :raises InvalidDataError: if a number is not positive.
    """

    rule: UpdateRule
    pieces: int
    passes: int = 1
    averaged: bool = False

    def __post_init__(self) -> None:
        require_positive_integer("pieces", self.pieces)
        require_positive_integer("passes", self.passes)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit piece after piece.

        :raises InvalidDataError: if there are more pieces than data.
        :raises ImproperError: if q is no distribution on the way.
        """
        if self.pieces > task.num_data:
            raise InvalidDataError(f"{task.num_data} data cannot be cut into {self.pieces} pieces")
        factor, skipped, knows_evidence = own_factor(task), 0, True
        rng, (X, Y) = np.random.default_rng(task.seed), task.data
        parts = np.array_split(np.arange(task.num_data), self.pieces)
        for _ in range(self.passes):
            total = factor**0.0
            for number in rng.permutation(self.pieces):
                rows, seed = parts[number], int(rng.integers(2**31))
                q, own = (task.cavity * factor).normalised(), factor ** (1.0 / self.pieces)
                piece = replace(
                    task, data=(X[rows], Y[rows]), posterior=q, own=own, start=q, seed=seed
                )
                result = self.rule(piece)
                skipped += result.skipped
                knows_evidence &= bool(np.isfinite(result.free_energy))
                if self.averaged:
                    total = total * result.factor
                else:
                    factor = factor ** (1.0 - 1.0 / self.pieces) * result.factor
            factor = total if self.averaged else factor
        factor = factor.as_arrays()
        free_energy = evidence(task.cavity, factor) if knows_evidence else float("nan")
        return LocalResult(factor, free_energy, self.passes, skipped)
