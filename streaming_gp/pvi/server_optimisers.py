"""Federated averaging with an optimiser at the server, and with clients that must agree.

Clients answer by ``AveragingUpdate``: ``t_k = (q_k / prior)^s_k`` with q_k narrow about its weights
θ_k, and shares s_k of the data. From the ledger alone the server reads

- ``w_k = Λ_k / Σ_j Λ_j``, a client's share among those that answered: s_k over their sum
- ``θ_k``, the mean of ``prior × t_k^(1/s_k)``, with ``s_k = Λ_k / (Λ − Λ_0)`` its share among all,
  where Λ is the posterior's precision with the new factors and Λ_0 the prior's
- ``Δ = Σ_k w_k (θ_k − θ)``, which takes the place of a gradient at the posterior's mean θ

The optimiser says which step the mean takes. Widths are those that clients answered with, and what
lies between the step and Δ is shared out by w_k, as if all clients had moved their weights by the
same vector: the posterior stays prior times factors. Begin with ``Server.warm_start``, as a fit
that starts elsewhere than at θ tells nothing about Δ.

``ServerAdam`` is for workers of ``DownpourUpdate``, which send gradients themselves.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.pvi.damping import Memory, require_decay, require_mean_field
from streaming_gp.pvi.ledger import Ledger


class ServerOptimiser(abc.ABC):
    """A damping rule whose step of the mean is an optimiser's."""

    @abc.abstractmethod
    def step(self, changes: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        """The server's step [D], and what it remembers.

        :param changes: ``w_k (θ_k − θ)`` of each client that answered [K, D]; they sum to Δ.
        :param memory: what the last step gave back; empty at first.
        """

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if the posterior is not a mean-field Gaussian.
        """
        require_mean_field(self, ledger)
        mean = np.asarray(ledger.posterior.mean)
        for name, factor in proposals.items():
            ledger = ledger.replaced(name, factor)
        step, memory = self.step(_changes(ledger, proposals, mean), memory)
        return _moved(ledger, proposals, mean + share * step), memory


def _changes(ledger: Ledger[Any], proposals: Mapping[str, Any], mean: np.ndarray) -> np.ndarray:
    """``w_k (θ_k − θ) = ((Λ − Λ_0) h_k + Λ_k (h_0 − Λ θ)) / (Λ Σ_j Λ_j)``: [K, D].

    In this form no client's precision is divided by, whatever it answered.
    """
    h_0, prior = ledger.prior.natural
    total = _natural(ledger)[1]
    h, precision = (np.stack(each) for each in zip(*_naturals(proposals), strict=True))
    changes: np.ndarray = (total - prior) * h + precision * (h_0 - total * mean)
    return changes / (total * precision.sum(axis=0))


def _moved(ledger: Ledger[Any], proposals: Mapping[str, Any], mean: np.ndarray) -> Ledger[Any]:
    """The ledger with this posterior mean, by one shift of the weights of all that answered."""
    h, precision = _natural(ledger)
    shift = (precision * mean - h) / sum(own for _, own in _naturals(proposals))
    for name, (own_h, own) in zip(proposals, _naturals(proposals), strict=True):
        ledger = ledger.replaced(name, Factor(MeanFieldNormal, (own_h + own * shift, own)))
    return ledger


def _naturals(factors: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [factor.natural for factor in factors.values()]


def _natural(ledger: Ledger[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Of the product of prior and factors, proper or not."""
    parts = [ledger.prior.natural, *_naturals(ledger.factors)]
    h, precision = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    return h, precision


@dataclass(frozen=True)
class FedAvg(ServerOptimiser):
    """``v ← β v + Δ; θ ← θ + η v``: federated averaging as it is without momentum, and with it
    FedAvgM (Hsu, Qi & Brown 2019).

    :param learning_rate: η.
    :param momentum: β in [0, 1).
    :raises InvalidDataError: if they are not that.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _require_positive("learning_rate", self.learning_rate)
        require_decay("momentum", self.momentum)

    def step(self, changes: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        velocity = changes.sum(axis=0)
        if memory:
            velocity = self.momentum * memory[0] + velocity
        return self.learning_rate * velocity, (velocity,)


@dataclass(frozen=True)
class AdaptiveOptimiser(ServerOptimiser):
    """``m ← β₁ m + (1 − β₁) Δ; θ ← θ + η m / (√v + τ)`` (Reddi et al. 2021, algorithm 2).

    m begins at the first Δ and v at τ²; how v follows Δ² is what the optimisers differ in.

    :param learning_rate: η.
    :param momentum: β₁ in [0, 1).
    :param adaptivity: τ > 0; the larger, the less steps differ from those of ``FedAvg``.
    :raises InvalidDataError: if they are not that.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        _require_positive("learning_rate", self.learning_rate)
        require_decay("momentum", self.momentum)
        _require_positive("adaptivity", self.adaptivity)

    @abc.abstractmethod
    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        """v, from v before and Δ²: [D]."""

    def step(self, changes: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        change = changes.sum(axis=0)
        first, second = memory or (change, np.full_like(change, self.adaptivity**2))
        first = self.momentum * first + (1.0 - self.momentum) * change
        second = self.second_moment(second, np.square(change))
        return self.learning_rate * first / (np.sqrt(second) + self.adaptivity), (first, second)


@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimiser):
    """``v ← v + Δ²`` (Reddi et al. 2021), without momentum unless it is asked for."""

    momentum: float = 0.0

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        return old + square


@dataclass(frozen=True)
class DecayingOptimiser(AdaptiveOptimiser):
    """An adaptive optimiser whose v forgets.

    :param decay: β₂ in [0, 1).
    :raises InvalidDataError: if it is not that.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay("decay", self.decay)


@dataclass(frozen=True)
class FedAdam(DecayingOptimiser):
    """``v ← β₂ v + (1 − β₂) Δ²`` (Reddi et al. 2021)."""

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        return self.decay * old + (1.0 - self.decay) * square


@dataclass(frozen=True)
class FedYogi(DecayingOptimiser):
    """``v ← v − (1 − β₂) Δ² sign(v − Δ²)`` (Reddi et al. 2021): v falls slowly, however small Δ."""

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        second: np.ndarray = old - (1.0 - self.decay) * square * np.sign(old - square)
        return second


@dataclass(frozen=True)
class MaskedAveraging(ServerOptimiser):
    """Gradient masked averaging (Tenison et al. 2023; PGVI, eq. 2.13): a weight takes the server's
    step only if ``|Σ_k sign(θ_k − θ)| / K ≥ τ`` over the K clients that answered.

    :param threshold: τ in [0, 1]; 0 masks nothing, 1 wants all clients to agree.
    :param optimiser: whose step is masked.
    :param soft: whether the other weights take the step times the agreement, instead of none.
    :raises InvalidDataError: if τ is not in [0, 1].
    """

    threshold: float = 0.4
    optimiser: ServerOptimiser = field(default_factory=FedAvg)
    soft: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise InvalidDataError(f"threshold must lie in [0, 1], got {self.threshold}")

    def step(self, changes: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        step, memory = self.optimiser.step(changes, memory)
        agreement = np.abs(np.sign(changes).mean(axis=0))
        otherwise = agreement if self.soft else np.zeros_like(agreement)
        return np.where(agreement >= self.threshold, step, otherwise * step), memory


@dataclass(frozen=True)
class ServerAdam:
    """A damping rule: the posterior's mean takes steps of Adam (Kingma & Ba 2015), as the server of
    asynchronous SGD (Dean et al. 2012; Hasenclever et al. 2017, section 6.2).

    A client's gradient is what its answer adds to the ``precision_mean`` of its factor; widths stay
    as they are. Begin with ``Server.warm_start``.

    :param learning_rate: size of a step, about.
    :raises InvalidDataError: if it is not positive, or a decay is not in [0, 1).
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _require_positive("learning_rate", self.learning_rate)
        require_decay("beta1", self.beta1)
        require_decay("beta2", self.beta2)

    def mixed(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Ledger[Any], Memory]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if the posterior is not a mean-field Gaussian, or a client has no
            factor yet.
        """
        require_mean_field(self, ledger)
        missing = sorted(set(proposals) - set(ledger.factors))
        if missing:
            raise InvalidDataError(f"no factor of {missing[0]!r}: ServerAdam needs a warm start")
        mean = np.asarray(ledger.posterior.mean)
        gradient = np.zeros_like(mean)
        for name, factor in proposals.items():
            gradient = gradient + factor.natural[0] - ledger.factors[name].natural[0]
            ledger = ledger.replaced(name, factor)
        step, memory = self._step(gradient, memory)
        return _moved(ledger, proposals, mean + share * step), memory

    def _step(self, gradient: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        zeros = np.zeros_like(gradient)
        first, second, count = memory or (zeros, zeros, np.zeros([]))
        count = count + 1.0
        first = self.beta1 * first + (1.0 - self.beta1) * gradient
        second = self.beta2 * second + (1.0 - self.beta2) * np.square(gradient)
        rate = self.learning_rate * np.sqrt(1.0 - self.beta2**count) / (1.0 - self.beta1**count)
        step = (rate * first / (np.sqrt(second) + self.epsilon)).astype(gradient.dtype)
        return step, (first, second, count)


def _require_positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise InvalidDataError(f"{name} must be positive, got {value}")
