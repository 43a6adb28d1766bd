"""The loop: rounds of a schedule on an engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_positive_integer, typed
from streaming_gp.pvi.engine import Engine, Session
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.hyperparameters import HyperparameterRule
from streaming_gp.pvi.schedule import Schedule, Synchronous
from streaming_gp.pvi.serial import Serial
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.unheard import (
    none_fits,
    require_heard,
    warn_of_failures,
    warn_of_the_unheard,
)

Evaluate = Callable[[Any], Mapping[str, float]]
"""Metrics of a posterior."""


@typed
@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a metric has not improved for some rounds.

    :param metric: The name of the metric; smaller is better.
    :param patience: The number of rounds without improvement after which a run stops.
    :param tolerance: The least difference that counts as an improvement.
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

    A client whose first three answers all failed or were refused is named in a warning, and so is
    one from which nothing has been learned at the end.

    :param server: The server; it goes on from where it is.
    :param schedule: Who is asked when; synchronous with damping 1/K if None.
    :param rounds: The largest number of further rounds.
    :param engine: Where clients run; in this process if None.
    :param evaluate: Maps the posterior after each round to metrics; not counted in seconds.
    :param callback: Called after each round, for instance to show progress.
    :param checkpoint: The file that the server is saved to after each round. After a crash
        ``Server.load`` goes on from there, with ``rounds = total − len(server.history)``.
    :param stopping: When to end the run early.
    :param hyperparameters: How hyperparameters are learned after each round; their values join the
        round's metrics.
    :returns: all rounds of the server, earlier ones included.
    :raises InvalidDataError: if ``rounds`` is not positive.
    :raises NoAnswerError: at the end, if every client failed or was refused in all these rounds.
        The first round of that kind gives a warning, with what went wrong. The end comes as soon
        as each of the server's clients has failed with an ``InvalidDataError`` and none has
        answered: further rounds do not mend a rule that does not fit the model.
    """
    require_positive_integer("rounds", rounds)
    schedule, engine = schedule or Synchronous(), engine or Serial()
    first = len(server.history)
    if hyperparameters is not None:
        hyperparameters.begin(server)
    with engine.session(server.clients) as session:
        for number in range(first, first + rounds):
            progress = number / (first + rounds)
            one = _round(server, schedule, session, number, progress, evaluate, hyperparameters)
            _record(server, one, checkpoint, callback)
            warn_of_failures(server, server.history.rounds[first:])
            if none_fits(server, server.history.rounds[first:]):
                break
            if stopping is not None and stopping.is_over(server.history):
                break
    require_heard(server.history.rounds[first:])
    warn_of_the_unheard(server, server.history.rounds[first:])
    return server.history


def _record(
    server: Server,
    one: Round,
    checkpoint: str | os.PathLike[str] | None,
    callback: Callable[[Round], None] | None,
) -> None:
    """The history comes first, so that file and callback know of the round."""
    server.history = server.history.extended(one)
    if checkpoint is not None:
        server.save(checkpoint)
    if callback is not None:
        callback(one)


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
    return before.followed_by(traffic, server.version, seconds, simulated, metrics)
