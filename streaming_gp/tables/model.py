"""A streaming Gaussian process over named columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpflow.likelihoods import Gaussian

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP, UpdateInfo
from streaming_gp.gp.fitting.optimiser import Callback
from streaming_gp.scaling import Scaling
from streaming_gp.tables.missing import refuse_missing, with_targets
from streaming_gp.tables.normalisation import Normalisation
from streaming_gp.tables.schema import Schema


@dataclass(frozen=True, eq=False)
class _Read:
    """The rows of a batch that can be learned, in their own units."""

    schema: Schema
    X: np.ndarray
    Y: np.ndarray
    skipped: int
    inputs: Normalisation
    outputs: Normalisation


class TableGP:
    """A :class:`~streaming_gp.StreamingGP` that learns from tables with named columns.

    Tables are those of pandas, polars and Arrow, and mappings of arrays. The first batch says which
    columns there are and in what units the model works; later tables must have the same columns,
    in any order. A row whose target is missing is skipped and counted, and one whose input is
    missing is refused.

    **Scaling.** Inputs, and targets with Gaussian noise, are standardised by the first batch, and
    stay so, as pseudo-points that are placed already cannot be rescaled. :meth:`remove` therefore
    leaves nothing of a batch behind at fixed hyperparameters, except of the first, whose means and
    deviations stay in use. ``normalisation`` keeps the sums of each batch, from which ``running``
    gives the scale of those that are there.

    :param model: The model, over scaled inputs. One that has learned something needs to
        :meth:`recall` it.
    :param target: The name of the target, or several names.
    :param features: The names of the inputs; by default all other columns of the first batch. Where
        they are named, further columns are left out; else they are refused.
    :param classes: The labels, where the target holds labels; the model sees their numbers.
    :param scale: Whether to scale.
    :raises InvalidDataError: if there are classes and several targets.
    """

    def __init__(
        self,
        model: StreamingGP,
        target: str | Sequence[str],
        features: Sequence[str] | None = None,
        classes: Sequence[Hashable] | None = None,
        scale: bool = True,
    ) -> None:
        self.model = model
        self._targets = (target,) if isinstance(target, str) else tuple(target)
        self._features = None if features is None else tuple(features)
        self._classes = None if classes is None else tuple(classes)
        self._scale = scale
        self._schema: Schema | None = None
        self._inputs: Normalisation | None = None
        self._outputs: Normalisation | None = None
        self._num_rows = self._num_skipped = 0
        if self._classes is not None and len(self._targets) != 1:
            raise InvalidDataError(f"classes are those of one target, got {list(self._targets)}")

    # ---- what it knows ----

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the inputs [D], in the model's order.

        :raises InvalidDataError: before the first batch.
        """
        return np.array(self._known()[0].features, dtype=object)

    @property
    def classes(self) -> tuple[Hashable, ...] | None:
        """The labels, if the target holds labels."""
        return self._classes

    @property
    def num_rows(self) -> int:
        """The number of rows that were learned from."""
        return self._num_rows

    @property
    def num_skipped(self) -> int:
        """The number of rows that were skipped, as a target was missing."""
        return self._num_skipped

    @property
    def normalisation(self) -> tuple[Normalisation, Normalisation]:
        """Of the inputs, and of the targets.

        :raises InvalidDataError: before the first batch.
        """
        return self._known()[1:]

    def _known(self) -> tuple[Schema, Normalisation, Normalisation]:
        if self._schema is None or self._inputs is None or self._outputs is None:
            raise InvalidDataError("nothing has been learned yet")
        return self._schema, self._inputs, self._outputs

    # ---- learning ----

    def update(
        self,
        batch: Any,
        callback: Callback | None = None,
        batch_id: str | None = None,
        learn: bool | None = None,
    ) -> UpdateInfo | None:
        """Learn from one table. If anything raises, the model is exactly as it was.

        :param batch: The table.
        :param callback: As in :meth:`StreamingGP.update`; so are the others.
        :returns: what was done, or None if no row has a target.
        :raises InvalidDataError: if columns differ from those of the first batch, an input is
            missing, or a value is no number; and as :meth:`StreamingGP.update`.
        """
        read = self._read(batch)
        if read is None:
            return None
        inputs, outputs = read.inputs.applied, read.outputs.applied
        data = inputs.scaled(read.X), outputs.scaled(read.Y)
        info = self.model.update(data, callback, batch_id, learn)
        self._hold(read, info.batch_id)
        return info

    def recall(self, batch: Any, batch_id: str) -> bool:
        """Take note of a batch that the model itself has learned already, in another process.

        That is how a model that was resumed from its journal gets its names and scale again.

        :param batch: The table, as it was.
        :param batch_id: The name of its factor.
        :returns: whether it has a row with a target, and so was learned.
        :raises InvalidDataError: as :meth:`update`.
        """
        read = self._read(batch)
        if read is not None:
            self._hold(read, batch_id)
        return read is not None

    def _read(self, batch: Any) -> _Read | None:
        """The rows with targets, which are checked; None, and noted, if there are none."""
        schema = self._schema or Schema.of(batch, self._targets, self._features, self._classes)
        X, Y = schema.inputs(batch), schema.observed(batch)
        if len(X) != len(Y):
            raise InvalidDataError(f"inputs have {len(X)} rows, and targets {len(Y)}")
        refuse_missing(X, schema.features)
        X, Y, skipped = with_targets(X, Y)
        if not len(X):
            self._num_skipped += skipped
            return None
        inputs = self._inputs or Normalisation(Scaling.of(X, self._scale))
        outputs = self._outputs or Normalisation(Scaling.of(Y, self._scale and self._is_scaled()))
        return _Read(schema, X, Y, skipped, inputs, outputs)

    def _hold(self, read: _Read, name: str) -> None:
        """Know what a batch says that is learned."""
        kept = {*self.model.factors}
        self._schema = read.schema
        self._inputs = read.inputs.with_batch(name, read.X).merged(kept)
        self._outputs = read.outputs.with_batch(name, read.Y).merged(kept)
        self._num_rows += len(read.X)
        self._num_skipped += read.skipped

    def _is_scaled(self) -> bool:
        return isinstance(self.model.likelihood, Gaussian) and self._classes is None

    def remove(self, batch_id: str) -> None:
        """Forget a batch, and what it said of the scale of all.

        :param batch_id: The name of its factor.
        :raises InvalidDataError: as :meth:`StreamingGP.remove`.
        """
        self.model.remove(batch_id)
        _, inputs, outputs = self._known()
        self._inputs, self._outputs = inputs.without(batch_id), outputs.without(batch_id)

    # ---- prediction ----

    def predict(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [N, P] of new observations, in units of the targets.

        :param batch: A table with the inputs; targets may be there too.
        :raises InvalidDataError: as :meth:`update`, or before the first batch.
        """
        schema, inputs, outputs = self._known()
        X = schema.inputs(batch)
        refuse_missing(X, schema.features)
        mean, variance = map(np.asarray, self.model.predict_y(inputs.applied.scaled(X)))
        if len(outputs.applied.unit) != mean.shape[1]:  # one column of labels, several functions
            return mean, np.sqrt(variance)
        return outputs.applied.original(mean), outputs.applied.unit * np.sqrt(variance)

    def predict_proba(self, batch: Any) -> np.ndarray:
        """The probability [N, C] of each class, in their order.

        :param batch: As in :meth:`predict`.
        :raises InvalidDataError: as :meth:`predict`, or if there are no classes.
        """
        if self._classes is None:
            raise InvalidDataError("there are no classes; predict gives mean and deviation")
        mean, _ = self.predict(batch)
        both = np.hstack([1.0 - mean, mean]) if len(self._classes) == 2 else mean
        return both / both.sum(axis=1, keepdims=True)

    # ---- plain values, for those who keep the model itself in a file or journal ----

    def to_record(self) -> dict[str, Any]:
        """All but the model, as JSON takes it, without loss.

        :raises InvalidDataError: before the first batch.
        """
        schema, inputs, outputs = self._known()
        return {
            "features": list(schema.features),
            "targets": list(schema.targets),
            "classes": None if schema.classes is None else list(schema.classes),
            "is_strict": schema.is_strict,
            "num_rows": self._num_rows,
            "num_skipped": self._num_skipped,
            "inputs": inputs.to_record(),
            "outputs": outputs.to_record(),
        }

    @classmethod
    def from_record(cls, model: StreamingGP, record: Mapping[str, Any]) -> TableGP:
        """What :meth:`to_record` described, around a model that was loaded or resumed."""
        classes = None if record["classes"] is None else tuple(record["classes"])
        found = cls.__new__(cls)
        found.model, found._scale = model, True
        found._targets, found._features = tuple(record["targets"]), tuple(record["features"])
        found._classes = classes
        found._schema = Schema(found._features, found._targets, classes, record["is_strict"])
        found._inputs = Normalisation.from_record(record["inputs"])
        found._outputs = Normalisation.from_record(record["outputs"])
        found._num_rows, found._num_skipped = record["num_rows"], record["num_skipped"]
        return found
