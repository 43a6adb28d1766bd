"""The ledger: a prior and one factor for each client, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable


@runtime_checkable
class Factor(Protocol):
    """An approximate likelihood ``t_m``: it multiplies, and takes real powers."""

    @property
    def num_bytes(self) -> int:
        """Size of its arrays, which is what a message that holds it costs."""

    def __mul__(self, other: Any, /) -> Any: ...

    def __pow__(self, power: float, /) -> Any: ...

    def as_arrays(self) -> Any:
        """The same factor held in NumPy arrays, as files and messages want it."""


@runtime_checkable
class Posterior(Protocol):
    """A prior, cavity or posterior: one type, closed under multiplication by factors.

    Exponential families and Gaussian processes on pseudo-observations both satisfy this; the loop
    in :mod:`streaming_gp.pvi.step` knows nothing else about them.
    """

    @property
    def num_bytes(self) -> int:
        """Size of its arrays, which is what a message that holds it costs."""

    @property
    def form(self) -> str:
        """The kind of distribution in words: only equal forms can be compared."""

    def as_arrays(self) -> Any:
        """The same distribution held in NumPy arrays, as files and messages want it."""

    def times(self, factors: Iterable[Any], /) -> Any:
        """``self × Π factors``.

        :raises ImproperError: if the product is no distribution.
        """

    def cavity(self, own: Any | None, /) -> Any:
        """``self / own``, where ``own`` is one of the factors that ``self`` is the product of.

        Families whose cavities may be improper give a factor.
        """

    def exchanged(self, removed: Iterable[Any], added: Iterable[Any], /) -> Any:
        """``self × Π added / Π removed``, at a cost that does not depend on the other factors.

        :raises ImproperError: if the product is no distribution.
        """

    def objection_to(self, factor: object, /) -> str | None:
        """Why this object is no factor that ``self`` can be multiplied by, or None if it is one."""


P = TypeVar("P", bound=Posterior)


@dataclass(frozen=True, eq=False)
class Ledger(Generic[P]):
    """``q ∝ prior × Π_m t_m`` (PVI 2018, eq. 1), as a value: every change is a new ledger.

    :param prior: The posterior before any data.
    :param factors: One factor for each client, by name and in order of arrival.
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
        """Prior times every factor but this client's; the whole posterior for a new client.

        :raises ImproperError: if the product is no distribution.
        """
        return self.without(client_id).posterior

    def replaced(self, client_id: str, factor: Any) -> Ledger[P]:
        """A ledger in which ``client_id`` owns ``factor``: replaced, never added to."""
        return self.with_factors({client_id: factor})

    def with_factors(self, changes: Mapping[str, Any]) -> Ledger[P]:
        """A ledger in which each named client owns the factor given; all others keep theirs."""
        return Ledger(self.prior, MappingProxyType({**self.factors, **changes}))

    def without(self, client_id: str) -> Ledger[P]:
        """A ledger without ``client_id``'s factor."""
        if client_id not in self.factors:
            return self
        others = {name: factor for name, factor in self.factors.items() if name != client_id}
        return Ledger(self.prior, MappingProxyType(others))

    def posterior_with(self, changes: Mapping[str, Any]) -> P:
        """The posterior of :meth:`with_factors`, at the cost of the changed factors alone.

        :raises ImproperError: if the product is no distribution.
        """
        old = [self.factors[name] for name in changes if name in self.factors]
        return self.posterior.exchanged(old, changes.values())

    def __reduce__(self) -> tuple[Any, ...]:
        """Read-only mappings cannot be pickled; what has been computed is computed anew."""
        return _made_of, (self.prior, dict(self.factors))


def _made_of(prior: P, factors: Mapping[str, Any]) -> Ledger[P]:
    return Ledger(prior).with_factors(factors)
