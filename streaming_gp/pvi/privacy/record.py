"""The record of what a client has spent: on a disk of its own, and nowhere else.

``folder/<client>.json`` holds how often each kind of release has been made, with a digest of all of
it, and whose data and which rule it is of. ``folder/<client>.lock`` holds apart those who pay at
once, and how many releases there were at least: a record that is missing, or older than that, is
refused. Nobody else than the client knows what it has told, so that where the record is not to be
believed there is no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.pvi.privacy.accountant import Release, Spent
from streaming_gp.serialization import as_path, write_bytes

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # not a POSIX system: one process at a time is up to the user
    flock = None  # type: ignore[assignment]

LARGEST_FILE, LARGEST_NUMBER = 2**20, 2**40
_WRITTEN: dict[Path, int] = {}  # releases on record by this process, whatever becomes of the files


@dataclass(frozen=True)
class Record:
    """What one client has spent on one data set by one kind of rule.

    :param folder: The folder, an absolute path.
    :param client_id: The client.
    :param subject: A fingerprint of its data and of the kind of its rule, as :func:`subject_of`
        gives it.
    """

    folder: str
    client_id: str
    subject: str

    @contextmanager
    def held(self) -> Iterator[IO[str]]:
        """Others that would pay for this client wait meanwhile.

        :raises FileFormatError: if there can be no record in the folder.
        """
        path = self._path(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            file = open(path, "r+", encoding="ascii", errors="replace")  # noqa: SIM115
        except OSError as error:
            raise FileFormatError(
                f"there can be no record in {self.folder!r}: {error.strerror}"
            ) from error
        with file:
            if flock is not None:
                flock(file, LOCK_EX)
            yield file

    def read(self, lock: IO[str], has_answered: bool = False) -> Spent:
        """The releases so far.

        :param lock: The file that :meth:`held` gives.
        :param has_answered: Whether the server has an answer of the client.
        :raises FileFormatError: if the record is missing where there was one, damaged, older than
            it was, or of other data or another rule.
        """
        path = self._path(".json")
        try:
            lock.seek(0)
            least = max(int(lock.read(40) or "0"), _WRITTEN.get(path, 0))
            spent = self._parsed(path) if path.exists() or path.is_symlink() else ()
        except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is no record of what was spent: {error}") from error
        number = sum(count for _, count in spent)
        if number < least or (has_answered and not number):
            raise FileFormatError(
                f"{path} is no record of what was spent: it says {number} releases, and there were "
                f"{max(least, 1)} at least. Bring it back; privacy.begin_record, where nothing of "
                "these data was ever told"
            )
        return spent

    def write(self, lock: IO[str], spent: Spent) -> None:
        """Put releases on record, whole or not at all, before anything leaves."""
        path, number = self._path(".json"), sum(count for _, count in spent)
        entries = [
            {"release": asdict(release), "number": count, "digest": self._digest(spent)}
            for release, count in spent
        ]
        write_bytes(path, json.dumps(entries).encode())
        _WRITTEN[path] = max(number, _WRITTEN.get(path, 0))
        lock.seek(0)
        lock.truncate()
        lock.write(str(number))
        lock.flush()

    def begin(self) -> None:
        """Begin anew, in so many words: what was on record is put aside."""
        path = self._path(".json")
        with self.held() as lock:
            lock.truncate(0)
            _WRITTEN.pop(path, None)
            aside = (path.with_suffix(f".before{n}") for n in range(10**6))
            if path.exists():
                path.rename(next(one for one in aside if not one.exists()))

    def _parsed(self, path: Path) -> Spent:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        entries = json.loads(path.read_text())
        if not isinstance(entries, list) or not entries:
            raise TypeError(f"wanted a list of releases, got {entries!r:.100}")
        if any(set(entry) != {"release", "number", "digest"} for entry in entries):
            raise KeyError("wanted releases, their numbers and a digest")
        spent = tuple((Release(**entry["release"]), _count(entry["number"])) for entry in entries)
        if len(dict(spent)) < len(spent):
            raise ValueError("a release is there twice")
        if {entry["digest"] for entry in entries} != {self._digest(spent)}:
            raise ValueError("it was altered, or is of other data or of another kind of rule")
        return spent

    def _digest(self, spent: Spent) -> str:
        content = [[asdict(release), count] for release, count in spent]
        return sha256(json.dumps([self.client_id, self.subject, content]).encode()).hexdigest()

    def _path(self, suffix: str) -> Path:
        return as_path(self.folder) / f"{quote(self.client_id, safe='')}{suffix}"


def subject_of(rule: Any, data: tuple[Any, Any]) -> str:
    """A fingerprint of data X and Y, and of what a rule protects in them."""
    digest = sha256(type(rule).__name__.encode())
    for part in map(np.ascontiguousarray, data):
        digest.update(f"{part.dtype} {part.shape}".encode())
        digest.update(part.data)
    return digest.hexdigest()


def begin_record(folder: str, client_id: str) -> None:
    """Say that nothing of a client's data was ever told, where its record is missing or of other
    data: the next answer is the first on record. What was on record is put aside.

    :param folder: The folder that the rule keeps records in, an absolute path.
    :param client_id: The client.
    :raises InvalidDataError: if the path is not absolute.
    """
    require_absolute(folder)
    Record(folder, client_id, "").begin()


def require_absolute(folder: str | None) -> None:
    """Refuse a folder that is another one wherever a program is started from.

    :raises InvalidDataError: naming what came.
    """
    if folder is not None and not as_path(folder).is_absolute():
        raise InvalidDataError(
            f"record must be an absolute path, got {folder!r}: started from another folder, the "
            "client would begin to spend anew"
        )


def _count(number: object) -> int:
    if type(number) is not int or not 0 < number <= LARGEST_NUMBER:
        raise ValueError(f"wanted a number of releases, got {number!r:.100}")
    return number
