"""What a damping rule is: how proposed factors enter the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi.ledger import Ledger

Memory = tuple[np.ndarray, ...]
"""What a rule keeps between steps; empty for most."""

Factors = dict[str, Any]
"""Factors by client."""


@runtime_checkable
class DampingRule(Protocol):
    """How proposals enter the ledger: a frozen dataclass that keeps nothing itself."""

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        """The factors that these clients own after the step; the ledger itself never changes.

        :param ledger: The ledger before the step.
        :param proposals: New factors by client, as the clients' fits gave them.
        :param share: The share of the full step, in (0, 1]: below one where a policy backtracks, or
            where proposals are stale.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :param memory: What the rule gave back the last time; empty at first.
        :returns: one factor for each proposal, and what to keep for the next step.
        :raises InvalidDataError: if the ledger is of a family that the rule is not for.
        """
        ...


def annealed(progress: float) -> float:
    """The share ``(1 + cos πp) / 2`` of a step, which falls from 1 to 0 over the rounds of a run
    (Loshchilov & Hutter 2017, eq. 5).

    :param progress: The fraction p of all rounds that is over, in [0, 1).
    """
    return float(0.5 * (1.0 + np.cos(np.pi * progress)))


def damped(old: Any, new: Any, rho: float) -> Any:
    """``old^(1−ρ) · new^ρ`` (PVI 2018, section 5).

    :param old: The factor so far; None for the unit factor.
    :param new: The proposed factor.
    :param rho: The damping ρ in (0, 1].
    """
    if rho == 1.0:
        return new
    return new**rho if old is None else old ** (1.0 - rho) * new**rho


def require_mean_field(rule: DampingRule, ledger: Ledger[Any]) -> None:
    """Check that a ledger is of mean-field Gaussians.

    :raises InvalidDataError: if it is not.
    """
    if not isinstance(ledger.prior, MeanFieldNormal):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for mean-field Gaussians, not for {family}")
