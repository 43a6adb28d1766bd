"""What a client has spent, on a disk of its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from streaming_gp.errors import FileFormatError
from streaming_gp.pvi.privacy.accountant import Release, Spent
from streaming_gp.serialization import write_bytes


def read_spent(folder: str, client_id: str) -> Spent:
    """What is on record of a client; nothing if there is no file.

    :raises FileFormatError: if the file is none of this kind: nobody then knows what is spent.
    """
    path = _path(folder, client_id)
    if not path.exists():
        return ()
    try:
        entries = json.loads(path.read_text())
        if not isinstance(entries, list):
            raise TypeError(f"wanted a list, got {entries!r:.100}")
        return tuple((Release(**entry["release"]), _count(entry["number"])) for entry in entries)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is no record of what was spent: {error}") from error


def write_spent(folder: str, client_id: str, spent: Spent) -> None:
    """Put what is spent on record, whole or not at all, before anything leaves."""
    path = _path(folder, client_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [{"release": asdict(release), "number": number} for release, number in spent]
    write_bytes(path, json.dumps(entries).encode())


def with_release(spent: Spent, release: Release, number: int) -> Spent:
    """What is spent with so many more of this release."""
    counts = dict(spent)
    counts[release] = counts.get(release, 0) + number
    return tuple(counts.items())


def _count(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"wanted a number of releases, got {number!r:.100}")
    return number


def _path(folder: str, client_id: str) -> Path:
    return Path(folder) / f"{quote(client_id, safe='')}.json"
