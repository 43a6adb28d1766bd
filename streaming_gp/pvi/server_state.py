"""What a server knows, as values: its state, which files hold, and what became of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from streaming_gp import expfam
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.pvi.damping import Memory
from streaming_gp.pvi.history import History, Round


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a server knows, as a value: this is what its file holds.

    :param prior: the posterior before any data.
    :param factors: by client, in order of arrival.
    :param version: how often the posterior has changed.
    :param sequences: the last question's number, by client.
    :param memory: of the damping rule.
    :param history: rounds so far.
    :param hyperparameters: of the likelihood, unconstrained, where they are learned.
    """

    prior: ExponentialFamily
    factors: Mapping[str, Factor] = field(default_factory=dict)
    version: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = ()
    history: History = field(default_factory=History)
    hyperparameters: np.ndarray | None = None


VALUE_TYPES: dict[str, type] = {
    cls.__name__: cls for cls in (ServerState, History, Round, Factor, *expfam.FAMILIES)
}
"""Every class that a server's file may hold, by its name there."""


@dataclass(frozen=True)
class Outcome:
    """What became of some answers.

    :param refused: why, by client.
    :param accepted: clients whose factors changed.
    :param free_energy: sum of the local free energies of the accepted ones.
    :param share: of the full step that the policy allowed.
    :param staleness: versions between question and answer, at most.
    :param skipped: sites of accepted answers that an improper cavity kept as they were.
    """

    refused: Mapping[str, str]
    accepted: tuple[str, ...]
    free_energy: float
    share: float
    staleness: int
    skipped: int = 0
