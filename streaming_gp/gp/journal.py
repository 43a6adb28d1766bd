"""A stream written down as it goes: one file for every completed change of a model.

A journal is a folder of entries ``00000000.npz``, ``00000001.npz`` and so on. The first holds the
model before any data; each later one holds its state after one more change, with only those factors
that the change made or replaced. An entry appears whole, is on disk before the model changes, and
is never written again: a process that is killed at any moment has lost nothing that was completed.
Each entry carries the fingerprint of the one before, so that none can take the place of another.
What an entry says of private data is what its :class:`.State` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.gp.process.process import PseudoPointFactor
from streaming_gp.gp.state import State, refuse_unsound
from streaming_gp.serialization import PathLike, leftovers, registered_classes, storable

KIND = "journal entry"
_ENTRY = re.compile(r"\d{8}\.npz")


@storable
@dataclass(frozen=True, eq=False)
class JournalEntry:
    """One change.

    :param order: The names of all factors after it, in order.
    :param state: The state after it, without the factors that it did not touch.
    :param previous: The fingerprint of the entry before it; nothing for the first one.
    """

    order: tuple[str, ...]
    state: State
    previous: str = ""


class Position(NamedTuple):
    """Where a journal goes on.

    :param number: The number of the next entry.
    :param factors: The factors of the model when the entry before was written.
    :param digest: The fingerprint of the entry before.
    """

    number: int = 0
    factors: Mapping[str, PseudoPointFactor] = MappingProxyType({})
    digest: str = ""


class Journal:
    """Writes the entries of one model.

    :param folder: The folder that holds them.
    :param position: Where it goes on.
    """

    def __init__(self, folder: Path, position: Position) -> None:
        self._folder = folder
        self._pending: bytes | None = None
        self.position = position

    @classmethod
    def begun(cls, folder: PathLike, state: State) -> Journal:
        """A new journal of a model in this state.

        :param folder: The folder, which is made if it is missing.
        :param state: The state of the model before any change.
        :raises InvalidDataError: if it is not empty, or there can be no such folder.
        """
        path = serialization.as_path(folder).absolute()
        try:
            _refuse_unless_free(path)
            path.mkdir(parents=True, exist_ok=True)
            _clean(path)
        except OSError as error:  # such as a name that is too long
            raise InvalidDataError(
                f"there can be no journal in {str(path)!r:.300}: {error.strerror}"
            ) from error
        journal = cls(path, Position())
        journal.append(state)
        return journal

    @classmethod
    def resumed(cls, folder: PathLike) -> tuple[Journal, State]:
        """A journal that goes on after its last entry, and the state that this describes.

        :raises FileFormatError: if there is no journal in the folder, or an entry is missing or
            damaged; names it.
        """
        path = serialization.as_path(folder).absolute()
        position, state = _replayed(path)
        _clean(path)
        return cls(path, position), state

    def append(self, state: State) -> None:
        """Write down the state that the model is about to take.

        :raises InvalidDataError: if someone else has written to the journal meanwhile.
        :raises OSError: if the entry cannot be written; the journal has not changed then.
        """
        number, before, digest = self.position
        new = {name: f for name, f in state.factors.items() if before.get(name) is not f}
        entry = JournalEntry(tuple(state.factors), replace(state, factors=new), digest)
        self._pending = serialization.packed(KIND, entry, registered_classes())
        try:
            serialization.write_new(self._folder / _name(number), self._pending)
        except FileExistsError as error:
            self._pending = None
            raise InvalidDataError(
                f"another model has written entry {_name(number)} of the journal {self._folder}; "
                "a journal has one writer, and this model is as it was"
            ) from error
        self.position = Position(number + 1, state.factors, serialization.digest(self._pending))

    def withdraw(self, position: Position) -> None:
        """Take back what was appended since the journal was here, if anything was."""
        path = self._folder / _name(position.number)
        if self._pending is not None and path.exists() and path.read_bytes() == self._pending:
            path.unlink()
        self.position = position


def last_state(journal: PathLike) -> State:
    """The state after the last completed change; nothing in the folder is touched.

    Another process may be writing the journal.

    :param journal: The folder of a journal.
    :raises FileFormatError: if there is no journal, or an entry is missing or damaged.
    """
    return _replayed(serialization.as_path(journal).absolute())[1]


def _name(number: int) -> str:
    return f"{number:08d}.npz"


def _clean(folder: Path) -> None:
    for part in leftovers(folder):
        part.unlink(missing_ok=True)


def _refuse_unless_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidDataError(f"a journal is a folder, but {folder} is a file")
    content = sorted(path.name for path in {*folder.glob("*")} - {*leftovers(folder)})
    if _name(0) in content:
        raise InvalidDataError(
            f"there is a journal in {folder} already: StreamingGP.resume continues it"
        )
    if content:
        raise InvalidDataError(f"a journal needs an empty folder, but {folder} has {content[0]}")


def _replayed(folder: Path) -> tuple[Position, State]:
    """The position after the last entry, and the state there."""
    try:
        names = sorted(path.name for path in folder.glob("*.npz") if _ENTRY.fullmatch(path.name))
    except OSError as error:
        raise FileFormatError(f"cannot read {str(folder)!r:.300}: {error.strerror}") from error
    if not names:
        raise FileFormatError(
            f"there is no journal in {folder}: StreamingGP(..., journal=...) begins one"
        )
    position = Position()
    for number, name in enumerate(names):
        path = folder / name
        if name != _name(number):
            raise FileFormatError(
                f"the journal {folder} has {name}, but entry {_name(number)} is missing"
            )
        data = serialization.read_bytes(path)
        entry = serialization.unpacked(path, data, KIND, registered_classes(), JournalEntry)
        factors = {**position.factors, **entry.state.factors}
        if entry.previous != position.digest or not factors.keys() >= {*entry.order}:
            raise FileFormatError(f"{path} does not follow the entry before it")
        state = replace(entry.state, factors={name: factors[name] for name in entry.order})
        position = Position(number + 1, state.factors, serialization.digest(data))
    refuse_unsound(folder, state)
    return position, state
