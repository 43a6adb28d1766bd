"""Power expectation propagation: one site a datum (Minka 2004; PVI 2018, algorithms 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.damping import damped, require_damping
from streaming_gp.pvi.updates.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.tilted import (
    evidence,
    own_factor,
    product,
    refined,
    stacked,
    tilted_factors,
)


@dataclass(frozen=True)
class PowerEPUpdate:
    """``t_n ← t_n^(1−ρ) (proj[q_n p(y_n | θ)^α] / q_n)^(ρ/α)`` under ``q_n = q / t_n^α``.

    This is algorithm 2 of PVI 2018 with ``q_n t_n^α`` written for q. A visit makes parallel sweeps
    over the client's data, and its answer is the product of their sites. As a client keeps nothing
    between visits, sites start at an equal share of its factor. Data whose cavity or tilted
    distribution is improper keep their sites in that sweep, and are counted.

    - One datum a client, one sweep of damping 1: power EP as it stands, with the server's damping.
      Then α = 1 is expectation propagation, a single sequential round of which is assumed density
      filtering; α → 0 is ``FixedPointUpdate`` (property 6).
    - One datum a client, sweeps to convergence: the q of least α-divergence from the tilted
      distribution (algorithm 3), of which the sweeps are the fixed-point iteration.
    - Many data a client: sweeps to convergence, so that the answer forgets the start. One sweep of
      damping 1 ties the sites to their mean, as ``StochasticEPUpdate`` does.

    :param alpha: α > 0.
    :param sweeps: over the client's data in one visit.
    :param damping: ρ in (0, 1].
    """

    alpha: float = 1.0
    sweeps: int = 20
    damping: float = 0.5

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.alpha > 0.0:
            raise InvalidDataError(
                f"alpha and sweeps must be positive, got {self.alpha} and {self.sweeps}"
            )
        require_damping(self.damping)

    def __call__(self, task: LocalTask) -> LocalResult:
        sites = stacked(own_factor(task) ** (1.0 / task.num_data), task.num_data)
        skipped = 0
        for _ in range(self.sweeps):
            q = (task.cavity * product(sites)).normalised().as_factor()
            new = tilted_factors(task.model, self.alpha, q / sites**self.alpha, *task.data)
            sites, without = refined(sites, damped(sites, new, self.damping))
            skipped += without
        factor = product(sites).as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.sweeps, skipped)
