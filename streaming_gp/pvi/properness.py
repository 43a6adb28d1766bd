"""What to do when a cavity or a new posterior is no distribution: one explicit policy.

A policy sees two moments of a step: forming the cavity, and putting factors back. It answers with
what it did, and the answer goes into the history. Nothing is repaired in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from streaming_gp.errors import ImproperError
from streaming_gp.inputs import typed
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.serialization import storable


def is_proper(ledger: Ledger[Any], cavities: bool = True) -> bool:
    """Whether the posterior, and if asked the cavity of every client, are distributions."""
    try:
        _ = ledger.posterior
        for client_id in ledger.factors if cavities else ():
            ledger.cavity(client_id)
    except ImproperError:
        return False
    return True


@runtime_checkable
class PropernessPolicy(Protocol):
    """Decides how much of a factor is removed, and how far a new one is taken."""

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        """The fraction of the client's old factor to take out for its cavity, in (0, 1].

        :raises ImproperError: if the policy refuses the cavity.
        """
        ...

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        """The damping to use, in [0, ``damping``]; 0 leaves the ledger as it is.

        :param replace: Gives the ledger after a step of damping ρ.
        :param damping: The largest damping, which is tried first.
        :raises ImproperError: if the policy refuses the step.
        """
        ...


@storable
@dataclass(frozen=True)
class RaiseImproper:
    """Refuse: an improper posterior, or an improper cavity when its owner's turn comes, raises
    ``ImproperError``. The default, at no cost in the number of clients.
    """

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        ledger.cavity(client_id)
        return 1.0

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        _ = replace(damping).posterior
        return damping


@storable
@typed
@dataclass(frozen=True)
class BacktrackDamping:
    """Shrink the step until the new posterior and every cavity are proper.

    :param shrink: The factor by which the damping shrinks at each attempt, in (0, 1).
    :param attempts: The number of attempts after which the old factor stays (damping 0).
    :param cavities: Whether cavities must be proper too. A fit of mean-field factors can do with
        one that is improper in a few coordinates, as its own q is always proper.
    """

    shrink: float = 0.5
    attempts: int = 10
    cavities: bool = True

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        return RaiseImproper().removed_fraction(ledger, client_id) if self.cavities else 1.0

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        tried = (damping * self.shrink**attempt for attempt in range(self.attempts))
        return next((rho for rho in tried if is_proper(replace(rho), self.cavities)), 0.0)


@storable
@typed
@dataclass(frozen=True)
class LargestProperFraction:
    """Take out the largest fraction of the old factor that leaves a proper cavity.

    :param resolution: The accuracy of that fraction, which is found by bisection.
    """

    resolution: float = 1e-3

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        if client_id not in ledger.factors or self._is_proper(ledger, client_id, 1.0):
            return 1.0
        low, high = 0.0, 1.0
        while high - low > self.resolution:
            middle = 0.5 * (low + high)
            low, high = (
                (middle, high) if self._is_proper(ledger, client_id, middle) else (low, middle)
            )
        if low == 0.0:
            raise ImproperError(f"no fraction of the factor of client {client_id!r} can be removed")
        return low

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        return RaiseImproper().damping(replace, damping)

    def _is_proper(self, ledger: Ledger[Any], client_id: str, fraction: float) -> bool:
        try:
            _ = ledger.replaced(client_id, ledger.factors[client_id] ** (1.0 - fraction)).posterior
        except ImproperError:
            return False
        return True
