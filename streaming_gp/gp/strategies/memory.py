"""Which memories of a point ε a strategy cannot have."""

from __future__ import annotations

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, PointHyperparameters


def refuse_memory(hyperparameters: HyperparameterStrategy, name: str, why: str) -> None:
    """Refuse a point ε that remembers by this name.

    :param why: What has no such memory, and the reason.
    :raises InvalidDataError: if it does.
    """
    if isinstance(hyperparameters, PointHyperparameters) and hyperparameters.remember == name:
        raise InvalidDataError(f"a point ε cannot remember by {name!r} with {why}")
