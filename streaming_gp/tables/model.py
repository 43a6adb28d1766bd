"""A streaming Gaussian process over named columns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gpflow.likelihoods import Gaussian

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.estimators.base import Scaling, class_probabilities
from streaming_gp.frames.columns import as_names, as_table
from streaming_gp.gp import Progress, StreamingGP, UpdateInfo
from streaming_gp.inputs import require_flag
from streaming_gp.tables.columns import Schema, as_categories, as_classes, complete_rows

MISSING_INPUTS = ("refuse", "drop", "mean")


@dataclass(frozen=True, eq=False)
class TableState:
    """Columns, scales and counts: all that a model of tables holds beside its ledger.

    :param schema: Which columns are inputs and targets.
    :param inputs: The scale of the inputs.
    :param outputs: The scale of the targets.
    :param num_rows: The number of rows that were learned from.
    :param num_skipped: The number of rows that were skipped.
    """

    schema: Schema
    inputs: Scaling
    outputs: Scaling
    num_rows: int = 0
    num_skipped: int = 0


class TableGP:
    """A :class:`~streaming_gp.StreamingGP` that learns from tables with named columns.

    Tables are those of pandas, polars and Arrow, and mappings of arrays. The first batch says which
    columns there are and in what units the model works; later tables must have the same columns,
    in any order. A row whose target is missing is skipped and counted; ``missing`` says what
    becomes of one whose input is missing.

    **Inputs.** Booleans are 0 and 1; dates and times are days since 1970-01-01 00:00 UTC, where
    those without a zone are taken as they stand; each word of a column of ``categories`` is an
    input of its own, 1 in the rows that have it and 0 in others. Durations, lists and words in
    other columns are refused.

    **Scaling.** Inputs, and targets with Gaussian noise, are standardised by the first batch, and
    stay so, as pseudo-points that are placed already cannot be rescaled. :meth:`remove` therefore
    leaves nothing of a batch behind at fixed hyperparameters, except of the first, whose means and
    deviations stay in use.

    :param model: The model, over scaled inputs. One that has learned something needs to
        :meth:`recall` it.
    :param target: The name of the target, or several names.
    :param features: The names of the inputs; by default all other columns of the first batch. Where
        they are named, further columns are left out; else they are refused.
    :param classes: The labels, where the target holds labels; the model sees their numbers.
    :param scale: Whether to scale.
    :param categories: The names of the inputs that hold words, which are then those of the first
        batch; or a mapping from such names to all words. Another word is refused.
    :param missing: What becomes of a row whose input is missing: ``"refuse"``; ``"drop"`` skips
        the row, whose prediction is NaN; ``"mean"`` puts the mean of the first batch in its place.
    :raises InvalidDataError: if names are no strings or come twice, and for classes of several
        targets, or of a likelihood that is not one of so many classes.

    >>> new = sgp.StreamingGP(
    ...     gpflow.kernels.SquaredExponential(),
    ...     gpflow.likelihoods.Gaussian(0.1),
    ...     hyperparameters=sgp.FixedHyperparameters(),
    ... )
    >>> table = sgp.TableGP(new, "power", categories=["site"], missing="drop")
    >>> _ = table.update({"wind": [3, 5, None], "site": ["a", "b", "b"], "power": [1.0, 2.5, 3.0]})
    >>> table.num_rows, table.input_names
    (2, ('wind', 'site=a', 'site=b'))
    >>> mean, deviation = table.predict({"wind": [4.0], "site": ["b"]})  # [1, 1] each
    """

    def __init__(
        self,
        model: StreamingGP,
        target: str | Sequence[str],
        features: Sequence[str] | None = None,
        classes: Sequence[Hashable] | None = None,
        scale: bool = True,
        categories: Sequence[str] | Mapping[str, Sequence[Hashable]] = (),
        missing: str = "refuse",
    ) -> None:
        require_flag("scale", scale)
        if missing not in MISSING_INPUTS:
            raise InvalidDataError(f"missing must be one of {MISSING_INPUTS}, got {missing!r:.100}")
        if not isinstance(model, StreamingGP):
            raise InvalidDataError(f"model must be a StreamingGP, got a {type(model).__name__}")
        self.model = model
        self._targets = as_names("target", target)
        self._features = None if features is None else as_names("features", features)
        if classes is not None and len(self._targets) != 1:
            raise InvalidDataError(f"classes are those of one target, got {list(self._targets)}")
        self.classes = None if classes is None else as_classes(classes, model.likelihood)
        self._categories = as_categories(categories)
        self._scale, self._missing = scale, missing
        self._state: TableState | None = None
        self._skipped_first = 0  # before the first batch
        self._lock = threading.RLock()
        if both := {*self._targets} & {*(self._features or ())}:
            raise InvalidDataError(f"a column is an input or a target, and {min(both)!r} is both")

    # ---- columns and counts ----

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the inputs [D], in the model's order.

        :raises InvalidDataError: before the first batch.
        """
        return np.array(self._present().schema.features, dtype=object)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the model's inputs, of which each word of a category is one, ``a=word``.

        :raises InvalidDataError: before the first batch.
        """
        schema = self._present().schema
        return tuple(
            name if word is None else f"{name}={word}"
            for name in schema.features
            for word in schema.categories.get(name, (None,))
        )

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the targets."""
        return self._targets

    @property
    def num_rows(self) -> int:
        """The number of rows that were learned from."""
        return 0 if self._state is None else self._state.num_rows

    @property
    def num_skipped(self) -> int:
        """The number of rows that were skipped, as a target was missing."""
        return self._skipped_first if self._state is None else self._state.num_skipped

    @property
    def normalisation(self) -> tuple[Scaling, Scaling]:
        """The scale of the inputs, and of the targets: ``mean`` becomes 0, and ``unit`` from it 1.

        :raises InvalidDataError: before the first batch.
        """
        return self._present().inputs, self._present().outputs

    def _present(self) -> TableState:
        if self._state is None:
            raise InvalidDataError("nothing has been learned yet")
        return self._state

    # ---- learning ----

    def update(
        self,
        batch: Any,
        callback: Callable[[Progress], None] | None = None,
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
        with self._lock:
            X, Y, skipped, state = self._read(batch)
            if len(X) == 0:
                self._skip(skipped)
                return None
            scaled = state.inputs.scaled(X), state.outputs.scaled(Y)
            info = self.model.update(scaled, callback, batch_id, learn)
            self._count(state, len(X), skipped)
        return info

    def recall(self, batch: Any) -> bool:
        """Take note of a batch that the model itself has learned already, in another process.

        That is how a model that was resumed from its journal gets its names and scale again.

        :param batch: The table, as it was.
        :returns: whether it has a row with a target, and so was learned.
        :raises InvalidDataError: as :meth:`update`.
        """
        with self._lock:
            X, _, skipped, state = self._read(batch)
            if len(X) == 0:
                self._skip(skipped)
                return False
            self._count(state, len(X), skipped)
        return True

    def _read(self, batch: Any) -> tuple[np.ndarray, np.ndarray, int, TableState]:
        """X and Y of the rows with targets, the number of the others, and the state before them."""
        state, batch = self._state, as_table(batch)
        if state is None:
            schema = Schema.of(batch, self._targets, self._features, self.classes, self._categories)
        else:
            schema = state.schema
        X, Y = schema.inputs(batch, self._missing), schema.observations(batch)
        if len(X) != len(Y):
            raise InvalidDataError(f"inputs have {len(X)} rows, and targets {len(Y)}")
        inputs = state.inputs if state else Scaling.of(X[~np.isnan(Y).any(axis=1)], self._scale)
        X, Y, skipped = complete_rows(inputs.filled(X) if self._missing == "mean" else X, Y)
        if state is None:
            is_regression = isinstance(self.model.likelihood, Gaussian) and self.classes is None
            outputs = Scaling.of(Y, self._scale and is_regression)
            state = TableState(schema, inputs, outputs, 0, self._skipped_first)
        return X, Y, skipped, state

    def _count(self, state: TableState, rows: int, skipped: int) -> None:
        """Note the rows of a batch that is in the ledger now."""
        self._state = replace(
            state, num_rows=state.num_rows + rows, num_skipped=state.num_skipped + skipped
        )

    def _skip(self, rows: int) -> None:
        """Note rows of a table that has no target."""
        if self._state is None:
            self._skipped_first += rows
        else:
            self._state = replace(self._state, num_skipped=self.num_skipped + rows)

    def remove(self, batch_id: str) -> None:
        """Forget a batch; the scale stays.

        :param batch_id: The name of its factor.
        :raises InvalidDataError: as :meth:`StreamingGP.remove`.
        """
        self.model.remove(batch_id)

    # ---- prediction ----

    def predict(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [N, P] of new observations, in units of the targets.

        Where ``missing="drop"``, rows that miss an input have NaN.

        :param batch: A table with the inputs; targets may be there too.
        :raises InvalidDataError: as :meth:`update`, or before the first batch.
        """
        state = self._present()
        X = state.schema.inputs(as_table(batch), self._missing)
        mean, deviation = self.predict_at(state.inputs.scaled(state.inputs.filled(X)))
        if self._missing == "drop":
            is_missing = np.isnan(X).any(axis=1)
            mean[is_missing], deviation[is_missing] = np.nan, np.nan
        return mean, deviation

    def predict_at(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`predict`, of inputs [N, D] in the model's units."""
        mean, variance = map(np.array, self.model.predict_y(X))
        units = self._present().outputs
        if len(units.unit) != mean.shape[1]:  # one column of labels, several functions
            return mean, np.sqrt(variance)
        return units.original(mean), units.unit * np.sqrt(variance)

    def observations(self, batch: Any) -> np.ndarray:
        """The targets [N, P] of a table, NaN where one is missing; labels by their number.

        :raises InvalidDataError: as :meth:`update`, or before the first batch.
        """
        return self._present().schema.observations(as_table(batch))

    def predict_proba(self, batch: Any) -> np.ndarray:
        """The probability [N, C] of each class, in their order.

        :param batch: As in :meth:`predict`.
        :raises InvalidDataError: as :meth:`predict`, or if there are no classes.
        """
        if self.classes is None:
            raise InvalidDataError("there are no classes; predict gives mean and deviation")
        return class_probabilities(self.predict(batch)[0])

    # ---- plain values, for those who keep the model itself in a file or journal ----

    def to_record(self) -> dict[str, Any]:
        """All but the model, as JSON takes it, without loss.

        :raises InvalidDataError: before the first batch.
        """
        state = self._present()
        schema = state.schema
        return {
            "features": list(schema.features),
            "targets": list(schema.targets),
            "classes": None if schema.classes is None else list(schema.classes),
            "is_strict": schema.is_strict,
            "categories": {name: list(some) for name, some in schema.categories.items()},
            "missing": self._missing,
            "num_rows": state.num_rows,
            "num_skipped": state.num_skipped,
            "inputs": state.inputs.to_record(),
            "outputs": state.outputs.to_record(),
        }

    @classmethod
    def from_record(cls, model: StreamingGP, record: Mapping[str, Any]) -> TableGP:
        """The same around a model that was loaded or resumed.

        :param record: A record that :meth:`to_record` gave.
        :raises FileFormatError: if it is none.
        """
        try:
            classes = None if record["classes"] is None else tuple(record["classes"])
            features, targets = tuple(record["features"]), tuple(record["targets"])
            categories = {name: tuple(some) for name, some in record["categories"].items()}
            state = TableState(
                Schema(features, targets, classes, record["is_strict"], categories),
                Scaling.from_record(record["inputs"]),
                Scaling.from_record(record["outputs"]),
                record["num_rows"],
                record["num_skipped"],
            )
            missing = record["missing"]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"this is no record of a model of tables: {error!r}") from error
        table = cls(model, targets, features, classes, categories=categories, missing=missing)
        table._state = state
        return table

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())
