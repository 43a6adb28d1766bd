"""A streaming Gaussian process over named columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gpflow.likelihoods import Gaussian

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP, UpdateInfo
from streaming_gp.gp.fitting.optimiser import Callback
from streaming_gp.gp.turns import Turns, one_at_a_time
from streaming_gp.inputs import require_flag
from streaming_gp.tables.asked import as_classes, as_names
from streaming_gp.tables.missing import refuse_missing, with_targets
from streaming_gp.tables.normalisation import Normalisation
from streaming_gp.tables.schema import Schema
from streaming_gp.tables.state import Rows, TableState


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
    :raises InvalidDataError: if names are no strings or come twice, and for classes of several
        targets, or of a likelihood that is not one of so many classes.

    :ivar model: The model.
    :ivar classes: The labels, if the target holds labels.
    """

    def __init__(
        self,
        model: StreamingGP,
        target: str | Sequence[str],
        features: Sequence[str] | None = None,
        classes: Sequence[Hashable] | None = None,
        scale: bool = True,
    ) -> None:
        require_flag("scale", scale)
        if not isinstance(model, StreamingGP):
            raise InvalidDataError(f"model must be a StreamingGP, got a {type(model).__name__}")
        self.model = model
        self._targets = as_names("target", target)
        self._features = None if features is None else as_names("features", features)
        if classes is not None and len(self._targets) != 1:
            raise InvalidDataError(f"classes are those of one target, got {list(self._targets)}")
        self.classes = None if classes is None else as_classes(classes, model.likelihood)
        self._scale = scale
        self._turns = Turns()
        self._state: TableState | None = None
        self._skipped_first = 0  # before the first batch
        if both := {*self._targets} & {*(self._features or ())}:
            raise InvalidDataError(f"a column is an input or a target, and {min(both)!r} is both")

    # ---- what it knows ----

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the inputs [D], in the model's order.

        :raises InvalidDataError: before the first batch.
        """
        return np.array(self._known().schema.features, dtype=object)

    @property
    def num_rows(self) -> int:
        """The number of rows that were learned from."""
        return 0 if self._state is None else self._state.num_rows

    @property
    def num_skipped(self) -> int:
        """The number of rows that were skipped, as a target was missing."""
        return self._skipped_first if self._state is None else self._state.num_skipped

    @property
    def normalisation(self) -> tuple[Normalisation, Normalisation]:
        """Of the inputs, and of the targets.

        :raises InvalidDataError: before the first batch.
        """
        return self._known().inputs, self._known().outputs

    def _known(self) -> TableState:
        if self._state is None:
            raise InvalidDataError("nothing has been learned yet")
        return self._state

    # ---- learning ----

    @one_at_a_time
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
        rows, state = read
        info = self.model.update(state.scaled(rows), callback, batch_id, learn)
        self._state = state.with_batch(info.batch_id, rows, {*self.model.factors})
        return info

    @one_at_a_time
    def recall(self, batch: Any, batch_id: str) -> bool:
        """Take note of a batch that the model itself has learned already, in another process.

        That is how a model that was resumed from its journal gets its names and scale again.

        :param batch: The table, as it was.
        :param batch_id: The name of its factor.
        :returns: whether it has a row with a target, and so was learned.
        :raises InvalidDataError: as :meth:`update`.
        """
        read = self._read(batch)
        if read is None:
            return False
        rows, state = read
        self._state = state.with_batch(batch_id, rows, {*self.model.factors})
        return True

    def _read(self, batch: Any) -> tuple[Rows, TableState] | None:
        """The rows with targets, which are checked, and what is known of all before them.

        None, and noted, if there are none.
        """
        if self._state is None:
            schema = Schema.of(batch, self._targets, self._features, self.classes)
        else:
            schema = self._state.schema
        X, Y = schema.inputs(batch), schema.observed(batch)
        if len(X) != len(Y):
            raise InvalidDataError(f"inputs have {len(X)} rows, and targets {len(Y)}")
        refuse_missing(X, schema.features)
        rows = Rows(*with_targets(X, Y))
        if len(rows.X):
            is_regression = isinstance(self.model.likelihood, Gaussian) and self.classes is None
            scales = self._scale, self._scale and is_regression
            return rows, self._state or TableState.of(schema, rows, scales, self._skipped_first)
        if self._state is None:
            self._skipped_first += rows.skipped
        else:
            self._state = replace(self._state, num_skipped=self.num_skipped + rows.skipped)
        return None

    @one_at_a_time
    def remove(self, batch_id: str) -> None:
        """Forget a batch, and what it said of the scale of all.

        :param batch_id: The name of its factor.
        :raises InvalidDataError: as :meth:`StreamingGP.remove`.
        """
        self.model.remove(batch_id)
        self._state = self._known().without(batch_id)

    # ---- prediction ----

    def predict(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [N, P] of new observations, in units of the targets.

        :param batch: A table with the inputs; targets may be there too.
        :raises InvalidDataError: as :meth:`update`, or before the first batch.
        """
        state = self._known()
        X = state.schema.inputs(batch)
        refuse_missing(X, state.schema.features)
        scaled = state.inputs.applied.scaled(X)
        mean, variance = map(np.asarray, self.model.predict_y(scaled))
        units = state.outputs.applied
        if len(units.unit) != mean.shape[1]:  # one column of labels, several functions
            return mean, np.sqrt(variance)
        return units.original(mean), units.unit * np.sqrt(variance)

    def predict_proba(self, batch: Any) -> np.ndarray:
        """The probability [N, C] of each class, in their order.

        :param batch: As in :meth:`predict`.
        :raises InvalidDataError: as :meth:`predict`, or if there are no classes.
        """
        if self.classes is None:
            raise InvalidDataError("there are no classes; predict gives mean and deviation")
        mean, _ = self.predict(batch)
        both = np.hstack([1.0 - mean, mean]) if len(self.classes) == 2 else mean
        return both / both.sum(axis=1, keepdims=True)

    # ---- plain values, for those who keep the model itself in a file or journal ----

    def to_record(self) -> dict[str, Any]:
        """All but the model, as JSON takes it, without loss.

        :raises InvalidDataError: before the first batch.
        """
        return self._known().to_record()

    @classmethod
    def from_record(cls, model: StreamingGP, record: Mapping[str, Any]) -> TableGP:
        """What :meth:`to_record` described, around a model that was loaded or resumed.

        :raises FileFormatError: if it is no such record.
        """
        state = TableState.from_record(record)
        schema = state.schema
        found = cls(model, schema.targets, schema.features, schema.classes)
        found._state = state
        return found
