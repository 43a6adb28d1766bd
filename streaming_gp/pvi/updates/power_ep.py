"""Power expectation propagation: one site a datum (Minka 2004; PVI 2018, algorithms 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.damping import damped, require_damping
from streaming_gp.pvi.updates.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.tilted import (
    evidence,
    own_factor,
    product,
    refined,
    stacked,
    swept,
    tilted_factors,
)


@dataclass(frozen=True)
class PowerEPUpdate:
    """``t_n ← t_n^(1−ρ) (proj[q_n p(y_n | θ)^α] / q_n)^(ρ/α)`` under ``q_n = q / t_n^α``.

    This is algorithm 2 of PVI 2018 with ``q_n t_n^α`` written for q. A visit sweeps over the
    client's data, and its answer is the product of their sites: of B data in parallel, then of the
    next B under the q that these led to. As a client keeps nothing between visits, sites start at
    an equal share of its factor. Data whose cavity or tilted distribution is improper keep their
    sites in that sweep, and are counted.

    - One datum a client, one sweep of damping 1: power EP as it stands, with the server's damping.
      Then α = 1 is expectation propagation, a single sequential round of which is assumed density
      filtering; α → 0 is ``FixedPointUpdate`` (property 6).
    - All data in one client and ``PowerEPUpdate(damping=1.0, batch_size=1)``: the same, with a
      random order in each sweep, at the speed of compiled code.
    - One datum a client, sweeps to convergence: the q of least α-divergence from the tilted
      distribution (algorithm 3), of which the sweeps are the fixed-point iteration.
    - Many data a client: sweeps to convergence, so that the answer forgets the start. One sweep of
      damping 1 ties the sites to their mean, as ``StochasticEPUpdate`` does.

    :param alpha: α > 0.
    :param sweeps: over the client's data in one visit.
    :param damping: ρ in (0, 1].
    :param batch_size: B, in a random order; all in parallel if None.
    """

    alpha: float = 1.0
    sweeps: int = 20
    damping: float = 0.5
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.alpha > 0.0:
            raise InvalidDataError(
                f"alpha and sweeps must be positive, got {self.alpha} and {self.sweeps}"
            )
        require_damping(self.damping)

    def __call__(self, task: LocalTask) -> LocalResult:
        own = own_factor(task)
        sites = stacked(own ** (1.0 / task.num_data), task.num_data)
        steps = self.sweeps * -(-task.num_data // task.size_of(self.batch_size))
        step = _RefineSites(self.alpha, self.damping)
        (_, sites), skipped = swept(step, task, (own, sites), self.batch_size, steps)
        factor = product(sites).as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.sweeps, skipped)


@dataclass(frozen=True)
class _RefineSites:
    """Keeps N sites, and their product."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, kept: tuple[Factor, Factor], X: Any, Y: Any, rows: Any
    ) -> tuple[tuple[Factor, Factor], tf.Tensor]:
        factor, sites = kept
        old = _of_rows(sites, rows)
        cavities = stacked(cavity * factor) / old**self.alpha
        new = tilted_factors(model, self.alpha, cavities, tf.gather(X, rows), tf.gather(Y, rows))
        new, skipped = refined(old, damped(old, new, self.damping))
        return (factor * product(new / old), _replaced(sites, rows, new)), skipped


def _of_rows(sites: Factor, rows: tf.Tensor) -> Factor:
    natural = tuple(tf.gather(eta, rows) for eta in sites.natural)
    return Factor(sites.family, natural, tf.gather(sites.log_scale, rows))


def _replaced(sites: Factor, rows: tf.Tensor, new: Factor) -> Factor:
    def scattered(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(old, rows[:, None], new)

    natural = tuple(map(scattered, sites.natural, new.natural))
    return Factor(sites.family, natural, scattered(sites.log_scale, new.log_scale))
