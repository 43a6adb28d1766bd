"""Optimisers of the posterior's mean at the server, for mean-field Gaussians.

:class:`Momentum` takes steps on answers of ``FixedPointUpdate``, and ``ServerAdam`` on those of
``DownpourUpdate``. The others are federated averaging: clients answer by ``AveragingUpdate`` with
``t_k = (q_k / prior)^s_k``, q_k narrow about its weights θ_k, and shares s_k of the data. From the
ledger alone the server reads

- ``w_k = Λ_k / Σ_j Λ_j``, a client's share among those that answered: s_k over their sum
- ``θ_k``, the mean of ``prior × t_k^(1/s_k)``, with ``s_k = Λ_k / (Λ − Λ_0)`` its share among all,
  where Λ is the posterior's precision with the new factors and Λ_0 the prior's
- ``Δ = Σ_k w_k (θ_k − θ)``, which takes the place of a gradient at the posterior's mean θ

The optimiser says which step the mean takes. Widths are those that clients answered with, and what
lies between the step and Δ is shared out by w_k, as if all clients had moved their weights by the
same vector: the posterior stays prior times factors. Begin with ``Server.warm_start``, as a fit
that starts elsewhere than at θ tells nothing about Δ.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.inputs import (
    Decay,
    Fraction,
    PositiveFinite,
    Probability,
    require_strategy,
    typed,
)
from streaming_gp.pvi.damping import (
    DampingRule,
    Factors,
    Natural,
    Proposals,
    State,
    damped,
    product_with,
    require_state,
)
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.updates.variational import AdamFormula
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True, eq=False)
class Velocity:
    """The state of a step with momentum.

    :param value: The decayed sum of gradients [D].
    """

    value: np.ndarray


@storable
@dataclass(frozen=True, eq=False)
class Moments:
    """The state of an adaptive step.

    :param first: The decayed mean of gradients [D].
    :param second: The decayed mean, or the sum, of their squares [D].
    :param number: The number of steps so far.
    """

    first: np.ndarray
    second: np.ndarray
    number: float


@typed
@dataclass(frozen=True)
class Momentum:
    """Natural-gradient steps with momentum, for mean-field Gaussians and ``FixedPointUpdate``.

    A factor says two things at the posterior mean m: its precision Λ_k, and its gradient
    ``g_k = h_k − Λ_k m``. The precisions move at one rate and the gradients at another, with
    momentum on their sum (variational online Newton: Khan et al. 2018; Osawa et al. 2019):

    - ``Λ_k ← (1 − r) Λ_k + r Λ_k'``
    - ``v ← β v + (1 − β) Σ_k (g_k' − g_k)``, and m moves by ``ρ v / Λ``

    As ``Σ_k g_k`` is the prior's pull on m, the sum is the whole gradient of the free energy. A
    factor takes over its client's newest gradient, so that this speaks for a client that has not
    answered, and what the step differs by is shared out evenly: the posterior is prior times
    factors at all times, and at rest ``v = 0`` and every factor is its client's own. With
    ``Annealed(Momentum())`` both rates fall to zero over the rounds of a run, which averages the
    noise of minibatches away.

    :param learning_rate: The rate ρ in (0, 1] of the mean.
    :param precision_rate: The rate r in (0, 1] of the precisions.
    :param momentum: The decay β in [0, 1) of the gradient.
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: Fraction = 0.05
    precision_rate: Fraction = 0.02
    momentum: Decay = 0.9

    def init(self, ledger: Ledger[Any]) -> Velocity:
        return Velocity(_zeros(self, ledger))

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        require_state(self, state, Velocity)
        mean = np.asarray(ledger.posterior.mean)
        unit = Factor(MeanFieldNormal, (np.zeros_like(mean), np.zeros_like(mean)))
        old = {name: ledger.factors.get(name, unit) for name in proposals}
        change = {k: _gradient(new, mean) - _gradient(old[k], mean) for k, new in proposals.items()}
        total = sum(change.values())
        velocity = self.momentum * state.value + (1.0 - self.momentum) * total
        even = (share * self.learning_rate * velocity - share * total) / len(proposals)
        factors = {}
        for name, new in proposals.items():
            precision = damped(old[name], new, share * self.precision_rate).natural[1]
            pull = _gradient(old[name], mean) + share * change[name] + even
            factors[name] = Factor(MeanFieldNormal, (pull + precision * mean, precision))
        return factors, Velocity(velocity)


def _gradient(factor: Factor, mean: np.ndarray) -> Any:
    """``h − Λ m``, the gradient of a factor's logarithm at m [D]: [D]."""
    precision_mean, precision = factor.natural
    return precision_mean - precision * mean


@typed
@dataclass(frozen=True)
class ServerAdam(AdamFormula):
    """The posterior's mean takes steps of Adam (Kingma & Ba 2015), as the server of asynchronous
    SGD (Dean et al. 2012; Hasenclever et al. 2017, section 6.2).

    A client's gradient is what its answer adds to the ``precision_mean`` of its factor; widths stay
    as they are. Begin with ``Server.warm_start``.

    :param learning_rate: The size of a step, about.
    :param beta1: The decay of the gradient's mean, in [0, 1).
    :param beta2: The decay of the gradient's mean square, in [0, 1).
    :param epsilon: What is added to the root of that mean square.
    :raises InvalidDataError: if the learning rate is not positive, or a decay is not in [0, 1).
    """

    learning_rate: PositiveFinite = 1e-3

    def init(self, ledger: Ledger[Any]) -> Moments:
        zeros = _zeros(self, ledger)
        return Moments(zeros, zeros, 0.0)

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if a client has no factor yet, or one without precision, by which
            no mean can be moved.
        """
        require_state(self, state, Moments)
        mean = np.asarray(ledger.posterior.mean)
        gradient = np.zeros_like(mean)
        for name, factor in sorted(proposals.items()):
            old = ledger.factors.get(name)
            if old is None:
                raise InvalidDataError(f"no factor of {name!r}: ServerAdam needs a warm start")
            if not np.all(old.natural[1] > 0.0):
                raise InvalidDataError(
                    f"the factor of {name!r} has no precision for ServerAdam to move the mean by: "
                    "begin with Server.warm_start at a q that is narrower than the prior in every "
                    "coordinate"
                )
            gradient = gradient + factor.natural[0] - old.natural[0]
        step, moments = self.ascent(gradient, state.first, state.second, state.number)
        target = mean + share * step.astype(gradient.dtype)
        return _moved(proposals, product_with(ledger, proposals), target), Moments(*moments)


class ServerOptimiser(abc.ABC):
    """Federated averaging whose step of the mean is an optimiser's."""

    @abc.abstractmethod
    def init(self, ledger: Ledger[Any]) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, changes: np.ndarray, num_clients: int, state: State) -> tuple[np.ndarray, State]:
        """The server's step [D], and the state after it.

        :param changes: ``w_k (θ_k − θ)`` of each client that answered [K, D]; they sum to Δ.
        :param num_clients: The number M of clients that have a factor: all, after a warm start.
        :param state: The state after the step before.
        """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """As ``DampingRule`` says.

        ``w_k (θ_k − θ) = ((Λ − Λ_0) h_k + Λ_k (h_0 − Λ θ)) / (Λ Σ_j Λ_j)``: in this form no
        client's precision is divided by, whatever it answered.
        """
        mean = np.asarray(ledger.posterior.mean)
        product = product_with(ledger, proposals)
        (h_0, prior), total = ledger.prior.natural, product[1]
        naturals = (factor.natural for factor in proposals.values())
        h, precision = (np.stack(each) for each in zip(*naturals, strict=True))
        changes = (total - prior) * h + precision * (h_0 - total * mean)
        changes = changes / (total * precision.sum(axis=0))
        step, state = self.step(changes, len(ledger.factors.keys() | proposals), state)
        return _moved(proposals, product, mean + share * step), state


