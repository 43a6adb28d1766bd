"""All that a server knows, as a value: this is what its file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from streaming_gp.arguments import typed
from streaming_gp.pvi.damping import Memory
from streaming_gp.pvi.history import History
from streaming_gp.pvi.ledger import Factor, Posterior
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a server knows, as a value.

    :param prior: The posterior before any data.
    :param factors: One factor for each client, by name and in order of arrival.
    :param version: The number of times that the posterior has changed.
    :param sequences: The number of the last question, by client.
    :param memory: What the damping rule keeps between steps.
    :param history: The rounds so far.
    :param hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :param hyperparameter_factors: What the newest answer of each client says of them, by client.
    """

    prior: Posterior
    factors: Mapping[str, Factor] = field(default_factory=dict)
    version: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = ()
    history: History = field(default_factory=History)
    hyperparameters: np.ndarray | None = None
    hyperparameter_factors: Mapping[str, Factor] = field(default_factory=dict)
