"""All that a server knows, as a value: this is what its file holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.damping import State
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
    :param damping: The state of the damping rule after its last step.
    :param history: The rounds so far.
    :param hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :param hyperparameter_factors: What the newest answer of each client says of them, by client.
    """

    prior: Posterior
    factors: Mapping[str, Factor] = field(default_factory=dict)
    version: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    damping: State = None
    history: History = field(default_factory=History)
    hyperparameters: np.ndarray | None = None
    hyperparameter_factors: Mapping[str, Factor] = field(default_factory=dict)


def require_fit(state: ServerState, prior: Posterior, clients: Iterable[str]) -> None:
    """That a state goes on with this prior and with these clients.

    :raises InvalidDataError: if it does not.
    :raises FileFormatError: if its factors are none of its prior's kind.
    """
    if state.prior.form != prior.form:
        raise InvalidDataError(
            f"the file is of a {state.prior.form}, but the prior is a {prior.form}"
        )
    for name, factor in state.factors.items():
        objection = state.prior.objection_to(factor)
        if objection is not None:
            raise FileFormatError(f"the factor of {name!r} in the file: {objection}")
    missing = sorted(set(state.factors) - set(clients))
    if missing:
        raise InvalidDataError(f"the file has factors of {missing}, which are not among clients")
