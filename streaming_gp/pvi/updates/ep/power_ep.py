"""Power expectation propagation: one site a datum (Minka 2004; PVI 2018, algorithms 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
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
class PowerEPUpdate:
    """``t_n ← t_n^(1−ρ) (proj[q_n p(y_n | θ)^α] / q_n)^(ρ/α)`` under ``q_n = q / t_n^α``.

    This is algorithm 2 of PVI 2018 with ``q_n t_n^α`` written for q. A visit sweeps over the
    client's data, and its answer is the product of their sites. As a client keeps nothing between
    visits, sites start at an equal share of its factor. Data whose cavity or tilted distribution is
    improper keep their sites in that sweep, and are counted.

    - One datum a client, ``PowerEPUpdate.one_step(alpha)``: power EP as it stands (algorithm 2),
      with the server's damping. Then α = 1 is expectation propagation, a single sequential round of
      which is assumed density filtering; α → 0 is ``FixedPointUpdate`` (property 6).
    - All data in one client and ``PowerEPUpdate(damping=1.0, sequential=True)``: the same, as
      one compiled loop.
    - One datum a client, sweeps to convergence: the q of least α-divergence from the tilted
      distribution (algorithm 3), of which the sweeps are the fixed-point iteration.
    - Many data a client: sweeps to convergence, so that the answer forgets the start. One sweep of
      damping 1 ties the sites to their mean, as ``StochasticEPUpdate`` does.

    :param alpha: The power α > 0.
    :param sweeps: The number of sweeps over the client's data in one visit.
    :param damping: The damping ρ in (0, 1] of each site.
    :param sequential: Whether each site is refined under the q that the one before led to, in one
        random order; else all are refined under one q.
    :param filtered_start: Whether sites are found one after another before the first of several
        sweeps, while the client has no factor: refined under the prior all at once, many of them
        overshoot where the prior is far wider than the posterior.
    """

    alpha: float = 1.0
    sweeps: int = 20
    damping: float = 0.5
    sequential: bool = False
    filtered_start: bool = True

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.alpha > 0.0:
            raise InvalidDataError(
                f"alpha and sweeps must be positive, got {self.alpha} and {self.sweeps}"
            )
        require_fraction("damping", self.damping)

    @classmethod
    def one_step(cls, alpha: float = 1.0) -> PowerEPUpdate:
        """One undamped moment match of each datum (PVI 2018, algorithm 2).

        :param alpha: The power α > 0; 1 is expectation propagation.
        """
        return cls(alpha, sweeps=1, damping=1.0)

    def __call__(self, task: LocalTask) -> LocalResult:
        rows, skipped = self._rows(task), 0
        sites = self._start(task, rows)
        factor = product(sites, axes=2)
        step = _RefineSites(self.alpha, self.damping)
        for _ in range(self.sweeps):
            _, sites, kept = swept(step, task, factor, rows, sites)
            factor, skipped = product(sites, axes=2), skipped + kept
        factor = factor.as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.sweeps, skipped)

    def _rows(self, task: LocalTask) -> np.ndarray:
        return minibatches(task, 1, task.num_data) if self.sequential else _all_rows(task)

    def _start(self, task: LocalTask, rows: np.ndarray) -> Factor:
        """All sites [S, B] before the first sweep."""
        at_once = not self.sequential and self.sweeps > 1 and task.num_data > 1
        if self.filtered_start and task.own is None and at_once:
            return _one_after_another(task, self.alpha)
        return stacked(own_factor(task) ** (1.0 / task.num_data), *rows.shape)


def _one_after_another(task: LocalTask, alpha: float) -> Factor:
    """Each datum's site [1, N] under the cavity and the sites of those before it."""
    rows, nothing = np.arange(task.num_data)[:, None], task.cavity**0.0
    step, begun = _RefineSites(alpha, damping=1.0), stacked(nothing, *rows.shape)
    _, sites, _ = swept(step, task, nothing, rows, begun)
    *natural, log_scale = (eta[:, 0][None] for eta in (*sites.natural, sites.log_scale))
    return Factor(sites.family, tuple(natural), log_scale)


def _all_rows(task: LocalTask) -> np.ndarray:
    return np.arange(task.num_data)[None]


@dataclass(frozen=True)
class _RefineSites:
    """Every datum has its own."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: Factor, data: Batch
    ) -> tuple[Factor, Factor, tf.Tensor]:
        cavities = stacked(cavity * factor) / sites**self.alpha
        new = tilted_factors(model, self.alpha, cavities, data)
        new, skipped = refined(sites, damped(sites, new, self.damping))
        return factor * product(new / sites), new, skipped
