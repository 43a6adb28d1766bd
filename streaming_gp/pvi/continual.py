"""Variational continual learning (VCL; Nguyen et al. 2018) as a schedule of PVI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_not_negative
from streaming_gp.pvi.client import Client, make_clients
from streaming_gp.pvi.engine import Session
from streaming_gp.pvi.history import Traffic
from streaming_gp.pvi.model import Model
from streaming_gp.pvi.schedule import Sequential
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import UpdateRule


def continual_clients(
    model: Model,
    tasks: Sequence[tuple[Any, Any]],
    update: UpdateRule,
    coreset_size: int = 0,
    seed: int = 0,
) -> dict[str, Client]:
    """A client for each task, and one for each coreset: what has been put aside up to that task.

    :param model: The model that all share.
    :param tasks: (X, Y) of each task, in order of arrival.
    :param update: The rule by which each of them fits.
    :param coreset_size: The number of random rows of each task that are put aside.
    :param seed: The seed of these rows, and of the start of the first fit.
    :returns: clients "task 0", "coreset 0", "task 1" and so on; without coresets tasks alone.
    :raises InvalidDataError: if there is no task, or one has not more rows than its coreset.
    """
    require_not_negative("coreset_size", coreset_size)
    if not tasks:
        raise InvalidDataError("no tasks: there must be at least one")
    rng, aside, shards = np.random.default_rng(seed), [], {}
    for number, (X, Y) in enumerate(tasks):
        if len(X) <= coreset_size:
            raise InvalidDataError(f"task {number} has {len(X)} rows, and {coreset_size} go aside")
        kept, rest = np.split(rng.permutation(len(X)), [coreset_size])
        shards[f"task {number}"] = (X[np.sort(rest)], Y[np.sort(rest)])
        if coreset_size:
            aside.append((X[kept], Y[kept]))
            together = tuple(np.concatenate(part) for part in zip(*aside, strict=True))
            shards[f"coreset {number}"] = together
    return make_clients(model, shards, update, seed)


@dataclass(frozen=True)
class Continual:
    """Round t visits task t once, under all that came before, and then the coreset of all tasks.

    The coreset's factor of the round before is taken out first: what is passed on from task to task
    knows the rows put aside by no other factor. Without coresets this is one pass of
    :class:`~streaming_gp.pvi.Sequential`.
    """

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        """Learn a task.

        :raises InvalidDataError: if all tasks have been learned.
        """
        task, coreset, last = (
            f"{kind} {n}"
            for kind, n in (("task", number), ("coreset", number), ("coreset", number - 1))
        )
        if task not in server.clients:
            raise InvalidDataError(f"there is no {task!r}: all tasks have been learned")
        if last in server.factors:
            server.remove(last)
        order = [name for name in (task, coreset) if name in server.clients]
        return Sequential(order).round(server, session, number, progress)
