"""Natural-gradient steps of the server, with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.inputs import require_decay, require_fraction, typed
from streaming_gp.pvi.damping.rule import (
    Factors,
    Memory,
    annealed,
    damped,
    require_mean_field,
)
from streaming_gp.pvi.ledger import Ledger


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
    factors at all times, and at rest ``v = 0`` and every factor is its client's own.

    :param learning_rate: The rate ρ in (0, 1] of the mean.
    :param precision_rate: The rate r in (0, 1] of the precisions.
    :param momentum: The decay β in [0, 1) of the gradient.
    :param cosine: Whether ρ and r fall to zero by a cosine over the rounds of a run, which
        averages the noise of minibatches away.
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: float = 0.05
    precision_rate: float = 0.02
    momentum: float = 0.9
    cosine: bool = True

    def __post_init__(self) -> None:
        require_fraction("learning_rate", self.learning_rate)
        require_fraction("precision_rate", self.precision_rate)
        require_decay("momentum", self.momentum)

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        require_mean_field(self, ledger)
        mean = np.asarray(ledger.posterior.mean)
        size = share * (annealed(progress) if self.cosine else 1.0)
        rho, rate = size * self.learning_rate, size * self.precision_rate
        old = {name: ledger.factors.get(name, _unit(mean)) for name in proposals}
        change = {k: gradient(new, mean) - gradient(old[k], mean) for k, new in proposals.items()}
        before = memory[0] if memory else np.zeros_like(mean)
        total = sum(change.values())
        velocity = self.momentum * before + (1.0 - self.momentum) * total
        even = (rho * velocity - size * total) / len(proposals)
        factors = {}
        for name, new in proposals.items():
            precision = damped(old[name], new, rate).natural[1]
            pull = gradient(old[name], mean) + size * change[name] + even
            factors[name] = Factor(MeanFieldNormal, (pull + precision * mean, precision))
        return factors, (velocity,)


def gradient(factor: Factor, mean: np.ndarray) -> np.ndarray:
    """``h − Λ m``, the gradient of a mean-field factor's logarithm at m: [D].

    :param mean: The point m [D].
    """
    precision_mean, precision = factor.natural
    found: np.ndarray = precision_mean - precision * mean
    return found


def _unit(mean: np.ndarray) -> Factor:
    return Factor(MeanFieldNormal, (np.zeros_like(mean), np.zeros_like(mean)))
