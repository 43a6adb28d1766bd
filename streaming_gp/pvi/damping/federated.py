"""The optimisers of federated averaging: plain, adaptive, and with clients that must agree."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np

from streaming_gp.inputs import require_decay, require_positive, require_probability, typed
from streaming_gp.pvi.damping.rule import Memory
from streaming_gp.pvi.damping.server_optimiser import ServerOptimiser


@typed
@dataclass(frozen=True)
class FedAvg(ServerOptimiser):
    """``v ← β v + Δ; θ ← θ + η v``: federated averaging as it is without momentum, and with it
    FedAvgM (Hsu, Qi & Brown 2019).

    :param learning_rate: The learning rate η > 0.
    :param momentum: The decay β in [0, 1).
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)
        require_decay("momentum", self.momentum)

    def step(
        self, changes: np.ndarray, num_clients: int, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        velocity = changes.sum(axis=0)
        if memory:
            velocity = self.momentum * memory[0] + velocity
        return self.learning_rate * velocity, (velocity,)


@dataclass(frozen=True)
class AdaptiveOptimiser(ServerOptimiser):
    """``m ← β₁ m + (1 − β₁) Δ; θ ← θ + η m / (√v + τ)`` (Reddi et al. 2021, algorithm 2).

    m begins at the first Δ and v at τ²; how v follows Δ² is what the optimisers differ in.

    :param learning_rate: The learning rate η > 0.
    :param momentum: The decay β₁ in [0, 1).
    :param adaptivity: The offset τ > 0; the larger, the less steps differ from those of ``FedAvg``.
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)
        require_decay("momentum", self.momentum)
        require_positive("adaptivity", self.adaptivity)

    @abc.abstractmethod
    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        """v after the step: [D].

        :param old: v before the step [D].
        :param square: Δ² [D].
        """

    def step(
        self, changes: np.ndarray, num_clients: int, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        change = changes.sum(axis=0)
        first, second = memory or (change, np.full_like(change, self.adaptivity**2))
        first = self.momentum * first + (1.0 - self.momentum) * change
        second = self.second_moment(second, np.square(change))
        return self.learning_rate * first / (np.sqrt(second) + self.adaptivity), (first, second)


@typed
@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimiser):
    """``v ← v + Δ²`` (Reddi et al. 2021), without momentum unless it is asked for."""

    momentum: float = 0.0

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        return old + square


@dataclass(frozen=True)
class DecayingOptimiser(AdaptiveOptimiser):
    """An adaptive optimiser whose v forgets.

    :param decay: The decay β₂ in [0, 1).
    :raises InvalidDataError: if it is not in that range.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay("decay", self.decay)


@typed
@dataclass(frozen=True)
class FedAdam(DecayingOptimiser):
    """``v ← β₂ v + (1 − β₂) Δ²`` (Reddi et al. 2021)."""

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        return self.decay * old + (1.0 - self.decay) * square


@typed
@dataclass(frozen=True)
class FedYogi(DecayingOptimiser):
    """``v ← v − (1 − β₂) Δ² sign(v − Δ²)`` (Reddi et al. 2021): v falls slowly, however small Δ."""

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> np.ndarray:
        second: np.ndarray = old - (1.0 - self.decay) * square * np.sign(old - square)
        return second


@typed
@dataclass(frozen=True)
class MaskedAveraging(ServerOptimiser):
    """Gradient masked averaging (Tenison et al. 2023; PGVI, eq. 2.13): a weight takes the server's
    step only if ``|Σ_k sign(θ_k − θ)| / M ≥ τ``. The sum is over the clients that answered, and M
    counts all, so that too few answers move nothing.

    :param threshold: The agreement τ in [0, 1]; 0 masks nothing, 1 wants all clients to agree.
    :param optimiser: The optimiser whose step is masked.
    :param soft: Whether the other weights take the step times the agreement, instead of none.
    :raises InvalidDataError: if τ is not in [0, 1].
    """

    threshold: float = 0.4
    optimiser: ServerOptimiser = field(default_factory=FedAvg)
    soft: bool = False

    def __post_init__(self) -> None:
        require_probability("threshold", self.threshold)

    def step(
        self, changes: np.ndarray, num_clients: int, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        step, memory = self.optimiser.step(changes, num_clients, memory)
        agreement = np.abs(np.sign(changes).sum(axis=0)) / num_clients
        otherwise = agreement if self.soft else np.zeros_like(agreement)
        return np.where(agreement >= self.threshold, step, otherwise * step), memory
