"""The loop: rounds of a schedule on an engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.engine import Engine, Session
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.hyperparameters import HyperparameterRule
from streaming_gp.pvi.schedule import Schedule, Synchronous, Traffic
from streaming_gp.pvi.serial import Serial
from streaming_gp.pvi.server import Server

Evaluate = Callable[[Any], Mapping[str, float]]
"""Metrics of a posterior."""


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a metric has not improved for some rounds.

    :param metric: its name; smaller is better.
    :param patience: rounds without improvement.
    :param tolerance: what counts as improvement.
    """

    metric: str
    patience: int = 10
    tolerance: float = 0.0

    def is_over(self, history: History) -> bool:
        """Whether the last ``patience`` rounds brought nothing.

        :raises InvalidDataError: if there is no such metric.
        """
        if self.metric not in history[-1].metrics:
            known = list(history[-1].metrics)
            raise InvalidDataError(f"no metric {self.metric!r} to stop by: evaluate gives {known}")
        values = [one.metrics[self.metric] for one in history if self.metric in one.metrics]
        if len(values) <= self.patience:
            return False
        return min(values[-self.patience :]) > min(values[: -self.patience]) - self.tolerance


def fit(
    server: Server,
    schedule: Schedule | None = None,
    rounds: int = 1,
    engine: Engine | None = None,
    evaluate: Evaluate | None = None,
    callback: Callable[[Round], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    stopping: EarlyStopping | None = None,
    hyperparameters: HyperparameterRule | None = None,
) -> History:
    """Run rounds; the server's posterior is the result.

    :param server: it goes on from where it is.
    :param schedule: who is asked when; synchronous with damping 1/K if None.
    :param rounds: at most so many more.
    :param engine: where clients run; in this process if None.
    :param evaluate: maps the posterior after each round to metrics; not counted in seconds.
    :param callback: called after each round, for instance to show progress.
    :param checkpoint: file that the server is saved to after each round. After a crash
        ``Server.load`` goes on from there, with ``rounds = total − len(server.history)``.
    :param stopping: ends the run early.
    :param hyperparameters: learned after each round; their values join the round's metrics.
    :returns: all rounds of the server, earlier ones included.
    :raises InvalidDataError: if ``rounds`` is not positive.
    """
    if rounds < 1:
        raise InvalidDataError(f"rounds must be positive, got {rounds}")
    schedule, engine = schedule or Synchronous(), engine or Serial()
    first = len(server.history)
    if hyperparameters is not None:
        hyperparameters.begin(server)
    with engine.session(server.clients) as session:
        for number in range(first, first + rounds):
            progress = number / (first + rounds)
            one = _round(server, schedule, session, number, progress, evaluate, hyperparameters)
            server.history = server.history.extended(one)
            if checkpoint is not None:
                server.save(checkpoint)
            if callback is not None:
                callback(one)
            if stopping is not None and stopping.is_over(server.history):
                break
    return server.history


def _round(
    server: Server,
    schedule: Schedule,
    session: Session,
    number: int,
    progress: float,
    evaluate: Evaluate | None,
    hyperparameters: HyperparameterRule | None,
) -> Round:
    before = server.history[-1] if len(server.history) else Round(0, 0, 0.0, 0.0, 0, 0, 0)
    start, clock = time.perf_counter(), session.now
    traffic = schedule.round(server, session, number, progress)
    seconds, simulated = time.perf_counter() - start, session.now - clock
    learned = {} if hyperparameters is None else hyperparameters.learn(server)
    metrics = learned | ({} if evaluate is None else dict(evaluate(server.posterior)))
    return Round(
        round=number + 1,
        version=server.version,
        seconds=before.seconds + seconds,
        simulated_seconds=before.simulated_seconds + simulated,
        messages=before.messages + traffic.messages,
        bytes_down=before.bytes_down + traffic.bytes_down,
        bytes_up=before.bytes_up + traffic.bytes_up,
        metrics={name: float(value) for name, value in metrics.items()},
        **_summary(traffic),
    )


def _summary(traffic: Traffic) -> dict[str, Any]:
    outcomes = traffic.outcomes
    energies = [outcome.free_energy for outcome in outcomes if outcome.accepted]
    return {
        "free_energy": float(np.sum(energies)) if energies else float("nan"),
        "refused": {name: why for outcome in outcomes for name, why in outcome.refused.items()},
        "failed": dict(traffic.failed),
        "share": min((outcome.share for outcome in outcomes), default=1.0),
        "removed_fraction": traffic.removed_fraction,
        "staleness": max((outcome.staleness for outcome in outcomes), default=0),
        "skipped": sum(outcome.skipped for outcome in outcomes),
    }
