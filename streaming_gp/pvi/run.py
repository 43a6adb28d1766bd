"""A federation in one call: clients, server and rounds as most people want them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_positive_integer
from streaming_gp.pvi.client import Client, Site, make_clients
from streaming_gp.pvi.engine import Engine
from streaming_gp.pvi.fit import Evaluate, fit
from streaming_gp.pvi.history import Round
from streaming_gp.pvi.model import Model
from streaming_gp.pvi.schedule import Schedule, Sequential, Synchronous
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import UpdateRule
from streaming_gp.pvi.updates.variational import VariationalUpdate

SCHEDULES: dict[str, Schedule] = {"synchronous": Synchronous(), "sequential": Sequential()}


def run(
    model: Model,
    shards: Sequence[Any] | Mapping[str, Any],
    rounds: int = 10,
    schedule: Schedule | str = "synchronous",
    update: UpdateRule | None = None,
    evaluate: Evaluate | None = None,
    engine: Engine | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Server:
    """Learn one posterior from shards of data, with a progress bar on a terminal.

    ``server = pvi.run(net, shards, rounds=20)``; then ``server.posterior`` is what was learned,
    and ``server.history.plot()`` how. What it does is ``make_clients``, :class:`Server` and
    :func:`fit`, which take over where more is wanted: ``pvi.fit(server, ...)`` goes on.

    :param model: The model that all share.
    :param shards: (X, Y) of each client, in order or by name; or clients, or sites.
    :param rounds: The number of rounds.
    :param schedule: "synchronous", all clients at once and damped by 1/K of K clients or by what
        the rule says; "sequential", one after another and undamped; or a schedule.
    :param update: The rule by which clients answer; if None, the one that the model is made for, or
        ``VariationalUpdate(epochs=5)``.
    :param evaluate: Maps the posterior after each round to metrics.
    :param engine: Where clients run; in this process if None.
    :param checkpoint: The file that the server is saved to after each round. If it is there
        already, the run goes on from it, to ``rounds`` rounds in all.
    :param seed: The seed of all random numbers.
    :returns: the server.
    :raises InvalidDataError: if there is no shard, or one that the model cannot take, or no such
        schedule.
    :raises NoAnswerError: as :func:`fit`.
    """
    require_positive_integer("rounds", rounds)
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise InvalidDataError(f"schedule must be in {list(SCHEDULES)}, got {schedule!r}")
    chosen = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    values = list(shards.values()) if isinstance(shards, Mapping) else list(shards)
    clients: Any = values
    if not all(isinstance(one, (Client, Site)) for one in values):
        clients = make_clients(model, shards, update or default_update(model), seed)
    if checkpoint is not None and os.path.exists(checkpoint):
        server = Server.load(checkpoint, model.prior(), clients, seed=seed)
    else:
        server = Server(model.prior(), clients, seed=seed)
    left = rounds - len(server.history)
    with tqdm(total=rounds, initial=rounds - left, disable=not sys.stderr.isatty()) as bar:

        def show(one: Round) -> None:
            bar.set_postfix(one.metrics, refresh=False)
            bar.update()

        if left > 0:
            fit(server, chosen, left, engine, evaluate, show, checkpoint)
    return server


def default_update(model: Any) -> UpdateRule:
    """The rule that a model is made for, which it gives as ``default_update``; or local variational
    inference by Adam.
    """
    own = getattr(model, "default_update", None)
    rule: UpdateRule = VariationalUpdate(epochs=5) if own is None else own()
    return rule
