"""The folder of a fit: how it was begun, its journal, and what its columns are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gpflow

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.estimators.base import (
    default_kernel,
    default_likelihood,
    logarithmic_parameters,
)
from streaming_gp.gp import PrivatePseudoPoints, StreamingGP, UntilSettled
from streaming_gp.gp.journal import last_state
from streaming_gp.serialization import write_bytes
from streaming_gp.tables import TableGP

_KERNELS = {
    "squared-exponential": gpflow.kernels.SquaredExponential,
    "matern32": gpflow.kernels.Matern32,
    "matern52": gpflow.kernels.Matern52,
}


@dataclass(frozen=True)
class Settings:
    """How a fit was begun, which does not change.

    :param target: The column to predict.
    :param features: The input columns.
    :param classes: The labels, if the target holds labels.
    :param kernel: The name of the kernel.
    :param batch_size: The number of rows that are learned together.
    :param budget: The largest number of pseudo-points.
    :param seed: The seed of all random numbers.
    """

    target: str
    features: list[str]
    classes: list[str] | None = None
    kernel: str = "squared-exponential"
    batch_size: int = 200
    budget: int = 300
    seed: int = 0

    @property
    def text(self) -> list[str]:
        """Columns of words."""
        return [] if self.classes is None else [self.target]

    def modules(self) -> tuple[Any, Any]:
        """A new kernel and likelihood."""
        start = default_kernel(len(self.features)).lengthscales.numpy()
        with logarithmic_parameters():
            kernel = _KERNELS[self.kernel](lengthscales=start)
        return kernel, default_likelihood(None if self.classes is None else len(self.classes))


class Folder:
    """Reads and writes a fit.

    :param path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settings, self._table = path / "settings.json", path / "table.json"
        self._log, self._journal = path / "batches.jsonl", path / "journal"

    @property
    def exists(self) -> bool:
        """Whether a fit was begun here."""
        return self._settings.exists()

    def begin(self, settings: Settings) -> None:
        """Note how the fit begins.

        :raises InvalidDataError: if the folder holds other things.
        """
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InvalidDataError(f"{self.path} is neither empty nor the folder of a fit")
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self._settings, asdict(settings))

    def settings(self) -> Settings:
        """How the fit was begun.

        :raises FileFormatError: if none was, or the file is damaged.
        """
        return Settings(**self._read(self._settings))

    def model(self, settings: Settings) -> StreamingGP:
        """The model after all batches that were completed."""
        kernel, likelihood = settings.modules()
        if any(self._journal.glob("*.npz")):
            return StreamingGP.resume(self._journal, kernel, likelihood)
        return StreamingGP(
            kernel,
            likelihood,
            pseudo_points=PrivatePseudoPoints(
                "all" if settings.classes is None else 10, budget=settings.budget
            ),
            learning=UntilSettled(),
            seed=settings.seed,
            journal=self._journal,
        )

    def table(self) -> TableGP:
        """The model with its columns, to predict with, while a fit may be going on.

        :raises FileFormatError: if there is none yet, or a file is damaged.
        """
        settings, record = self.settings(), self._read(self._table)
        model = StreamingGP.from_state(last_state(self._journal), *settings.modules())
        return TableGP.from_record(model, record)

    def write_table(self, table: TableGP) -> None:
        """Keep what the columns are, and in what units."""
        _write(self._table, table.to_record())

    # ---- a record for each batch ----

    def append_record(self, record: dict[str, Any]) -> None:
        """Keep the record of a batch."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write("\n" + json.dumps(record))  # a torn line before it stays alone

    def records(self) -> list[dict[str, Any]]:
        """The record of each batch; that of the last before a process was killed may be missing."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        records: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            records[record["batch"]] = record
        return [*records.values()]

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileFormatError(
                f"{self.path} holds no fit that has learned a batch: streaming-gp fit makes one"
            ) from None
        except ValueError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        return content


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
