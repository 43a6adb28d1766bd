"""The loop: rounds of a schedule on an engine, a whole federation in one call, and one without a
server.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from tqdm import tqdm

from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.inputs import (
    Fraction,
    NotNegativeFinite,
    PositiveInteger,
    require_positive_integer,
    require_strategy,
    typed,
)
from streaming_gp.numerics.threads import refuse_after_fork
from streaming_gp.pvi.client import Client, Site, make_clients
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.engine import Engine, Serial
from streaming_gp.pvi.history import RECORDED, History, Round
from streaming_gp.pvi.hyperparameters import HyperparameterRule
from streaming_gp.pvi.ledger import Posterior
from streaming_gp.pvi.model import Model
from streaming_gp.pvi.schedule import Schedule, Sequential, Synchronous
from streaming_gp.pvi.server import Server, seed_of
from streaming_gp.pvi.task import LocalTask, UpdateRule, means_a_misfit
from streaming_gp.pvi.updates.variational import VariationalUpdate

NAMED, NAMED_AT_THE_END = 3, 30
"""So many clients and reasons are named in a warning, and in the error, where all went wrong."""
SILENT = 3
"""So many answers of a client that was never heard make a warning."""
Evaluate = Callable[[Any], Mapping[str, float]]
"""Metrics of a posterior."""


@typed
@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a metric has not improved for some rounds; NaN is no improvement.

    Rounds of earlier fits count, so that a run that goes on from a file stops where it would have.

    :param metric: The name of the metric; smaller is better.
    :param patience: The number of rounds without improvement after which a run stops.
    :param tolerance: The least difference that counts as an improvement.
    """

    metric: str
    patience: PositiveInteger = 10
    tolerance: NotNegativeFinite = 0.0

    def is_over(self, history: History) -> bool:
        """Whether the last ``patience`` rounds brought nothing.

        :raises InvalidDataError: if there is no such metric.
        """
        if self.metric not in history[-1].metrics:
            raise InvalidDataError(
                f"no metric {self.metric!r} to stop by: evaluate gives {list(history[-1].metrics)}"
            )
        values = [one.metrics[self.metric] for one in history if self.metric in one.metrics]
        if len(values) <= self.patience:
            return False
        earlier, last = (
            min((value for value in part if value == value), default=np.inf)
            for part in (values[: -self.patience], values[-self.patience :])
        )
        return not (earlier > last and earlier - last >= self.tolerance)


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
    :param evaluate: Maps the posterior after each round to metrics; not counted in seconds. If it
        raises, the history has the round without them.
    :param callback: Called after each round, for instance to show progress.
    :param checkpoint: The file that the server is saved to after each round. After a crash
        ``Server.load`` goes on from there, with ``rounds = total − len(server.history)``.
    :param stopping: When to end the run early.
    :param hyperparameters: How hyperparameters are learned after each round; their values join the
        round's metrics. If it raises, the history has the round without them.
    :returns: all rounds of the server, earlier ones included.
    :raises InvalidDataError: if ``rounds`` is not positive, another argument is not what it is to
        be, or all clients have left.
    :raises ForkedError: in a process that was forked after TensorFlow ran.
    :raises NoAnswerError: at the end, if every client failed or was refused in all these rounds;
        its ``reasons`` say why, by client, in full where that may be told in this process.
        The first round of that kind gives a warning, with what went wrong. The end comes as soon
        as each of the server's clients has failed with an ``InvalidDataError`` and none has
        answered: further rounds do not mend a rule that does not fit the model.

    >>> clients = sgp.pvi.make_clients(model, [(X[:10], Y[:10]), (X[10:], Y[10:])], sgp.GPUpdate())
    >>> server = sgp.pvi.Server(model.prior(), clients)
    >>> sgp.pvi.fit(server, sgp.pvi.Sequential(), rounds=2).column("round")
    [1, 2]
    """
    refuse_after_fork()
    require_positive_integer("rounds", rounds)
    schedule = Synchronous() if schedule is None else schedule
    engine = Serial() if engine is None else engine
    require_strategy("schedule", schedule, Schedule, "pvi.Sequential()")
    require_strategy("engine", engine, Engine, "pvi.Serial()")
    if stopping is not None:
        require_strategy("stopping", stopping, EarlyStopping, 'pvi.EarlyStopping("loss")')
    if hyperparameters is not None:
        rule = "pvi.PriorVariance()"
        require_strategy("hyperparameters", hyperparameters, HyperparameterRule, rule)
    for name, function in {"evaluate": evaluate, "callback": callback}.items():
        if not (function is None or callable(function)):
            raise InvalidDataError(f"{name} must be a function or None, got {function!r:.100}")
    first = len(server.history)
    if not server.clients:
        raise InvalidDataError("no clients: all have left")
    if hyperparameters is not None:
        hyperparameters.begin(server)
    server.dropped.clear()
    server.failures.clear()
    _caution(server)
    with engine.session(server.clients) as session:
        for number in range(first, first + rounds):
            start, clock = time.perf_counter(), session.now
            report = schedule.round(server, session, number, number / (first + rounds))
            seconds, simulated = time.perf_counter() - start, session.now - clock
            metrics: Mapping[str, float] = {}
            try:  # the round has been, whatever comes of this
                metrics = {} if hyperparameters is None else hyperparameters.learn(server)
            finally:
                server.history = server.history.extended(
                    replace(
                        report,
                        version=server.version,
                        seconds=seconds,
                        simulated_seconds=simulated,
                        metrics=metrics,
                    )
                )
            if evaluate is not None:
                metrics = {**metrics, **_metrics(evaluate(server.posterior))}
                server.history = server.history.with_metrics(metrics)
            if checkpoint is not None:
                server.save(checkpoint)
            if callback is not None:
                callback(server.history[-1])
            done = server.history.rounds[first:]
            _warn_of_failures(server, done)
            if _none_fits(server, done) or server.clients.keys() <= server.dropped:
                break
            if stopping is not None and stopping.is_over(server.history):
                break
    if not any(one.accepted for one in done):
        unheard = {name: why for one in done for name, why in one.unheard.items()}
        reasons = {name: server.failures.get(name, why) for name, why in unheard.items()}
        raise NoAnswerError(
            f"no answer was accepted in any of {len(done)} rounds, and the posterior is what it "
            f"was; in {_reasons_of(done[-1], server.failures, NAMED_AT_THE_END)}",
            reasons,
        )
    _warn_at_the_end(server, done)
    return server.history


def _metrics(given: Any) -> dict[str, float]:
    """What ``evaluate`` gave."""
    try:
        metrics = {name: float(value) for name, value in dict(given).items()}
    except (TypeError, ValueError):
        raise InvalidDataError(f"evaluate must give numbers by name, got {given!r:.100}") from None
    taken = sorted(metrics.keys() & RECORDED)
    if taken:
        raise InvalidDataError(f"evaluate gives {taken}, which every round has: wanted other names")
    return metrics


def _caution(server: Server) -> None:
    """Say what rules want to be known before a run, once each."""
    clients = list(server.clients.items())
    cautions = {_caution_of(one.update): name for name, one in clients}
    for caution, name in cautions.items():
        if caution is not None:
            warnings.warn(f"{name!r}: {caution}", stacklevel=3)


def _caution_of(rule: Any) -> str | None:
    """That of a rule, or of one that it is made around."""
    if hasattr(rule, "caution") or not hasattr(rule, "rule"):
        return getattr(rule, "caution", None)
    return _caution_of(rule.rule)


# ---- clients that fail or are refused: when a run says so, and when it ends for it ----


def _warn_of_failures(server: Server, rounds: tuple[Round, ...]) -> None:
    """After each round: once where nobody is heard, and of clients without a factor after a third
    failure while others are heard.
    """
    last = rounds[-1]
    if not last.accepted and all(one.accepted for one in rounds[:-1]):
        warnings.warn(f"no answer was accepted in {_reasons_of(last, {})}", stacklevel=3)
    if not any(one.accepted for one in rounds):
        return
    for name, why in last.unheard.items():
        failures = (one for one in rounds if name in one.refused or name in one.failed)
        number = len(list(islice(failures, SILENT + 1)))  # no need to look on in a long run
        if number == SILENT and name in server.clients.keys() - server.factors.keys():
            warnings.warn(
                f"nothing has been learned from the data of {name!r}: its first {SILENT} answers "
                f"failed or were refused; the last time: {why}",
                stacklevel=3,
            )


def _warn_at_the_end(server: Server, rounds: tuple[Round, ...]) -> None:
    """Of clients that are there, have no factor yet and were not warned of."""
    reasons: dict[str, list[str]] = {}
    for one in rounds:
        for name, why in one.unheard.items():
            reasons.setdefault(name, []).append(why)
    for name, whys in reasons.items():
        if name in server.clients.keys() - server.factors.keys() and len(whys) < SILENT:
            warnings.warn(
                f"nothing has been learned from the data of {name!r}, none of whose answers was "
                f"taken; the last time: {whys[-1]}",
                stacklevel=3,
            )


def _none_fits(server: Server, rounds: tuple[Round, ...]) -> bool:
    """Whether each client has failed by a mistake in the set-up, and none has ever answered.

    All clients have to say so, not only those of one round: where a round asks a few, a single one
    that is broken or hostile would else end the run of all.
    """
    if any(one.accepted or one.refused for one in rounds):
        return False
    failed = {name: why for one in rounds for name, why in one.failed.items()}
    return failed.keys() == server.clients.keys() and all(map(means_a_misfit, failed.values()))


def _reasons_of(one: Round, in_full: Mapping[str, str], most: int = NAMED) -> str:
    """Why clients of a round were not heard, each reason once with the first of whom it is.

    :param in_full: Why they failed, for this process, by client.
    :param most: So many reasons, and so many clients of each, are named.
    """
    clients: dict[str, list[str]] = {}
    for name, why in one.failed.items():
        clients.setdefault(f"failed: {in_full.get(name, why)}", []).append(name)
    for name, why in one.refused.items():
        clients.setdefault(f"was refused: {why}", []).append(name)
    reasons = [f"{_listed(names, most)} {why}" for why, names in [*clients.items()][:most]]
    others = sum(map(len, [*clients.values()][most:]))
    more = [f"and {others} more"] if others > 0 else []
    return f"round {one.round}: " + "; ".join([*reasons, *more])


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


# ---- a federation in one call ----

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
        ``VariationalUpdate(epochs=5)``. Clients and sites that are given have their own.
    :param evaluate: Maps the posterior after each round to metrics.
    :param engine: Where clients run; in this process if None.
    :param checkpoint: The file that the server is saved to after each round. If it is there
        already, the run goes on from it, to ``rounds`` rounds in all.
    :param seed: The seed of all random numbers.
    :returns: the server.
    :raises InvalidDataError: if there is no shard, or one that the model cannot take, or no such
        schedule, or clients with rules of their own are to have another.
    :raises NoAnswerError: as :func:`fit`.

    >>> server = sgp.pvi.run(line, shards, schedule="sequential", update=sgp.pvi.AnalyticUpdate())
    >>> bool(abs(server.posterior.mean[0] - X.T @ Y / (X.T @ X + 0.1)) < 1e-6)
    True
    """
    require_positive_integer("rounds", rounds)
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise InvalidDataError(f"schedule must be in {list(SCHEDULES)}, got {schedule!r}")
    chosen = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    values = list(shards.values()) if isinstance(shards, Mapping) else list(shards)
    clients: Any = values
    if not all(isinstance(one, (Client, Site)) for one in values):
        clients = make_clients(model, shards, update or default_update(model), seed)
    elif values and update is not None:
        raise InvalidDataError(
            f"clients answer by their own rules: update must be None, got {update!r:.100}"
        )
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
    return VariationalUpdate(epochs=5) if own is None else own()


