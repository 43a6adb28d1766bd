"""The ledger: a prior and one factor for each client, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic

from streaming_gp.pvi.protocols import P


@dataclass(frozen=True, eq=False)
class Ledger(Generic[P]):
    """``q ∝ prior × Π_m t_m`` (PVI 2018, eq. 1), as a value: every change is a new ledger.

    :param prior: the posterior before any data.
    :param factors: one factor for each client id, in order of arrival.
    """

    prior: P
    factors: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def posterior(self) -> P:
        """Prior times every factor.

        :raises ImproperError: if the product is no distribution.
        """
        return self.prior.times(self.factors.values())

    def cavity(self, client_id: str) -> P:
        """Prior times every factor but ``client_id``'s; the whole posterior for a new client.

        :raises ImproperError: if the product is no distribution.
        """
        return self.without(client_id).posterior

    def replaced(self, client_id: str, factor: Any) -> Ledger[P]:
        """A ledger in which ``client_id`` owns ``factor``: replaced, never added to."""
        return Ledger(self.prior, MappingProxyType({**self.factors, client_id: factor}))

    def without(self, client_id: str) -> Ledger[P]:
        """A ledger without ``client_id``'s factor."""
        if client_id not in self.factors:
            return self
        kept = {name: factor for name, factor in self.factors.items() if name != client_id}
        return Ledger(self.prior, MappingProxyType(kept))
