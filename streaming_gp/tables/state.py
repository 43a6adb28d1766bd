"""What a model of tables knows beside its ledger: columns, scales and counts, as one value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streaming_gp.errors import FileFormatError
from streaming_gp.estimators.scaling import Scaling
from streaming_gp.tables.normalisation import Normalisation
from streaming_gp.tables.schema import Schema


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a batch that can be learned, in their own units.

    :param X: Inputs [N, D].
    :param Y: Targets [N, P].
    :param skipped: The number of rows without a target.
    """

    X: np.ndarray
    Y: np.ndarray
    skipped: int


@dataclass(frozen=True, eq=False)
class TableState:
    """Columns, scales and counts.

    :param schema: Which columns are inputs and targets.
    :param inputs: The scale of the inputs.
    :param outputs: The scale of the targets.
    :param num_rows: The number of rows that were learned from.
    :param num_skipped: The number of rows that were skipped.
    """

    schema: Schema
    inputs: Normalisation
    outputs: Normalisation
    num_rows: int = 0
    num_skipped: int = 0

    @classmethod
    def of(
        cls, schema: Schema, rows: Rows, scales: tuple[bool, bool], num_skipped: int
    ) -> TableState:
        """What is known when the first batch comes, which is not counted yet.

        :param scales: Whether inputs and targets are scaled.
        :param num_skipped: The number of rows that were skipped before it.
        """
        inputs, outputs = Scaling.of(rows.X, scales[0]), Scaling.of(rows.Y, scales[1])
        return cls(schema, Normalisation(inputs), Normalisation(outputs), 0, num_skipped)

    def scaled(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the units of the model."""
        return self.inputs.applied.scaled(rows.X), self.outputs.applied.scaled(rows.Y)

    def with_batch(self, name: str, rows: Rows, kept: Collection[str]) -> TableState:
        """The same after one more batch.

        :param name: Its name.
        :param rows: Its rows.
        :param kept: The names of the batches that can still be removed.
        """
        return replace(
            self,
            inputs=self.inputs.with_batch(name, rows.X).merged(kept),
            outputs=self.outputs.with_batch(name, rows.Y).merged(kept),
            num_rows=self.num_rows + len(rows.X),
            num_skipped=self.num_skipped + rows.skipped,
        )

    def without(self, name: str) -> TableState:
        """The same without a batch; counts are of all that came."""
        return replace(self, inputs=self.inputs.without(name), outputs=self.outputs.without(name))

    def to_record(self) -> dict[str, Any]:
        """As JSON takes it, without loss."""
        schema = self.schema
        return {
            "features": list(schema.features),
            "targets": list(schema.targets),
            "classes": None if schema.classes is None else list(schema.classes),
            "is_strict": schema.is_strict,
            "num_rows": self.num_rows,
            "num_skipped": self.num_skipped,
            "inputs": self.inputs.to_record(),
            "outputs": self.outputs.to_record(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TableState:
        """What :meth:`to_record` gave.

        :raises FileFormatError: if it is no such record.
        """
        try:
            return cls._of_record(record)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"this is no record of a model of tables: {error!r}") from error

    @classmethod
    def _of_record(cls, record: Mapping[str, Any]) -> TableState:
        classes = None if record["classes"] is None else tuple(record["classes"])
        features, targets = tuple(record["features"]), tuple(record["targets"])
        return cls(
            Schema(features, targets, classes, record["is_strict"]),
            Normalisation.from_record(record["inputs"]),
            Normalisation.from_record(record["outputs"]),
            record["num_rows"],
            record["num_skipped"],
        )