@typed
@dataclass(frozen=True)
class FedAvg(ServerOptimiser):
    """``v ← β v + Δ; θ ← θ + η v``: federated averaging as it is without momentum, and with it
    FedAvgM (Hsu, Qi & Brown 2019).

    :param learning_rate: The learning rate η > 0.
    :param momentum: The decay β in [0, 1).
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: PositiveFinite = 1.0
    momentum: Decay = 0.0

    def init(self, ledger: Ledger[Any]) -> Velocity:
        return Velocity(_zeros(self, ledger))

    def step(self, changes: np.ndarray, num_clients: int, state: State) -> tuple[np.ndarray, State]:
        require_state(self, state, Velocity)
        velocity = self.momentum * state.value + changes.sum(axis=0)
        return self.learning_rate * velocity, Velocity(velocity)


@dataclass(frozen=True)
class AdaptiveOptimiser(ServerOptimiser):
    """``m ← β₁ m + (1 − β₁) Δ; θ ← θ + η m / (√v + τ)`` (Reddi et al. 2021, algorithm 2).

    m begins at the first Δ and v at τ²; how v follows Δ² is what the optimisers differ in.

    :param learning_rate: The learning rate η > 0.
    :param momentum: The decay β₁ in [0, 1).
    :param adaptivity: The offset τ > 0; the larger, the less steps differ from those of ``FedAvg``.
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: PositiveFinite = 0.01
    momentum: Decay = 0.9
    adaptivity: PositiveFinite = 1e-3

    @abc.abstractmethod
    def second_moment(self, old: np.ndarray, square: np.ndarray) -> Any:
        """v after the step: [D].

        :param old: v before the step [D].
        :param square: Δ² [D].
        """

    def init(self, ledger: Ledger[Any]) -> Moments:
        zeros = _zeros(self, ledger)
        return Moments(zeros, np.full_like(zeros, self.adaptivity**2), 0.0)

    def step(self, changes: np.ndarray, num_clients: int, state: State) -> tuple[np.ndarray, State]:
        require_state(self, state, Moments)
        change = changes.sum(axis=0)
        first = self.momentum * state.first + (1.0 - self.momentum) * change
        first = first if state.number > 0.0 else change
        second = self.second_moment(state.second, np.square(change))
        step = self.learning_rate * first / (np.sqrt(second) + self.adaptivity)
        return step, Moments(first, second, state.number + 1.0)


