"""What a command is about to do, checked before TensorFlow is loaded; and the folder of a fit."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import typing
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.frames.files import Kind, TableFile, open_table
from streaming_gp.inputs import missing_extra
from streaming_gp.serialization import as_path, fits, write_bytes

# ---- the folder of a fit ----


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
    """Reads and writes a fit."""

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
        """Note how the fit begins, in place of one that has learned nothing."""
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
        """How the fit was begun."""
        record = _with_tuples(self._read(self._settings))
        hints = typing.get_type_hints(Settings)
        if not {"target", "kinds"} <= {*record} <= {*hints} or not all(
            fits(value, hints[name]) for name, value in record.items()
        ):
            raise FileFormatError(f"{self._settings} is damaged: these are no settings of a fit")
        return Settings(**record)

    def table(self) -> dict[str, Any]:
        """What the columns are, and in what units."""
        return self._read(self._table)

    def write_table(self, record: dict[str, Any]) -> None:
        """Keep what the columns are, and in what units."""
        _write(self._table, record)

    def append_record(self, record: dict[str, Any]) -> None:
        """Keep the record of a batch."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write("\n" + json.dumps(_sealed(record)))  # a torn line before it stays alone

    def records(self) -> list[dict[str, Any]]:
        """The record of each batch; that of the last before a process was killed may be missing."""
        text = self._log.read_bytes().decode("utf-8", "replace") if self._log.exists() else ""
        records: dict[str, dict[str, Any]] = {}
        for line in text.splitlines():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):  # torn, or a blank
                continue
            record = _opened(self._log, content)
            records[record["batch"]] = record
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
        return _opened(path, content)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    write_bytes(path, (json.dumps(_sealed(content), indent=1) + "\n").encode())


