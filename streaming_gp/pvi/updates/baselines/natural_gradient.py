"""Stochastic natural-gradient descent at the server's q (PVI 2018, appendix E.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from streaming_gp.inputs import typed
from streaming_gp.pvi.checks import NO_LIMITS, Checks
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.local.fixed_point import FixedPointUpdate


@typed
@dataclass(frozen=True)
class StochasticNaturalGradientUpdate:
    """A worker of stochastic natural-gradient descent (SNGD; PVI 2018, appendix E.6).

    Each visit answers with the natural gradient of one minibatch, scaled to all the client's data.
    In synchronous rounds the server's damping ρ is the rate: with λ the natural parameters of q and
    λ₀ those of the prior, ``λ ← (1 − ρ) λ + ρ (λ₀ + Σ_m (N_m / B) ∂/∂μ E_q[Σ log p(y | θ)])``. The
    answer is that of ``FixedPointUpdate(batch_size=batch_size)``. But the rule sets the server's
    limits on answers aside, as gradients of few rows of one class may well take away what others
    know; and ``Momentum`` is not for it.

    :param batch_size: The number B of rows of a minibatch; all if None, or if there are fewer.
    :raises InvalidDataError: if it is not positive.
    """

    batch_size: int | None = 100
    checks: ClassVar[Checks] = NO_LIMITS

    def __post_init__(self) -> None:
        self._step()  # refuses what it cannot take

    def __call__(self, task: LocalTask) -> LocalResult:
        return self._step()(task)

    def _step(self) -> FixedPointUpdate:
        return FixedPointUpdate(batch_size=self.batch_size)