# ---- without a server: peers hand the posterior on, and each keeps its own factor ----


@dataclass(frozen=True, eq=False)
class Baton:
    """All that goes from one peer to the next.

    :param posterior: q of all peers together; the prior at the start.
    :param visits: The number of visits so far.
    """

    posterior: Any
    visits: int = 0


@typed
@dataclass(eq=False)
class Peer:
    """A client that owns its factor, where otherwise the server's ledger has it.

    It needs no more than q for its cavity ``q / t_k``, and passes ``q t_k_new / t_k`` on. Nobody
    checks its answers, and a baton that is lost takes with it all but the peers' own factors.

    :param client: The client, with its data and its rule.
    :param damping: The damping ρ in (0, 1] of its factor.
    :param seed: The seed that the seeds of its visits are made from.
    :param number: Its number among all peers, from 0.
    :raises InvalidDataError: if the damping is out of its range.

    :ivar own: Its factor; None before its first visit.
    """

    client: Client
    damping: Fraction = 1.0
    seed: int = 0
    number: int = 0
    own: Any = field(default=None, init=False)
    _visits: int = field(default=0, init=False)

    def visit(self, baton: Baton) -> Baton:
        """Refine the own factor under the q that came (PVI 2018, algorithm 1).

        :returns: the baton to pass on.
        :raises ImproperError: if the new q is no distribution; the factor is as it was then, and
            the visit counts, as what a private rule has spent on it does.
        """
        q = baton.posterior
        task = LocalTask(
            *(None, None, q, self.own),
            seed=seed_of(self.seed, self.number, self._visits),
            sequence=self._visits,
            version=baton.visits,
            untouched=baton.visits == 0,
        )
        self._visits += 1
        proposed = self.client.answer(task).factor
        new = damped(self.own, proposed, self.damping).as_arrays()
        after = q.exchanged([] if self.own is None else [self.own], [new]).as_arrays()
        self.own = new
        return Baton(after, baton.visits + 1)