@typed
@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimiser):
    """``v ← v + Δ²`` (Reddi et al. 2021), without momentum unless it is asked for."""

    momentum: Decay = 0.0

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> Any:
        return old + square


@typed
@dataclass(frozen=True)
class FedAdam(AdaptiveOptimiser):
    """``v ← β₂ v + (1 − β₂) Δ²`` (Reddi et al. 2021).

    :param decay: The decay β₂ in [0, 1).
    :raises InvalidDataError: if it is not in that range.
    """

    decay: Decay = 0.99

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> Any:
        return self.decay * old + (1.0 - self.decay) * square


@typed
@dataclass(frozen=True)
class FedYogi(FedAdam):
    """``v ← v − (1 − β₂) Δ² sign(v − Δ²)`` (Reddi et al. 2021): v falls slowly, however small Δ."""

    def second_moment(self, old: np.ndarray, square: np.ndarray) -> Any:
        return old - (1.0 - self.decay) * square * np.sign(old - square)


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

    threshold: Probability = 0.4
    optimiser: ServerOptimiser = field(default_factory=FedAvg)
    soft: bool = False

    def __post_init__(self) -> None:
        require_strategy("optimiser", self.optimiser, ServerOptimiser, "pvi.FedAvg()")

    def init(self, ledger: Ledger[Any]) -> State:
        return self.optimiser.init(ledger)

    def step(self, changes: np.ndarray, num_clients: int, state: State) -> tuple[np.ndarray, State]:
        step, state = self.optimiser.step(changes, num_clients, state)
        agreement = np.abs(np.sign(changes).sum(axis=0)) / num_clients
        otherwise = agreement if self.soft else np.zeros_like(agreement)
        return np.where(agreement >= self.threshold, step, otherwise * step), state


def _zeros(rule: DampingRule, ledger: Ledger[Any]) -> np.ndarray:
    """[D]."""
    if not isinstance(ledger.prior, MeanFieldNormal):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for mean-field Gaussians, not for {family}")
    return np.zeros_like(np.asarray(ledger.prior.precision_mean))


def _moved(proposals: Proposals, product: Natural, mean: np.ndarray) -> Factors:
    """The factors with which the posterior has this mean [D], by one shift of the weights of all.

    :param product: Prior times all factors, the proposals among them.
    """
    h, precision = product
    shift = (precision * mean - h) / sum(factor.natural[1] for factor in proposals.values())
    moved = {}
    for name, factor in proposals.items():
        own_h, own = factor.natural
        moved[name] = Factor(MeanFieldNormal, (own_h + own * shift, own))
    return moved
