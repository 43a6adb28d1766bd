"""Bars of work that takes long, where there is a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tqdm import tqdm

SECONDS = 2.0
"""What takes less has no bar."""


def long_work(steps: Sequence[int], label: str) -> Iterator[int]:
    """The steps one after another, with a bar where they take long.

    :param label: The text in front of the bar.
    """
    bar: Iterator[int] = iter(tqdm(steps, label, disable=None, delay=SECONDS, leave=False))
    return bar
