"""What happened in each round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from streaming_gp.pvi.messages import Ask
from streaming_gp.pvi.task import LocalResult
from streaming_gp.serialization import storable


class HasSize(Protocol):
    """What travels."""

    @property
    def num_bytes(self) -> int:
        """Size of its arrays."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of some answers.

    :param refused: Why answers were refused, by client.
    :param accepted: What the fits of the other clients arrived at, by client.
    :param share: The share of the full step that the policy allowed, in [0, 1].
    :param staleness: The largest number of versions between question and answer.
    """

    refused: Mapping[str, str]
    accepted: Mapping[str, LocalResult]
    share: float = 1.0
    staleness: int = 0


@dataclass
class Traffic:
    """What one round sent, received and decided; schedules fill it in.

    :param messages: The number of messages in both directions.
    :param bytes_down: Size of the natural parameters sent to clients.
    :param bytes_up: Size of the natural parameters sent by clients.
    :param removed_fraction: The smallest fraction of an old factor that a cavity left out.
    :param failed: What went wrong with clients that gave no answer, by client.
    :param outcomes: What became of the answers, in the order in which they were decided.
    :param epsilon: What clients that answered have spent of their privacy so far, by client.
    """

    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    removed_fraction: float = 1.0
    failed: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    epsilon: dict[str, float] = field(default_factory=dict)

    def note_ask(self, ask: Ask, removed_fraction: float) -> None:
        """Count a question, and the fraction of its client's factor that the cavity leaves out."""
        self.messages += 1
        self.bytes_down += ask.num_bytes
        self.removed_fraction = min(self.removed_fraction, removed_fraction)

    def note_answer(self, answer: HasSize) -> None:
        """Count an answer."""
        self.messages += 1
        self.bytes_up += answer.num_bytes

    def note_spent(self, client_id: str, epsilon: float) -> None:
        """Note what a client has spent of its privacy, whatever becomes of its answer."""
        self.epsilon[client_id] = epsilon

    def decisions(self) -> dict[str, Any]:
        """The fields of :class:`Round` that say what was decided."""
        results = [r for outcome in self.outcomes for r in outcome.accepted.values()]
        energies = [
            sum(result.free_energy for result in outcome.accepted.values())
            for outcome in self.outcomes
            if outcome.accepted
        ]
        return {
            "accepted": len(results),
            "free_energy": float(np.sum(energies)) if energies else float("nan"),
            "refused": {name: why for o in self.outcomes for name, why in o.refused.items()},
            "failed": dict(self.failed),
            "share": min((outcome.share for outcome in self.outcomes), default=1.0),
            "removed_fraction": self.removed_fraction,
            "staleness": max((outcome.staleness for outcome in self.outcomes), default=0),
            "skipped": sum(result.skipped for result in results),
        }


@storable
@dataclass(frozen=True)
class Round:
    """One round; counts and seconds are sums since the beginning.

    :param round: The round's number, from 1.
    :param version: The version of the posterior after it.
    :param seconds: Seconds of wall clock, without evaluation.
    :param simulated_seconds: Seconds on the engine's clock, on which clients work side by side.
    :param messages: The number of messages in both directions.
    :param bytes_down: Size of the natural parameters sent to clients.
    :param bytes_up: Size of the natural parameters sent by clients.
    :param metrics: What ``evaluate`` gave, and what was learned about hyperparameters, by name.
    :param accepted: The number of answers of this round that the server took.
    :param free_energy: The sum of the local free energies of this round's accepted answers, in
        nats.
    :param refused: Why answers of this round were refused, by client.
    :param failed: What went wrong with clients that gave no answer, by client.
    :param share: The share of the full step, smaller than one where the policy had to backtrack.
    :param removed_fraction: The smallest fraction of an old factor that a cavity left out.
    :param staleness: The largest number of versions between question and answer.
    :param skipped: The number of sites of accepted answers that an improper cavity kept as they
        were.
    :param epsilon: The ε that the answers of each private client add up to since its first one, by
        client: at the δ of its budget, and NaN where there is no bound.
    """

    round: int
    version: int
    seconds: float
    simulated_seconds: float
    messages: int
    bytes_down: int
    bytes_up: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    accepted: int = 0
    free_energy: float = float("nan")
    refused: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0
    removed_fraction: float = 1.0
    staleness: int = 0
    skipped: int = 0
    epsilon: Mapping[str, float] = field(default_factory=dict)

    @property
    def unheard(self) -> dict[str, str]:
        """Why clients failed or were refused, by client; of one that did both, why it failed."""
        return {**self.refused, **self.failed}

    def followed_by(
        self,
        traffic: Traffic,
        version: int,
        seconds: float,
        simulated_seconds: float,
        metrics: Mapping[str, float],
    ) -> Round:
        """The next round.

        :param version: The version of the posterior after it.
        :param seconds: Seconds of wall clock that it took.
        :param simulated_seconds: Seconds that it took on the engine's clock.
        """
        return Round(
            round=self.round + 1,
            version=version,
            seconds=self.seconds + seconds,
            simulated_seconds=self.simulated_seconds + simulated_seconds,
            messages=self.messages + traffic.messages,
            bytes_down=self.bytes_down + traffic.bytes_down,
            bytes_up=self.bytes_up + traffic.bytes_up,
            metrics={name: float(value) for name, value in metrics.items()},
            epsilon={**self.epsilon, **traffic.epsilon},
            **traffic.decisions(),
        )


@storable
@dataclass(frozen=True)
class History:
    """Rounds in order.

    :param rounds: All rounds so far.
    """

    rounds: tuple[Round, ...] = ()

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)

    def __getitem__(self, index: int) -> Round:
        return self.rounds[index]

    def extended(self, more: Round) -> History:
        """With one more round."""
        return History((*self.rounds, more))

    def to_records(self) -> list[dict[str, Any]]:
        """One flat dict for each round: its fields, ``bytes`` in both directions, its metrics."""
        return [_record(one) for one in self.rounds]

    def column(self, name: str) -> list[Any]:
        """One field or metric over rounds.

        :raises KeyError: if there is no such thing.
        """
        return [record[name] for record in self.to_records()]


def _record(one: Round) -> dict[str, Any]:
    record = asdict(one)
    metrics = record.pop("metrics")
    return {**record, "bytes": one.bytes_down + one.bytes_up, "metrics": metrics, **metrics}
