"""How proposals enter the ledger: power damping, or natural gradients with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.pvi.ledger import Ledger

Memory = tuple[np.ndarray, ...]
"""What a rule keeps between rounds; empty for most."""


def damped(old: Any, new: Any, rho: float) -> Any:
    """``old^(1−ρ) · new^ρ``, where no old factor means the unit factor."""
    if rho == 1.0:
        return new
    return new**rho if old is None else old ** (1.0 - rho) * new**rho


def require_damping(rho: float) -> float:
    """ρ, if it lies in (0, 1].

    :raises InvalidDataError: if it does not.
    """
    if not 0.0 < rho <= 1.0:
        raise InvalidDataError(f"damping must lie in (0, 1], got {rho}")
    return rho


def require_decay(name: str, value: float) -> None:
    """Check that what is kept of the past lies in [0, 1).

    :raises InvalidDataError: if it does not.
    """
    if not 0.0 <= value < 1.0:
        raise InvalidDataError(f"{name} must lie in [0, 1), got {value}")


def require_mean_field(rule: Any, ledger: Ledger[Any]) -> None:
    """Check that a ledger is of mean-field Gaussians.

    :raises InvalidDataError: if it is not.
    """
    if not isinstance(ledger.prior, MeanFieldNormal):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for mean-field Gaussians, not for {family}")


class DampingRule(Protocol):
    """Turns proposals into a new ledger; ``ledger`` itself never changes."""

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        """The ledger after these proposals.

        :param proposals: new factors by client, as the clients' fits gave them.
        :param share: of the full step, in (0, 1]: below one where a policy backtracks, or where
            proposals are stale.
        :param progress: share of all rounds that is over, in [0, 1).
        :param memory: what the rule gave back the last time; empty at first.
        """
        ...


@dataclass(frozen=True)
class Damping:
    """``t ← t_old^(1−ρ) t_new^ρ`` (PVI 2018, section 5).

    :param rho: ρ in (0, 1], for all clients or by name; 1/K for K clients if None.
    :param num_clients: K.
    """

    rho: float | Mapping[str, float] | None
    num_clients: int

    def __post_init__(self) -> None:
        for rho in self.rho.values() if isinstance(self.rho, Mapping) else [self.rho]:
            if rho is not None:
                require_damping(rho)

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        old = ledger.factors
        for name, new in proposals.items():
            factor = damped(old.get(name), new, share * self._rho(name))
            ledger = ledger.replaced(name, factor)
        return ledger, memory

    def _rho(self, name: str) -> float:
        rho = self.rho.get(name) if isinstance(self.rho, Mapping) else self.rho
        return 1.0 / self.num_clients if rho is None else rho


@dataclass(frozen=True)
class OpinionPool:
    """Damping whose weights sum to one over the clients that answered together.

    Under one posterior ``Π_k q_k^ρ_k`` is then the new one: the logarithmic opinion pool of the
    clients' own fits, which is externally Bayesian (Genest 1984; PGVI, section 3.2.4).

    :param weights: of each client, positive, in any unit; equal if None.
    :raises InvalidDataError: if a weight is not positive, or a client has none.
    """

    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, weight in (self.weights or {}).items():
            if not 0.0 < weight < np.inf:
                raise InvalidDataError(f"the weight of {name!r} must be positive, got {weight}")

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        given = {name: self._weight(name) for name in proposals}
        total = sum(given.values())
        rho = {name: weight / total for name, weight in given.items()}
        return Damping(rho, len(proposals)).mixed(ledger, proposals, share, progress, memory)

    def _weight(self, name: str) -> float:
        if self.weights is None:
            return 1.0
        if name not in self.weights:
            raise InvalidDataError(f"no weight for client {name!r}: there are {list(self.weights)}")
        return self.weights[name]


@dataclass(frozen=True)
class Momentum:
    """Natural-gradient steps with momentum, for mean-field Gaussians and ``FixedPointUpdate``.

    A factor says two things at the posterior mean m: its precision Λ_k, and its gradient
    ``g_k = h_k − Λ_k m``. The precisions are mixed at one rate and the gradients at another, with
    momentum on their sum (variational online Newton: Khan et al. 2018; Osawa et al. 2019):

    - ``Λ_k ← (1 − r) Λ_k + r Λ_k'``
    - ``v ← β v + (1 − β) Σ_k (g_k' − g_k)``, and m moves by ``ρ v / Λ``

    As ``Σ_k g_k`` is the prior's pull on m, the sum is the whole gradient of the free energy. A
    factor takes over its client's newest gradient, so that this speaks for a client that has not
    answered, and what the step differs by is shared out evenly: the posterior is prior times
    factors at all times, and at rest ``v = 0`` and every factor is its client's own.

    :param learning_rate: ρ.
    :param precision_rate: r.
    :param momentum: β in [0, 1).
    :param cosine: whether ρ and r fall to zero by a cosine over the rounds of a run, which
        averages the noise of minibatches away.
    """

    learning_rate: float = 0.05
    precision_rate: float = 0.02
    momentum: float = 0.9
    cosine: bool = True

    def __post_init__(self) -> None:
        require_damping(self.learning_rate)
        require_damping(self.precision_rate)
        require_decay("momentum", self.momentum)

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        require_mean_field(self, ledger)
        mean = np.asarray(ledger.posterior.mean)
        size = share * (0.5 * (1.0 + np.cos(np.pi * progress)) if self.cosine else 1.0)
        rho, rate = size * self.learning_rate, size * self.precision_rate
        old = {name: ledger.factors.get(name, _unit(mean)) for name in proposals}
        change = {k: gradient(new, mean) - gradient(old[k], mean) for k, new in proposals.items()}
        before = memory[0] if memory else np.zeros_like(mean)
        total = sum(change.values())
        velocity = self.momentum * before + (1.0 - self.momentum) * total
        even = (rho * velocity - size * total) / len(proposals)
        for name, new in proposals.items():
            precision = damped(old[name], new, rate).natural[1]
            pull = gradient(old[name], mean) + size * change[name] + even
            factor = Factor(MeanFieldNormal, (pull + precision * mean, precision))
            ledger = ledger.replaced(name, factor)
        return ledger, (velocity,)


def gradient(factor: Factor, mean: np.ndarray) -> np.ndarray:
    """``h − Λ m``: of a factor's logarithm, at m."""
    precision_mean, precision = factor.natural
    found: np.ndarray = precision_mean - precision * mean
    return found


def _unit(mean: np.ndarray) -> Factor:
    return Factor(MeanFieldNormal, (np.zeros_like(mean), np.zeros_like(mean)))
