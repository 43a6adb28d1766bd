"""What a client has spent, on a disk of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from streaming_gp.errors import FileFormatError
from streaming_gp.pvi.privacy.accountant import Release, Spent
from streaming_gp.serialization import as_path, write_bytes

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # not a POSIX system: one process at a time is up to the user
    flock = None  # type: ignore[assignment]


@contextmanager
def alone(folder: str, client_id: str) -> Iterator[None]:
    """Other threads and processes that would pay for this client wait meanwhile.

    Two that read the same record at once would both pay, and one payment would be lost.

    :raises FileFormatError: if there can be no record in the folder.
    """
    path = _path(folder, client_id).with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise FileFormatError(f"there can be no record in {folder!r}: {error.strerror}") from error
    with open(path, "ab") as file:
        if flock is not None:
            flock(file, LOCK_EX)
        yield


def read_spent(folder: str, client_id: str) -> Spent:
    """What is on record of a client; nothing if there is no file.

    :raises FileFormatError: if the file is none of this kind: nobody then knows what is spent.
    """
    path = _path(folder, client_id)
    try:
        if not path.exists():
            return ()
        entries = json.loads(path.read_text())
        if not isinstance(entries, list):
            raise TypeError(f"wanted a list, got {entries!r:.100}")
        return tuple((Release(**entry["release"]), _count(entry["number"])) for entry in entries)
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is no record of what was spent: {error}") from error


def write_spent(folder: str, client_id: str, spent: Spent) -> None:
    """Put what is spent on record, whole or not at all, before anything leaves."""
    entries = [{"release": asdict(release), "number": number} for release, number in spent]
    write_bytes(_path(folder, client_id), json.dumps(entries).encode())


def with_release(spent: Spent, release: Release, number: int) -> Spent:
    """What is spent with so many more of this release."""
    counts = dict(spent)
    counts[release] = counts.get(release, 0) + number
    return tuple(counts.items())


def _count(number: object) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"wanted a number of releases, got {number!r:.100}")
    return number


def _path(folder: str, client_id: str) -> Path:
    return as_path(folder) / f"{quote(client_id, safe='')}.json"
