"""How proposed factors enter the ledger: the rule, and damping by powers of factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily
from streaming_gp.inputs import require_fraction, typed
from streaming_gp.pvi.ledger import Ledger

State = Any
"""A rule's memory of the steps before; None for a rule that needs none."""
Proposals = Mapping[str, Any]
"""New factors by client."""
Factors = dict[str, Any]
"""Factors by client."""
Natural = tuple[np.ndarray, ...]
"""Natural parameters."""


@runtime_checkable
class DampingRule(Protocol):
    """How proposals enter the ledger: a frozen dataclass, whose state goes in and comes out."""

    def init(self, ledger: Ledger[Any]) -> State:
        """The state before the first step; None if the rule has none."""
        ...

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """The factors that these clients own after a step; the ledger itself never changes.

        :param ledger: The ledger before the step.
        :param proposals: New factors by client, as the clients' fits gave them.
        :param state: The state after the step before.
        :param share: The share of the full step, in (0, 1]: below one where a policy backtracks, or
            where proposals are stale.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :returns: one factor for each proposal, and the state after the step.
        :raises InvalidDataError: if the ledger is of a family that the rule is not for, or the
            state is another rule's.
        """
        ...


Rho = float | Mapping[str, float] | DampingRule | None
"""A damping ρ in (0, 1], for all or by client; a rule; or None for 1/K with K clients."""


def damped(old: Any, new: Any, rho: float) -> Any:
    """``old^(1−ρ) · new^ρ`` (PVI 2018, section 5).

    :param old: The factor so far; None for the unit factor.
    :param new: The proposed factor.
    :param rho: The damping ρ in (0, 1].
    """
    if rho == 1.0:
        return new
    return new**rho if old is None else old ** (1.0 - rho) * new**rho


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

    def init(self, ledger: Ledger[Any]) -> State:
        return None

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        factors = {}
        for name, new in proposals.items():
            rho = self.rho.get(name) if isinstance(self.rho, Mapping) else self.rho
            rho = 1.0 / self.num_clients if rho is None else rho
            factors[name] = damped(ledger.factors.get(name), new, share * rho)
        return factors, state


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

    def init(self, ledger: Ledger[Any]) -> State:
        return None

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        weights = dict.fromkeys(proposals, 1.0) if self.weights is None else self.weights
        missing = next((name for name in proposals if name not in weights), None)
        if missing is not None:
            raise InvalidDataError(f"no weight for client {missing!r}: there are {list(weights)}")
        total = sum(weights[name] for name in proposals)
        rho = {name: weights[name] / total for name in proposals}
        return Damping(rho, len(proposals)).update(ledger, proposals, state, share, progress)


@dataclass(frozen=True)
class AroundRule:
    """A rule around another one, whose state is the other's.

    :param damping: The other rule, or a damping ρ in (0, 1]; if None, what a schedule takes where
        it is given none.
    """

    damping: Rho = None

    def inner(self, ledger: Ledger[Any], proposals: Proposals) -> DampingRule:
        """The other rule."""
        if isinstance(self.damping, DampingRule):
            return self.damping
        return Damping(self.damping, len(ledger.factors.keys() | proposals))

    def init(self, ledger: Ledger[Any]) -> State:
        return self.inner(ledger, {"": None}).init(ledger)


@dataclass(frozen=True)
class Annealed(AroundRule):
    """Another rule whose steps fall to zero by a cosine over the rounds of a run.

    At a fraction p of all rounds a step is ``(1 + cos πp) / 2`` of what it would be (Loshchilov &
    Hutter 2017, eq. 5). Where clients differ and fit by minibatches, the posterior else keeps
    following whoever answered last; small steps in the end average over all of them. Fixed points
    are those of the rule itself.

    :param damping: The rule, or a damping ρ in (0, 1]; if None, what a schedule takes where it is
        given none.
    """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        share *= float(0.5 * (1.0 + np.cos(np.pi * progress)))
        return self.inner(ledger, proposals).update(ledger, proposals, state, share, progress)


def product_with(ledger: Ledger[Any], factors: Proposals, dtype: Any = None) -> Natural:
    """The natural parameters of prior times factors with these among them, proper or not.

    :param dtype: Of the sums; the arrays' own if None.
    """
    parts = [ledger.prior, *{**ledger.factors, **factors}.values()]
    columns = zip(*(part.natural for part in parts), strict=True)
    return tuple(np.sum(column, axis=0, dtype=dtype) for column in columns)


def require_family(rule: DampingRule, ledger: Ledger[Any]) -> None:
    """Check that factors have coordinates in common.

    :raises InvalidDataError: if the ledger is not of an exponential family.
    """
    if not isinstance(ledger.prior, ExponentialFamily):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for exponential families, not for {family}")


def require_state(rule: DampingRule, state: State, kind: type) -> None:
    """Check that a state is one that the rule can go on from.

    :raises InvalidDataError: if it is another rule's.
    """
    if not isinstance(state, kind):
        raise InvalidDataError(
            f"{type(rule).__name__} goes on from a {kind.__name__}, got a {type(state).__name__} "
            "of another rule: begin with what its init gives"
        )
