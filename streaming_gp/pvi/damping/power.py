"""Damping by powers of factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_fraction, typed
from streaming_gp.pvi.damping.rule import Factors, Memory, damped
from streaming_gp.pvi.ledger import Ledger


@typed
@dataclass(frozen=True)
class Damping:
    """``t ← t_old^(1−ρ) t_new^ρ`` (PVI 2018, section 5).

    :param rho: The damping ρ in (0, 1], for all clients or by name; 1/K for K clients if None.
    :param num_clients: The number of clients K.
    :raises InvalidDataError: if a damping is not in (0, 1].
    """

    rho: float | Mapping[str, float] | None
    num_clients: int

    def __post_init__(self) -> None:
        for rho in self.rho.values() if isinstance(self.rho, Mapping) else [self.rho]:
            if rho is not None:
                require_fraction("damping", rho)

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        old = ledger.factors
        factors = {
            name: damped(old.get(name), new, share * self._rho(name))
            for name, new in proposals.items()
        }
        return factors, memory

    def _rho(self, name: str) -> float:
        rho = self.rho.get(name) if isinstance(self.rho, Mapping) else self.rho
        return 1.0 / self.num_clients if rho is None else rho


@dataclass(frozen=True)
class OpinionPool:
    """Damping whose weights sum to one over the clients that answered together.

    Under one posterior ``Π_k q_k^ρ_k`` is then the new one: the logarithmic opinion pool of the
    clients' own fits, which is externally Bayesian (Genest 1984; PGVI, section 3.2.4).

    :param weights: The weight of each client, positive, in any unit; equal weights if None.
    :raises InvalidDataError: if a weight is not positive, or a client has none.
    """

    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, weight in (self.weights or {}).items():
            if not 0.0 < weight < np.inf:
                raise InvalidDataError(f"the weight of {name!r} must be positive, got {weight}")

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        given = {name: self._weight(name) for name in proposals}
        total = sum(given.values())
        rho = {name: weight / total for name, weight in given.items()}
        return Damping(rho, len(proposals)).applied(ledger, proposals, share, progress, memory)

    def _weight(self, name: str) -> float:
        if self.weights is None:
            return 1.0
        if name not in self.weights:
            raise InvalidDataError(f"no weight for client {name!r}: there are {list(self.weights)}")
        return self.weights[name]
