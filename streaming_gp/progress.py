"""Progress of long work: a bar on a terminal; of updates, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from streaming_gp.gp.fit.optimiser import Callback, Progress

SECONDS = 2.0
"""What takes less has no bar."""


def long_work(steps: Sequence[int], label: str) -> Iterator[int]:
    """The steps one after another, with a bar on a terminal where they take long.

    :param label: The text in front of the bar.
    """
    bar: Iterator[int] = iter(tqdm(steps, label, disable=None, delay=SECONDS, leave=False))
    return bar


@contextmanager
def progress_bar(label: str) -> Iterator[Callback]:
    """A callback for ``StreamingGP.update``; shows iterations and the free energy.

    On anything but a terminal one line is printed at the end instead.

    :param label: The text in front of the bar or line.
    """
    last: Progress | None = None
    on_terminal = sys.stderr.isatty()
    with tqdm(desc=label, unit="it", disable=not on_terminal) as bar:

        def callback(progress: Progress) -> None:
            nonlocal last
            last = progress
            bar.total = progress.max_iterations
            bar.set_postfix(free_energy=f"{progress.free_energy:.2f}", refresh=False)
            bar.update(progress.iteration - bar.n)

        yield callback
    if last is not None and not on_terminal:
        print(f"{label}: {last.iteration} iterations, free energy {last.free_energy:.2f}")
