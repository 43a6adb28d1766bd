"""Which runs are asked for, and in which order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from experiments.benchmarks.methods import METHODS
from experiments.benchmarks.one_run import Task
from experiments.benchmarks.streams import FIRST, STREAMS
from streaming_gp.errors import InvalidDataError

VARIANTS = ("*-fading", "default-window", "conditional", "sgpr-1000")
"""What is planned for the first streams alone: what it shows there, it shows elsewhere too."""
LIMITS = ("*@all",)
"""What is planned for one sorted stream and one shuffled one."""
ONCE = ("*-1000", "vnngp")
"""Random methods with one seed: each run takes minutes."""


def _is_one_of(patterns: Sequence[str], method: str) -> bool:
    return any(fnmatchcase(method, pattern) for pattern in patterns)


def planned(stream: str) -> list[str]:
    """The methods that the full table has of a stream."""
    return [
        method
        for method in METHODS
        if (stream in FIRST or not _is_one_of(VARIANTS, method))
        and (stream in FIRST[:2] or not _is_one_of(LIMITS, method))
    ]


EVERYTHING = [f"{stream}/{method}" for stream in STREAMS for method in planned(stream)]


def matching(pattern: str, names: Iterable[str], what: str) -> list[str]:
    """Names that a pattern such as ``barrett3-*`` matches.

    :param what: What the names are of, for the message.
    :raises InvalidDataError: if there is none.
    """
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise InvalidDataError(f"no {what} {pattern!r}; there are {', '.join(names)}")
    return found


def chosen(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Streams and methods of patterns ``stream/method``; one without a slash is a stream's.

    :raises InvalidDataError: if a stream or method of a pattern is unknown.
    """
    wanted = set()
    for pattern in patterns:
        of_stream, _, of_method = pattern.partition("/")
        streams = matching(of_stream, STREAMS, "stream")
        methods = matching(of_method or "*", METHODS, "method")
        wanted |= {(stream, method) for stream in streams for method in methods}
    return [(s, m) for s in STREAMS for m in METHODS if (s, m) in wanted]


def tasks(patterns: Sequence[str], seed: int, quick: bool, limit: float) -> list[Task]:
    """One run of each method on each stream of the patterns, in the order of streams.

    :raises InvalidDataError: if a stream or method is unknown, or needs a module that is missing.
    """
    pairs = chosen(patterns)
    missing = sorted({str(METHODS[m].needs) for _, m in pairs if not METHODS[m].is_installed})
    if missing:
        raise InvalidDataError(
            f"{' and '.join(missing)} missing for some of these methods: run make bench-streams, "
            "or name other methods with --only"
        )
    return [Task(stream, method, seed, quick, limit) for stream, method in pairs]


def repeated(of: Iterable[Task], better: Container[tuple], seeds: Sequence[int]) -> list[Task]:
    """Runs with further seeds, of random methods at the better of their settings.

    :param better: The keys of the runs whose setting was the better one of its family.
    """
    several = [
        task
        for task in of
        if task.key in better
        and METHODS[task.method].is_random
        and not _is_one_of(ONCE, task.method)
    ]
    return [replace(task, seed=seed) for seed in seeds for task in several]