def make_peers(
    model: Model, shards: Any, update: UpdateRule, damping: float = 1.0, seed: int = 0
) -> list[Peer]:
    """One peer for each shard, as :func:`~streaming_gp.pvi.make_clients` makes clients.

    :param model: The model that all share.
    :param shards: (X, Y) of each peer, in order or by name.
    :param update: The rule by which each of them fits.
    :param damping: The damping ρ in (0, 1] of each factor.
    :param seed: The seed of all random numbers.
    :raises InvalidDataError: if there is no shard, or one that the model cannot take.
    """
    clients = make_clients(model, shards, update, 0)
    return [Peer(each, damping, seed, k) for k, each in enumerate(clients.values())]


def pass_around(prior: Posterior, peers: Sequence[Peer], rounds: int = 1) -> Baton:
    """Hand the baton from peer to peer, round after round, in this process.

    This is :class:`~streaming_gp.pvi.Sequential` PVI without a server: the same q after each visit.

    :param prior: The prior of the model.
    :param peers: The peers in the order of visits; none of them has a factor yet.
    :param rounds: The number of rounds.
    :raises InvalidDataError: if there are no peers, or one has a factor already.
    """
    require_positive_integer("rounds", rounds)
    if not peers or any(peer.own is not None for peer in peers):
        raise InvalidDataError("wanted one or more peers, none of which has a factor yet")
    baton = Baton(prior)
    for _ in range(rounds):
        for peer in peers:
            baton = peer.visit(baton)
    return baton
