"""Who is asked when: one after another, all at once, whoever is idle, or group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import (
    Decay,
    Fraction,
    NotNegative,
    require_count,
    require_not_negative_finite,
    typed,
)
from streaming_gp.pvi.client import Client, data_for, make_clients
from streaming_gp.pvi.damping import AroundRule, Damping, DampingRule, Rho, RobustMean
from streaming_gp.pvi.engine import Session
from streaming_gp.pvi.history import Round
from streaming_gp.pvi.model import Model
from streaming_gp.pvi.server import Durations, Server, duration_of
from streaming_gp.pvi.task import UpdateRule


@runtime_checkable
class Schedule(Protocol):
    """One round: who is asked, and when answers are put into the ledger."""

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        """Run one round, a visit to some clients or one after another, and report it.

        :param server: The server, which asks and accepts.
        :param session: The clients at work.
        :param number: The number of this round, from 0, since the server began.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        """


@typed
@dataclass(frozen=True)
class Sequential:
    """One client after another, each under the newest posterior. One pass is continual learning.

    :param order: The client names in the order of visits; as the server has them if None. "random"
        draws a new order for each round.
    :param damping: ρ in (0, 1], for all or by client, or a rule; where it does not say, what a
        client's update rule says (``server_damping``), and 1 for others.
    :param seed: The seed of random orders.

    >>> server = sgp.pvi.run(line, shards, rounds=1, schedule=sgp.pvi.Sequential(order="random"))
    """

    order: Sequence[str] | str | None = None
    damping: Rho = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        is_text = self.order is None or isinstance(self.order, str)
        is_known = self.order in (None, "random") if is_text else isinstance(self.order, Sequence)
        if not is_known:
            raise InvalidDataError(f'order is a list of clients or "random", got {self.order!r}')

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        report, rule = Round(), one_by_one(as_rule(self.damping, server, 1))
        for name in self._order(server, number):
            report += server.visit(session, [name], rule, progress)
        return report

    def _order(self, server: Server, number: int) -> list[str]:
        if self.order == "random":
            rng = np.random.default_rng([self.seed, number])
            return [str(name) for name in rng.permutation(list(server.clients))]
        return list(server.clients if self.order is None else self.order)


@typed
@dataclass(frozen=True)
class Synchronous:
    """All clients under one posterior; their answers enter the ledger together.

    :param damping: ρ in (0, 1], for all or by client, or a rule such as ``Momentum``. Where it does
        not say, what a client's update rule says (``server_damping``), and 1/K for others.
        With ρ = 1 and correlated parameters synchronous rounds may diverge.
    :param fraction: The fraction of the clients that are asked in each round, drawn anew.
    :param durations: The simulated seconds of a visit, for all or by client.
    :param seed: The seed of the draw.

    >>> server = sgp.pvi.run(line, shards, rounds=1, schedule=sgp.pvi.Synchronous(damping=0.5))
    """

    damping: Rho = None
    fraction: Fraction = 1.0
    durations: Durations = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_durations(self.durations)

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        names, rng = list(server.clients), np.random.default_rng([self.seed, number])
        size = max(1, round(self.fraction * len(names)))
        draw = [names[i] for i in sorted(rng.choice(len(names), size, replace=False))]
        rule = as_rule(self.damping, server)
        _require_known("durations", self.durations, server)
        return server.visit(session, draw, rule, progress, self.durations)


@typed
@dataclass(frozen=True)
class Asynchronous:
    """Whoever is idle is asked; each answer enters the ledger when it arrives, without locks.

    A round is at most K answers, of whichever of the K clients. A client that fails or is refused
    is asked again in the next round.

    :param damping: ρ in (0, 1], for all or by client, or a rule. Where it does not say, what a
        client's update rule says, and 1/K for others.
    :param durations: The simulated seconds of a visit, for all or by client.
    :param jitter: The fraction of their duration by which visits vary, in [0, 1).
    :param staleness_power: An answer that s versions have overtaken enters with (1 + s)^−power of
        its damping.
    :param seed: The seed of the jitter.

    >>> turns = sgp.pvi.Asynchronous(durations={"c0": 1.0, "c1": 3.0})
    >>> server = sgp.pvi.run(line, shards, rounds=2, schedule=turns)
    """

    damping: Rho = None
    durations: Durations = 1.0
    jitter: Decay = 0.1
    staleness_power: NotNegative = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_durations(self.durations)

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        report, rule = Round(), one_by_one(as_rule(self.damping, server))
        _require_known("durations", self.durations, server)
        rng, busy = np.random.default_rng([self.seed, number]), session.open
        idle, num_open = [one for one in list(server.clients) if one not in busy], len(busy)
        for _ in range(len(server.clients)):
            asked = server.put(session, idle, self._durations(idle, rng))
            num_open += asked.messages
            report += asked
            if num_open == 0:
                break
            delivery = session.next()
            num_open -= 1
            answered = server.accept([delivery], rule, progress, 1.0, self.staleness_power)
            report += answered
            # who is not heard rests until the next round, or it would be all that is heard of
            idle = [] if answered.unheard else [delivery.client_id]
        return report

    def _durations(self, names: list[str], rng: np.random.Generator) -> Durations:
        if self.durations is None:
            return None
        factors = 1.0 + self.jitter * rng.uniform(-1.0, 1.0, len(names))
        seconds = [duration_of(self.durations, name) or 0.0 for name in names]
        return dict(zip(names, factors * seconds, strict=True))


def _check_durations(durations: Durations) -> None:
    if durations is None:
        return
    of = durations if isinstance(durations, Mapping) else {"every client": durations}
    if not of:
        raise InvalidDataError("durations of visits want a number for one client at least")
    for name, seconds in of.items():
        require_not_negative_finite(f"the duration of a visit to {name!r}", seconds)


def _require_known(what: str, by_client: Any, server: Server) -> None:
    """Refuse a number for who is no client, and was none: another one would go without, unseen."""
    if isinstance(by_client, Mapping):
        for name in by_client:
            if not server.knows(name):
                there = f"{list(server.clients)!s:.1000}"
                raise InvalidDataError(f"{what} of {name!r}, who is no client: there are {there}")


@typed
@dataclass(frozen=True)
class Arrivals:
    """Round t is the t-th group. Who has no factor yet is asked at once, under one posterior, and
    enters in full; then each of the group but the first is asked again, in turn.

    Clients that do not know of one another explain the same twice: answers that enter together go
    too far where their data agree, and private pseudo-points come to lie on the same. Asked again,
    each sees the others in its cavity. Let it choose its points anew,
    ``GPUpdate(keep_points=False)``.

    Groups that have factors are visited again if there are more rounds than groups, each client in
    turn.

    :param groups: The names of the clients that come together, in the order in which they come.
    :param again: Whether clients are asked again. If not, everybody's first answer stays.
    :raises InvalidDataError: if there is no group, or an empty one.
    """

    groups: Sequence[Sequence[str]]
    again: bool = True

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise InvalidDataError(f"wanted groups of names of clients, got {self.groups!r:.100}")

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        report, group = Round(), list(self.groups[number % len(self.groups)])
        new = [name for name in group if name not in server.factors]
        if new:
            report += server.visit(session, new, Damping(1.0, len(new)), progress)
        if self.again or not new:
            for name in group[1:] if new else group:
                report += server.visit(session, [name], Damping(1.0, 1), progress)
        return report


@dataclass(frozen=True)
class Continual:
    """Variational continual learning (VCL; Nguyen et al. 2018): round t visits task t once, under
    all that came before, and then the coreset of all tasks.

    The coreset's factor of the round before is taken out first: what is passed on from task to task
    knows the rows put aside by no other factor. Without coresets this is one pass of
    :class:`~streaming_gp.pvi.Sequential`.
    """

    def round(self, server: Server, session: Session, number: int, progress: float) -> Round:
        """Learn a task.

        :raises InvalidDataError: if all tasks have been learned.
        """
        task, coreset, last = f"task {number}", f"coreset {number}", f"coreset {number - 1}"
        if task not in server.clients:
            raise InvalidDataError(f"there is no {task!r}: all tasks have been learned")
        if last in server.factors:
            server.adopt(server.ledger.without(last))
        order = [name for name in (task, coreset) if name in server.clients]
        return Sequential(order).round(server, session, number, progress)


def continual_clients(
    model: Model,
    tasks: Sequence[tuple[Any, Any]],
    update: UpdateRule,
    coreset_size: int = 0,
    seed: int = 0,
) -> dict[str, Client]:
    """A client for each task, and one for each coreset: the rows put aside up to that task.

    :param model: The model that all share.
    :param tasks: (X, Y) of each task, in order of arrival.
    :param update: The rule by which each of them fits.
    :param coreset_size: The number of random rows of each task that are put aside.
    :param seed: The seed of these rows, and of the start of the first fit.
    :returns: clients "task 0", "coreset 0", "task 1" and so on; without coresets tasks alone.
    :raises InvalidDataError: if there is no task, or one that the model cannot take, or that has
        not more rows than its coreset.
    """
    require_count("coreset_size", coreset_size)
    if not tasks:
        raise InvalidDataError("no tasks: there must be at least one")
    rng, aside = np.random.default_rng(seed), []
    shards: dict[str, Any] = {}
    for number, task in enumerate(tasks):
        X, Y = data_for(model, f"task {number}", task)
        if len(X) <= coreset_size:
            raise InvalidDataError(f"task {number} has {len(X)} rows, and {coreset_size} go aside")
        core, rest = np.split(rng.permutation(len(X)), [coreset_size])
        shards[f"task {number}"] = (X[np.sort(rest)], Y[np.sort(rest)])
        if coreset_size:
            aside.append((X[core], Y[core]))
            together = tuple(np.concatenate(part) for part in zip(*aside, strict=True))
            shards[f"coreset {number}"] = together
    return make_clients(model, shards, update, seed)


# ---- damping ----


def as_rule(damping: Rho, server: Server, together: int | None = None) -> DampingRule:
    """A number, a number for each client or None as a rule; a rule as it is.

    :param together: The number of clients whose answers enter at once; all if None.
    """
    given: Any = damping
    if given is None or isinstance(given, Mapping):
        clients = list(server.clients.items())  # as they may join and leave meanwhile
        own = {name: getattr(one.update, "server_damping", None) for name, one in clients}
        said = {name: rho for name, rho in own.items() if rho is not None}
        given = {**said, **(given or {})}
    _require_known("damping", given.rho if isinstance(given, Damping) else given, server)
    if isinstance(given, AroundRule):
        given = replace(given, damping=as_rule(given.damping, server, together))
    is_rule = isinstance(given, DampingRule) and not isinstance(given, type)
    return given if is_rule else Damping(given, together or len(server.clients))


def one_by_one(rule: DampingRule) -> DampingRule:
    """A rule for answers that enter the ledger one after another."""
    around: object = rule
    while isinstance(around, AroundRule):
        if isinstance(around, RobustMean):
            name = type(around).__name__
            raise InvalidDataError(
                f"{name} combines answers of one round, which enter the ledger together: it is for "
                "Synchronous; Agreement and BoundedInfluence are for every schedule"
            )
        around = around.damping
    return rule
