"""Who is asked when: one after another, all at once, or whoever is idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import typed
from streaming_gp.pvi.damping import AroundRule, Damping, DampingRule, Rho, RobustMean
from streaming_gp.pvi.engine import Delivery, Session
from streaming_gp.pvi.history import Traffic
from streaming_gp.pvi.reading import Reading, read
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import HasDamping

Durations = float | Mapping[str, float] | None


@runtime_checkable
class Schedule(Protocol):
    """One round: who is asked, and when answers are put into the ledger."""

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        """Run one round, and say what it sent, received and decided.

        :param server: The server, which asks and accepts.
        :param session: The clients at work.
        :param number: The number of this round, from 0, since the server began.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        """
        ...


@typed
@dataclass(frozen=True)
class Sequential:
    """One client after another, each under the newest posterior. One pass is continual learning.

    :param order: The client names in the order of visits; as the server has them if None. "random"
        draws a new order for each round.
    :param damping: ρ in (0, 1], for all or by client.
    :param seed: The seed of random orders.
    """

    order: Sequence[str] | str | None = None
    damping: Rho = 1.0
    seed: int = 0

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        traffic, rule = Traffic(), one_by_one(as_rule(self.damping, server))
        for name in self._order(server, number):
            submit(server, session, [name], traffic, None)
            collect(server, session, rule, progress, traffic, 1)
        return traffic

    def _order(self, server: Server, number: int) -> list[str]:
        if self.order == "random":
            rng = np.random.default_rng([self.seed, number])
            return [str(name) for name in rng.permutation(list(server.clients))]
        if isinstance(self.order, str):
            raise InvalidDataError(f'order is a list of clients or "random", got {self.order!r}')
        return list(server.clients if self.order is None else self.order)


@typed
@dataclass(frozen=True)
class Synchronous:
    """All clients under one posterior; their answers enter the ledger together.

    :param damping: ρ in (0, 1], for all or by client, or a rule such as ``Momentum``. If None, what
        a client's update rule says (:class:`~streaming_gp.pvi.HasDamping`), and 1/K for others.
        With ρ = 1 and correlated parameters synchronous rounds may diverge.
    :param fraction: The fraction of the clients that are asked in each round, drawn anew.
    :param durations: The simulated seconds of a visit, for all or by client.
    :param seed: The seed of the draw.
    """

    damping: Rho = None
    fraction: float = 1.0
    durations: Durations = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise InvalidDataError(f"fraction must lie in (0, 1], got {self.fraction}")

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        traffic, rule = Traffic(), as_rule(self.damping, server)
        names = self._chosen(list(server.clients), number)
        submit(server, session, names, traffic, self.durations)
        collect(server, session, rule, progress, traffic, len(names))
        return traffic

    def _chosen(self, names: list[str], number: int) -> list[str]:
        size = max(1, round(self.fraction * len(names)))
        rng = np.random.default_rng([self.seed, number])
        return [names[i] for i in sorted(rng.choice(len(names), size, replace=False))]


@typed
@dataclass(frozen=True)
class Asynchronous:
    """Whoever is idle is asked; each answer enters the ledger when it arrives, without locks.

    A round is K answers, of whichever of the K clients.

    :param damping: ρ in (0, 1], for all or by client. If None, what a client's update rule says,
        and 1/K for others.
    :param durations: The simulated seconds of a visit, for all or by client.
    :param jitter: The fraction of their duration by which visits vary.
    :param staleness_power: An answer that s versions have overtaken enters with (1 + s)^−power of
        its damping.
    :param seed: The seed of the jitter.
    """

    damping: Rho = None
    durations: Durations = 1.0
    jitter: float = 0.1
    staleness_power: float = 0.0
    seed: int = 0

    def round(self, server: Server, session: Session, number: int, progress: float) -> Traffic:
        traffic, rule = Traffic(), one_by_one(as_rule(self.damping, server))
        rng = np.random.default_rng([self.seed, number])
        for _ in server.clients:
            idle = [name for name in server.clients if name not in session.open]
            submit(server, session, idle, traffic, self._durations(idle, rng))
            collect(server, session, rule, progress, traffic, 1, self.staleness_power)
        return traffic

    def _durations(self, names: list[str], rng: np.random.Generator) -> dict[str, float] | None:
        if self.durations is None:
            return None
        factors = 1.0 + self.jitter * rng.uniform(-1.0, 1.0, len(names))
        return {
            name: factor * _duration(self.durations, name)
            for name, factor in zip(names, factors, strict=True)
        }


def as_rule(damping: Rho, server: Server) -> DampingRule:
    """A number, a number for each client or None as a rule; a rule as it is."""
    if damping is None:
        rules = {name: client.update for name, client in server.clients.items()}
        known = {
            k: rule.server_damping for k, rule in rules.items() if isinstance(rule, HasDamping)
        }
        damping = {k: rho for k, rho in known.items() if rho is not None}
    if isinstance(damping, (int, float, Mapping)):
        return Damping(damping, len(server.clients))
    if isinstance(damping, AroundRule):
        return replace(damping, damping=as_rule(damping.damping, server))
    return damping


def one_by_one(rule: DampingRule) -> DampingRule:
    """A rule for answers that enter the ledger one after another.

    :raises InvalidDataError: if it combines those of one round.
    """
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


def submit(
    server: Server, session: Session, names: Iterable[str], traffic: Traffic, durations: Durations
) -> None:
    """Ask these clients under the present posterior."""
    asks = [server.ask(name) for name in names]
    for ask, removed in asks:
        traffic.note_ask(ask, removed)
        session.submit(ask, None if durations is None else _duration(durations, ask.client_id))


def collect(
    server: Server,
    session: Session,
    rule: DampingRule,
    progress: float,
    traffic: Traffic,
    number: int,
    staleness_power: float = 0.0,
) -> None:
    """Wait for so many deliveries, then put the answers among them into the ledger together."""
    readings: list[Reading] = []
    for delivery in (session.next() for _ in range(number)):
        _note(delivery, traffic, readings)
    # in the server's order, so that rounding does not depend on who was first
    places = {name: place for place, name in enumerate(server.clients)}
    readings.sort(key=lambda reading: places.get(reading.channel, len(places)))
    outcome = server.accept(readings, rule, progress, staleness_power=staleness_power)
    traffic.outcomes.append(outcome)


def _note(delivery: Delivery, traffic: Traffic, readings: list[Reading]) -> None:
    if delivery.answer is None:
        traffic.failed[delivery.client_id] = delivery.error or "no answer"
        return
    reading = read(delivery)
    readings.append(reading)
    traffic.note_answer(reading)
    if reading.epsilon is not None:
        traffic.note_spent(delivery.client_id, reading.epsilon)


def _duration(durations: float | Mapping[str, float], name: str) -> float:
    return durations[name] if isinstance(durations, Mapping) else durations
