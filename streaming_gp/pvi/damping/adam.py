"""Adam at the server, for workers of ``DownpourUpdate``, which send gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_decay, require_positive, typed
from streaming_gp.pvi.adam import AdamFormula
from streaming_gp.pvi.damping.rule import Factors, Memory, require_mean_field
from streaming_gp.pvi.damping.server_optimiser import moved, natural_with
from streaming_gp.pvi.ledger import Ledger


@typed
@dataclass(frozen=True)
class ServerAdam(AdamFormula):
    """A damping rule: the posterior's mean takes steps of Adam (Kingma & Ba 2015), as the server of
    asynchronous SGD (Dean et al. 2012; Hasenclever et al. 2017, section 6.2).

    A client's gradient is what its answer adds to the ``precision_mean`` of its factor; widths stay
    as they are. Begin with ``Server.warm_start``.

    :param learning_rate: The size of a step, about.
    :param beta1: The decay of the gradient's mean, in [0, 1).
    :param beta2: The decay of the gradient's mean square, in [0, 1).
    :param epsilon: What is added to the root of that mean square.
    :raises InvalidDataError: if the learning rate is not positive, or a decay is not in [0, 1).
    """

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)
        require_decay("beta1", self.beta1)
        require_decay("beta2", self.beta2)

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if the posterior is not a mean-field Gaussian, or a client has no
            factor yet, or one without precision, by which no mean can be moved.
        """
        require_mean_field(self, ledger)
        _require_narrow_start(ledger, proposals)
        mean = np.asarray(ledger.posterior.mean)
        gradient = np.zeros_like(mean)
        for name, factor in proposals.items():
            gradient = gradient + factor.natural[0] - ledger.factors[name].natural[0]
        zeros = np.zeros_like(gradient)
        step, memory = self.ascent(gradient, *(memory or (zeros, zeros, np.zeros([]))))
        target = mean + share * step.astype(gradient.dtype)
        return moved(proposals, natural_with(ledger, proposals), target), memory


def _require_narrow_start(ledger: Ledger[Any], proposals: Mapping[str, Any]) -> None:
    missing = sorted(set(proposals) - set(ledger.factors))
    if missing:
        raise InvalidDataError(f"no factor of {missing[0]!r}: ServerAdam needs a warm start")
    flat = [name for name in proposals if not np.all(ledger.factors[name].natural[1] > 0.0)]
    if flat:
        raise InvalidDataError(
            f"the factor of {flat[0]!r} has no precision for ServerAdam to move the mean by: begin "
            "with Server.warm_start at a q that is narrower than the prior in every coordinate"
        )
