"""The report of each round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True)
class Round:
    """The report of one round, or of a part of it: reports of parts add up.

    In a history, counts and seconds are sums since the beginning.

    :param round: The round's number, from 1.
    :param version: The version of the posterior after it.
    :param seconds: Seconds of wall clock, without evaluation.
    :param simulated_seconds: Seconds on the engine's clock, on which clients work side by side.
    :param messages: The number of messages in both directions.
    :param bytes_down: Size of the natural parameters sent to clients.
    :param bytes_up: Size of the natural parameters sent by clients.
    :param metrics: The metrics of ``evaluate``, and of learned hyperparameters, by name.
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

    round: int = 0
    version: int = 0
    seconds: float = 0.0
    simulated_seconds: float = 0.0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
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

    def __add__(self, other: Round) -> Round:
        """The report of two parts of a round."""
        energies = [one.free_energy for one in (self, other) if one.accepted]
        return replace(
            self,
            messages=self.messages + other.messages,
            bytes_down=self.bytes_down + other.bytes_down,
            bytes_up=self.bytes_up + other.bytes_up,
            accepted=self.accepted + other.accepted,
            free_energy=sum(energies) if energies else float("nan"),
            refused={**self.refused, **other.refused},
            failed={**self.failed, **other.failed},
            share=min(self.share, other.share),
            removed_fraction=min(self.removed_fraction, other.removed_fraction),
            staleness=max(self.staleness, other.staleness),
            skipped=self.skipped + other.skipped,
            epsilon={**self.epsilon, **other.epsilon},
        )

    @property
    def unheard(self) -> dict[str, str]:
        """Why clients failed or were refused, by client; of one that did both, why it failed."""
        return {**self.refused, **self.failed}


RECORDED = frozenset({"bytes", *(one.name for one in fields(Round))})
"""Names of a record that no metric may have."""


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

    def extended(self, report: Round) -> History:
        """With one more round, whose counts and seconds go on from those of the last one."""
        last = self.rounds[-1] if self.rounds else Round()
        one = replace(
            report,
            round=last.round + 1,
            seconds=last.seconds + report.seconds,
            simulated_seconds=last.simulated_seconds + report.simulated_seconds,
            messages=last.messages + report.messages,
            bytes_down=last.bytes_down + report.bytes_down,
            bytes_up=last.bytes_up + report.bytes_up,
            epsilon={**last.epsilon, **report.epsilon},
        )
        return History((*self.rounds, one))

    def with_metrics(self, metrics: Mapping[str, float]) -> History:
        """The same, with these metrics of the last round."""
        return History((*self.rounds[:-1], replace(self.rounds[-1], metrics=metrics)))

    def to_records(self) -> list[dict[str, Any]]:
        """One flat dict for each round: its fields, ``bytes`` in both directions, its metrics."""
        return [
            {**asdict(one), "bytes": one.bytes_down + one.bytes_up, **one.metrics}
            for one in self.rounds
        ]

    def plot(self, metrics: Sequence[str] | None = None, against: str = "round") -> Any:
        """Draw metrics against what they cost, with clients that were not heard below.

        :param metrics: Their names; all that ``evaluate`` gave if None, and the free energy where
            there are none.
        :param against: "round", "seconds", "simulated_seconds", "messages" or "bytes".
        :returns: a matplotlib figure, with one axes for each metric, and one for failures if there
            were any.
        :raises InvalidDataError: if there is no round, or no such metric.
        """
        import matplotlib.pyplot as plt

        records = self.to_records()
        known = list({name: None for one in self.rounds for name in one.metrics})
        wanted = list(metrics) if metrics is not None else known or ["free_energy"]
        missing = [name for name in (*wanted, against) if not any(name in r for r in records)]
        if missing or not wanted:
            raise InvalidDataError(f"no {missing or 'metrics'} to plot: there are {known}")
        unheard = [len(one.unheard) for one in self.rounds]
        number = len(wanted) + any(unheard)
        figure = plt.figure(figsize=(6.0, 2.0 + 1.5 * number), layout="constrained")
        panels = figure.subplots(number, sharex=True, squeeze=False)[:, 0]
        for panel, name in zip(panels, wanted, strict=False):
            points = [(record[against], record[name]) for record in records if name in record]
            panel.plot(*zip(*points, strict=True), ".-")
            panel.set_ylabel(name.replace("_", " "))
        if any(unheard):
            panels[-1].bar(self.column(against), unheard, width=0.5)
            panels[-1].set_ylabel("not heard")
        panels[-1].set_xlabel(against.replace("_", " "))
        return figure

    def column(self, name: str) -> list[Any]:
        """One field or metric over rounds; NaN for a round without this metric.

        :raises KeyError: if there is no such thing.
        """
        records = self.to_records()
        if records and not any(name in record for record in records):
            raise KeyError(name)
        return [record.get(name, float("nan")) for record in records]
