"""What a site keeps of its own factor, on a disk of its own, where the server knows sums only."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.task import LocalTask
from streaming_gp.serialization import as_path, storable

KIND = "factor of a site"


@storable
@dataclass(frozen=True, eq=False)
class Kept:
    """What a site knew when it answered last.

    :param sequence: The number of the question.
    :param share: What the server had in the place of the site's factor: its share of the sums.
    :param own: The site's factor; None if it had none.
    :param change: The change of it that was the answer, of which the site does not know yet whether
        it has entered a sum.
    :param past: Digests of the shares that the server had before, in this run.
    """

    sequence: int
    share: Factor | None
    own: Factor | None
    change: Factor
    past: tuple[str, ...] = ()

    def own_at(self, task: LocalTask) -> Factor | None:
        """The site's factor when it is asked again.

        The change has entered a sum if the server has another share for the site since then.

        :raises InvalidDataError: if the server is back where it was before.
        """
        if same_factor(task.own, self.share):
            return self.own
        if task.sequence <= self.sequence or _digest(task.own) in self.past:
            raise InvalidDataError(
                "the server is back where it was before it had the last sums, and the site's "
                "factor of that time is not kept"
            )
        return changed(self.own, self.change)


def own_factor(folder: str, task: LocalTask) -> Factor | None:
    """The site's factor under this question; None if it has none yet.

    :raises InvalidDataError: if it is not kept here.
    """
    if task.own is None:
        return None
    kept = _read(folder, task.client_id)
    if kept is None:
        raise InvalidDataError(f"the factor of {task.client_id!r} is not kept in {folder!r}")
    return kept.own_at(task)


def keep(folder: str, task: LocalTask, own: Factor | None, change: Factor) -> None:
    """Put on record what is about to be answered, whole or not at all.

    :raises FileFormatError: if there can be no record in the folder.
    """
    path = _path(folder, task.client_id)
    share = None if task.own is None else task.own.as_arrays()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"there can be no record in {folder!r}: {error.strerror}") from error
    past = _past(_read(folder, task.client_id), share)
    kept = Kept(task.sequence, share, own, change, past)
    serialization.write(path, KIND, kept, serialization.registered_classes())


def changed(factor: Any, change: Factor) -> Factor:
    """A factor, or that of one who has none yet, times a change."""
    return (change if factor is None else factor * change).as_arrays()


def change_between(old: Any, new: Factor) -> Factor:
    """What :func:`changed` makes the new factor of the old one by."""
    return new if old is None else new / old


def same_factor(a: Any, b: Any) -> bool:
    """Whether two factors have the same natural parameters, to the last bit; None is like None."""
    if a is None or b is None:
        return a is b
    return all(np.array_equal(x, y) for x, y in zip(a.natural, b.natural, strict=True))


def _read(folder: str, client_id: str) -> Kept | None:
    path = _path(folder, client_id)
    if not path.exists():
        return None
    kept: Kept = serialization.read(path, KIND, serialization.registered_classes(), Kept)
    return kept


def _past(before: Kept | None, share: Factor | None) -> tuple[str, ...]:
    if before is None or before.share is None or share is None:
        return ()
    if same_factor(before.share, share):
        return before.past
    return (*before.past, _digest(before.share))


def _digest(share: Any) -> str:
    return sha256(b"".join(np.asarray(eta).tobytes() for eta in share.natural)).hexdigest()


def _path(folder: str, client_id: str) -> Path:
    return as_path(folder) / f"{quote(client_id, safe='')}.npz"
