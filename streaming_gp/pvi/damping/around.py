"""Rules around another rule: what enters the ledger is looked at before it, or after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily
from streaming_gp.pvi.damping.power import Damping
from streaming_gp.pvi.damping.rule import DampingRule
from streaming_gp.pvi.ledger import Ledger

Rho = float | Mapping[str, float] | DampingRule | None
"""A damping ρ in (0, 1], for all or by client; a rule; or what is usual, 1/K for K clients."""

Natural = tuple[np.ndarray, ...]
"""Natural parameters."""


@dataclass(frozen=True)
class AroundRule:
    """What rules around another rule share.

    :param damping: The rule that it is around, or a damping ρ in (0, 1]; if None, what a schedule
        takes where it is given none.
    """

    damping: Rho = None

    def inner(self, ledger: Ledger[Any], proposals: Mapping[str, Any]) -> DampingRule:
        """The rule that it is around."""
        if isinstance(self.damping, DampingRule):
            return self.damping
        return Damping(self.damping, len(ledger.factors.keys() | proposals))


def require_coordinates(rule: DampingRule, ledger: Ledger[Any]) -> None:
    """Check that factors have coordinates in common.

    :raises InvalidDataError: if the ledger is not of an exponential family.
    """
    if not isinstance(ledger.prior, ExponentialFamily):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for exponential families, not for {family}")


def product_with(ledger: Ledger[Any], factors: Mapping[str, Any]) -> Natural:
    """The product of prior and factors with these among them, proper or not."""
    parts = [ledger.prior.natural]
    parts += [factor.natural for factor in {**ledger.factors, **factors}.values()]
    return tuple(np.sum(each, axis=0, dtype=float) for each in zip(*parts, strict=True))
