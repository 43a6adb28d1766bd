"""The folder of a fit: how it was begun, its journal, and what its columns are."""

from __future__ import annotations

import json
import shutil
import typing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.frames.files import Kind
from streaming_gp.serialization.files import as_path, write_bytes
from streaming_gp.serialization.trees import fits


@dataclass(frozen=True)
class Settings:
    """How a fit was begun, which does not change.

    :param target: The column to predict.
    :param kinds: The inputs, and whether each holds numbers, times or words.
    :param categories: The words of the inputs that hold words.
    :param features: The inputs that were named, if any were.
    :param classes: The labels, if the target holds labels.
    :param kernel: The name of the kernel.
    :param batch_size: The number of rows that are learned together.
    :param budget: The largest number of pseudo-points; by default every input has one.
    :param seed: The seed of all random numbers.
    :param text: What becomes of inputs of words: refuse, drop or encode.
    :param missing: What becomes of rows that miss an input: refuse, drop or mean.
    """

    target: str
    kinds: dict[str, Kind]
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    kernel: str = "squared-exponential"
    batch_size: int = 200
    budget: int | None = None
    seed: int = 0
    text: str = "refuse"
    missing: str = "refuse"

    @property
    def num_inputs(self) -> int:
        """The number of inputs of the model, of which every word of a category is one."""
        words = sum(len(some) for some in self.categories.values())
        return len(self.kinds) - len(self.categories) + words

    @property
    def columns(self) -> dict[str, Kind]:
        """The columns of a file to learn from, and their kinds."""
        target: Kind = "number" if self.classes is None else "words"
        return {**self.kinds, self.target: target}


class Folder:
    """Reads and writes a fit.

    :param path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = as_path(path)
        self.journal = path / "journal"
        self._settings, self._table = path / "settings.json", path / "table.json"
        self._log = path / "batches.jsonl"

    @property
    def has_learned(self) -> bool:
        """Whether a batch was learned here; the journal's first entry is the prior."""
        return self._settings.exists() and len([*self.journal.glob("*.npz")]) > 1

    def begin(self, settings: Settings) -> None:
        """Note how the fit begins, in place of one that has learned nothing.

        :raises InvalidDataError: if the folder holds other things.
        """
        self.forget()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InvalidDataError(f"{self.path} is neither empty nor the folder of a fit")
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self._settings, asdict(settings))

    def forget(self) -> None:
        """Remove a fit that has learned nothing, and the folder if it is empty then."""
        if self.has_learned or not self._settings.exists():
            return
        shutil.rmtree(self.journal, ignore_errors=True)
        for path in (self._settings, self._table, self._log):
            path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def settings(self) -> Settings:
        """How the fit was begun.

        :raises FileFormatError: if none was, or the file is damaged.
        """
        record = _with_tuples(self._read(self._settings))
        hints = typing.get_type_hints(Settings)
        if not {"target", "kinds"} <= {*record} <= {*hints} or not all(
            fits(value, hints[name]) for name, value in record.items()
        ):
            raise FileFormatError(f"{self._settings} is damaged: these are no settings of a fit")
        return Settings(**record)

    def table(self) -> dict[str, Any]:
        """What the columns are, and in what units.

        :raises FileFormatError: if no batch was learned yet, or the file is damaged.
        """
        return self._read(self._table)

    def write_table(self, record: dict[str, Any]) -> None:
        """Keep what the columns are, and in what units."""
        _write(self._table, record)

    def append_record(self, record: dict[str, Any]) -> None:
        """Keep the record of a batch."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write("\n" + json.dumps(record))  # a torn line before it stays alone

    def records(self) -> list[dict[str, Any]]:
        """The record of each batch; that of the last before a process was killed may be missing."""
        text = self._log.read_bytes().decode("utf-8", "replace") if self._log.exists() else ""
        records: dict[str, dict[str, Any]] = {}
        for line in text.splitlines():
            try:
                record = json.loads(line)
                records[record["batch"]] = record
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return [*records.values()]

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise FileFormatError(
                f"{self.path} holds no fit that has learned a batch: streaming-gp fit makes one"
            ) from None
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        if not isinstance(content, dict):
            raise FileFormatError(f"{path} is damaged: it holds a {type(content).__name__}")
        return content


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def _with_tuples(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _with_tuples(value) for name, value in content.items()}
    return tuple(map(_with_tuples, content)) if isinstance(content, list) else content
