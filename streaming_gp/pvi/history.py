"""What happened in each round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """One round; counts and seconds are sums since the beginning.

    :param round: its number, from 1.
    :param version: of the posterior after it.
    :param seconds: of wall clock, without evaluation.
    :param simulated_seconds: on the engine's clock, on which clients work side by side.
    :param messages: in both directions.
    :param bytes_down: of natural parameters sent to clients.
    :param bytes_up: of natural parameters sent by clients.
    :param metrics: what ``evaluate`` gave.
    :param free_energy: sum of the local free energies of the answers accepted in this round.
    :param refused: why answers of this round were refused, by client.
    :param failed: what went wrong with clients that gave no answer, by client.
    :param share: of the full step, smaller than one where the policy had to backtrack.
    :param removed_fraction: smallest share of an old factor that cavities left out.
    :param staleness: versions between question and answer, at most.
    :param skipped: sites of accepted answers that an improper cavity kept as they were.
    """

    round: int
    version: int
    seconds: float
    simulated_seconds: float
    messages: int
    bytes_down: int
    bytes_up: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    free_energy: float = float("nan")
    refused: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0
    removed_fraction: float = 1.0
    staleness: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class History:
    """Rounds in order.

    :param rounds: all of them.
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
