"""A model that learns from a source of batches to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tqdm import tqdm

from streaming_gp.errors import InvalidDataError
from streaming_gp.frames.columns import is_table
from streaming_gp.gp import UpdateInfo
from streaming_gp.inputs import as_real_array
from streaming_gp.tables.columns import complete_rows
from streaming_gp.tables.model import TableGP
from streaming_gp.validation import as_matrix, as_pair


class Learner(Protocol):
    """A model that learns from pairs of arrays, such as a ``StreamingGP``."""

    def update(self, data: Any, /) -> Any:
        """Learn from one batch."""


@dataclass(frozen=True)
class StreamReport:
    """The numbers of a source that came to its end.

    :param num_batches: The number of batches that were learned.
    :param num_rows: The number of rows in them.
    :param num_skipped: The number of rows that were skipped, as a target was missing.
    :param seconds: The wall time, reading included.
    """

    num_batches: int
    num_rows: int
    num_skipped: int
    seconds: float


def stream(
    source: Iterable[Any],
    model: Learner | TableGP,
    *,
    label: str | None = None,
    report: Callable[[UpdateInfo], None] | None = None,
) -> StreamReport:
    """Learn from every batch of a source, one after another; only one is in memory at a time.

    A source is anything to loop over: a list, a generator, :func:`.read_csv`, the consumer of a
    message queue. It may go on for ever, and be left by an exception or Ctrl-C: the model then
    holds the batches that were learned. Rows without a target are skipped and counted; a batch that
    has nothing else is no batch.

    :param source: Tables for a :class:`TableGP`; pairs of X [N, D] and Y [N, P] for any other
        model, with NaN in Y where a target is missing.
    :param model: The model.
    :param label: The text in front of a progress bar on a terminal, or of a line for each batch
        elsewhere. Without it no progress is shown.
    :param report: Called with what ``update`` returned after every batch.
    :returns: the numbers of batches and rows.
    :raises InvalidDataError: if a batch is refused; says which. Those before it are learned.

    >>> sgp.stream([(X + 5.0, Y), (X + 9.0, Y)], model).num_rows
    40
    """
    start, batches, rows, skipped = time.perf_counter(), 0, 0, 0
    on_terminal = sys.stderr.isatty()
    with tqdm(source, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, batch in enumerate(bar, start=1):
            try:
                info, size, missing = _learn(batch, model)
            except InvalidDataError as error:
                raise InvalidDataError(f"batch {number}, after {rows} rows: {error}") from error
            rows, skipped, batches = rows + size, skipped + missing, batches + bool(size)
            if size and report is not None:
                report(info)
            if label is not None and not on_terminal:
                print(f"{label}: batch {number}, {rows} rows, {skipped} skipped", flush=True)
    return StreamReport(batches, rows, skipped, time.perf_counter() - start)


def _learn(batch: Any, model: Learner | TableGP) -> tuple[Any, int, int]:
    """The result of ``update``, the number of rows that it saw, and of those that were skipped."""
    if isinstance(model, TableGP):
        rows, skipped = model.num_rows, model.num_skipped
        info = model.update(batch)
        return info, model.num_rows - rows, model.num_skipped - skipped
    if is_table(batch) and not isinstance(batch, tuple):
        raise InvalidDataError(
            f"a {type(model).__name__} takes pairs (X, Y), got a {type(batch).__name__}; "
            "tables are for a TableGP"
        )
    X, Y = as_pair(batch)
    X, Y = as_matrix("X", X, None), as_real_array("Y", Y)
    skipped = 0
    if Y.ndim == 2 and len(X) == len(Y):  # else the model says what it wants
        X, Y, skipped = complete_rows(X, Y)
    return (model.update((X, Y)) if len(X) else None), len(X), skipped
