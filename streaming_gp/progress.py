"""Progress of long updates: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from streaming_gp.gp.fit.optimiser import Callback, Progress


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