_SEAL = "sha256"


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With a fingerprint of all values, so that one that was changed is no other value."""
    plain = json.dumps(content, sort_keys=True)
    return {**content, _SEAL: hashlib.sha256(plain.encode()).hexdigest()}


def _opened(path: Path, content: Any) -> dict[str, Any]:
    """What was sealed.

    :raises FileFormatError: if it is not as it was.
    """
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} is damaged: it holds a {type(content).__name__}")
    inner = {name: value for name, value in content.items() if name != _SEAL}
    if content.get(_SEAL) != _sealed(inner)[_SEAL]:
        raise FileFormatError(f"{path} was altered: its checksum does not match")
    return inner


def _with_tuples(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _with_tuples(value) for name, value in content.items()}
    return tuple(map(_with_tuples, content)) if isinstance(content, list) else content


# ---- plans ----

MOST_CATEGORIES = 100
"""Words of a column; with more it is no column of categories."""


@dataclass(frozen=True)
class Plan:
    """A folder, how it was begun, and a file of rows."""

    folder: Folder
    settings: Settings
    file: TableFile


def fit(options: argparse.Namespace) -> Plan:
    """Settings of the run that goes on, or of a new one.

    :raises InvalidDataError: if options are missing or wrong, or differ from those of the run that
        goes on.
    """
    folder, file = Folder(options.journal), open_table(options.data, options.encoding)
    given = {
        name: value
        for name in Settings.__dataclass_fields__
        if (value := getattr(options, name, None)) is not None
    }
    if folder.has_learned:
        settings = folder.settings()
        for name, value in given.items():
            if getattr(settings, name) != value:
                raise InvalidDataError(
                    f"{folder.path} was begun with {name} {getattr(settings, name)!r}, "
                    f"got {value!r}"
                )
        _require_columns(file, [*settings.columns])
        return Plan(folder, settings, file)
    if "target" not in given:
        raise InvalidDataError(f"--target must name one of the columns {list(file.names)}")
    target, classes = given["target"], given.get("classes")
    features = given.get("features") or [name for name in file.names if name != target]
    _require_columns(file, [target, *features])
    if classes is not None and len(classes) < 2:
        raise InvalidDataError(f"--classes must name at least two labels, got {list(classes)}")
    if not features or target in features:
        raise InvalidDataError("there must be inputs, and the target is none of them")
    found = file.kinds([*features, target])
    kind, why = found.pop(target)
    if classes is None and kind != "number":
        raise InvalidDataError(
            f"the target {target!r} holds no numbers ({why}): if it holds labels, name them by "
            "--classes"
        )
    kinds, categories = _inputs(file, found, given.get("text"))
    return Plan(folder, Settings(kinds=kinds, categories=categories, **given), file)


def _inputs(
    file: TableFile, found: dict[str, tuple[Kind, str]], text: str | None
) -> tuple[dict[str, Kind], dict[str, tuple[str, ...]]]:
    """The inputs that are read, and the words of those that hold categories.

    :param text: What becomes of columns of words; they are refused if None.
    """
    kinds = {name: kind for name, (kind, _) in found.items()}
    no_numbers = [name for name, kind in kinds.items() if kind in ("words", "other")]
    if text == "drop":
        if no_numbers:
            print(f"left out, as they hold words: {', '.join(no_numbers)}", file=sys.stderr)
        kinds = {name: kind for name, kind in kinds.items() if name not in no_numbers}
        if not kinds:
            raise InvalidDataError("there are no inputs beside columns of words")
        return kinds, {}
    others = [name for name in no_numbers if kinds[name] == "other"]
    if others or (no_numbers and text != "encode"):
        which = ", ".join(f"{name} ({found[name][1]})" for name in (others or no_numbers)[:10])
        raise InvalidDataError(
            f"columns hold no numbers: {which}; --text drop leaves them out"
            + ("" if others else ", --text encode takes their words as categories")
        )
    words: dict[str, dict[str, None]] = {name: {} for name in no_numbers}
    for batch in file.batches(1000, dict.fromkeys(no_numbers, "words")) if no_numbers else ():
        for name, column in batch.items():
            words[name] |= dict.fromkeys(word for word in column if word is not None)
            if len(words[name]) > MOST_CATEGORIES:
                raise InvalidDataError(
                    f"column {name!r} holds more than {MOST_CATEGORIES} different words, too many "
                    "for categories: --text drop leaves it out"
                )
    return kinds, {name: tuple(sorted(some)) for name, some in words.items()}


def predict(options: argparse.Namespace) -> Plan:
    """A fit that has learned something, and rows with its inputs."""
    plan = _learned(options, open_table(options.data, options.encoding))
    _require_columns(plan.file, [*plan.settings.kinds])
    if options.out is None:
        if options.json:
            raise InvalidDataError("--json wants --out, as both would go to standard output")
        return plan
    out: Path = options.out
    inside = plan.folder.path.resolve() in out.resolve().parents
    if out.is_dir() or not out.absolute().parent.is_dir() or inside:
        raise InvalidDataError(f"--out must be a file in a folder of yours, got {out}")
    if out.exists() and out.samefile(options.data):
        raise InvalidDataError(f"--out is the file of the rows, {out}: it would be overwritten")
    if out.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise missing_extra("a Parquet file", "pyarrow", "tables")
    return plan


def inspect(options: argparse.Namespace) -> Plan:
    """A fit that has learned something."""
    return _learned(options, None)


def plot(options: argparse.Namespace) -> Plan:
    """A fit that has learned something, and a place for figures."""
    if find_spec("matplotlib") is None:
        raise missing_extra("a figure", "matplotlib", "plot")
    if options.out.exists() and not options.out.is_dir():
        raise InvalidDataError(f"--out must be a folder, got the file {options.out}")
    return _learned(options, None)


def site(options: argparse.Namespace) -> None:
    """Serve by one engine, or check."""
    if not options.program.is_file():
        raise InvalidDataError(f"there is no program {options.program}")
    if not options.check and (options.nvflare is None) == (options.flower is None):
        raise InvalidDataError("wanted one of --nvflare KIT and --flower ADDRESS, or --check")
    if options.flower is not None and options.secret is None:
        raise InvalidDataError("--flower wants --secret, the file that its SuperNode was given")


def demo(options: argparse.Namespace) -> None:
    """Nothing has to be there."""


def _learned(options: argparse.Namespace, file: TableFile | None) -> Plan:
    folder = Folder(options.journal)
    folder.table()
    return Plan(folder, folder.settings(), file)  # type: ignore[arg-type]


def _require_columns(file: TableFile, names: list[str]) -> None:
    missing = [name for name in names if name not in file.names]
    if missing:
        raise InvalidDataError(f"there are no columns {missing}; there are {list(file.names)}")
