"""Data with named columns: frames, files in chunks, and a model that knows the names."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gpflow.likelihoods as gl
import numpy as np
from gpflow.likelihoods import Gaussian
from tqdm import tqdm

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.estimators import Scaling, class_probabilities, warn_if_alike
from streaming_gp.frames.columns import (
    MISSING,
    as_names,
    as_table,
    holds_times,
    is_table,
    names_of,
    numbers,
    words,
)
from streaming_gp.frames.files import read_arrow, read_csv
from streaming_gp.gp import Progress, StreamingGP, UpdateInfo
from streaming_gp.inputs import as_pair, as_real_array, require_flag
from streaming_gp.validation import as_matrix, number_of_classes

__all__ = [
    "StreamReport",
    "TableGP",
    "read_arrow",
    "read_csv",
    "stream",
]

Categories = Mapping[str, tuple[Hashable, ...]]
"""The words of each column of categories."""


# ---- columns ----


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model looks at.

    :param features: The names of the inputs.
    :param targets: The names of the targets.
    :param classes: The labels of the one target, if it holds labels.
    :param is_strict: Whether other columns are refused; else they are left out.
    :param categories: The words of the inputs that hold words; each word is one input of the model.
    :param times: The inputs that hold dates or times; None if a file does not say.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[Hashable, ...] | None = None
    is_strict: bool = False
    categories: Categories = field(default_factory=dict)
    times: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        batch: Any,
        targets: tuple[str, ...],
        features: tuple[str, ...] | None,
        classes: tuple[Hashable, ...] | None,
        categories: Mapping[str, tuple[Hashable, ...] | None],
    ) -> Schema:
        """The named columns; without names for the inputs, all that are no targets.

        :param categories: The words of columns of categories; those of the batch where None.
        """
        inputs = features or tuple(name for name in names_of(batch) if name not in targets)
        if not inputs:
            raise InvalidDataError(f"there are no inputs beside the targets {list(targets)}")
        if unknown := [name for name in categories if name not in inputs]:
            raise InvalidDataError(f"categories {unknown} are none of the inputs {list(inputs)}")
        all_words = {
            name: tuple(dict.fromkeys(one for one in words(name, batch[name]) if one is not None))
            if some is None
            else some
            for name, some in categories.items()
        }
        names = set(inputs) & set(names_of(batch)) - set(all_words)
        times = tuple(name for name in inputs if name in names and holds_times(name, batch[name]))
        return cls(inputs, targets, classes, features is None, all_words, times)

    def inputs(self, batch: Any, missing: str = "refuse") -> np.ndarray:
        """The inputs [N, D] of a table, which may have targets.

        :param missing: Whether missing inputs are refused; otherwise they are NaN.
        """
        self._check(batch, ())
        columns = {name: self._column(name, batch[name]) for name in self.features}
        X = _stack(columns)
        _refuse_infinite("input", columns)
        is_missing = np.isnan(X)
        if missing == "refuse" and is_missing.any():
            row = int(np.argmax(is_missing.any(axis=1)))
            name = next(name for name, values in columns.items() if np.isnan(values[row]).any())
            raise InvalidDataError(
                f"input {name!r} is missing at row {row} ({int(is_missing.any(axis=1).sum())} of "
                f"{len(X)} rows miss one): leave such rows out, or fill them in"
            )
        return X

    def _column(self, name: str, column: Any) -> np.ndarray:
        """The inputs [N, K] of a column: one, or one for each category."""
        known = self.categories.get(name)
        if known is None:
            are_times = holds_times(name, column)
            if not (are_times is None or self.times is None or are_times == (name in self.times)):
                kinds = "numbers", "dates or times"
                raise InvalidDataError(
                    f"column {name!r} must hold {kinds[not are_times]}, as in the first batch, got "
                    f"{kinds[are_times]}"
                )
            return numbers(name, column, times=True)[:, None]
        places, rows = {word: place for place, word in enumerate(known)}, words(name, column)
        block = np.zeros((len(rows), len(known)))
        for row, word in enumerate(rows):
            if word is None:
                block[row] = np.nan
            elif word in places:
                block[row, places[word]] = 1.0
            else:
                raise InvalidDataError(
                    f"{name!r} is {word!r} at row {row}, a category that the first batch did not "
                    f"have: it had {list(known)}"
                )
        return block

    def observations(self, batch: Any) -> np.ndarray:
        """The targets [N, P] of a table, NaN where one is missing; labels by their number."""
        self._check(batch, self.targets)
        if self.classes is None:
            columns = {name: numbers(name, batch[name])[:, None] for name in self.targets}
            _refuse_infinite("target", columns)
            return _stack(columns)
        (target,) = self.targets
        number_of = {label: float(place) for place, label in enumerate(self.classes)}
        found = []
        for row, label in enumerate(words(target, batch[target])):
            if label in number_of:
                found.append(number_of[label])
            elif label is None or (isinstance(label, str) and label.lower() in MISSING):
                found.append(float("nan"))
            else:
                raise InvalidDataError(
                    f"{target!r} is {label!r} at row {row}, which is none of the classes "
                    f"{list(self.classes)}"
                )
        return np.array(found, float)[:, None]

    def _check(self, batch: Any, targets: tuple[str, ...]) -> None:
        names = names_of(batch)
        wanted = (*self.features, *targets)
        missing = [name for name in wanted if name not in names]
        allowed = {*self.features, *self.targets}
        unknown = [name for name in names if name not in allowed] if self.is_strict else []
        if missing or unknown:
            raise InvalidDataError(
                f"wanted the columns {list(wanted)}, got {list(names)}"
                + (f"; missing are {missing}" if missing else "")
                + (f"; not known are {unknown}" if unknown else "")
            )


def _refuse_infinite(what: str, columns: Mapping[str, np.ndarray]) -> None:
    """By name and row, as the model itself sees neither names nor the rows that are left out."""
    for name, values in columns.items():
        is_infinite = np.isinf(values).any(axis=1)
        if is_infinite.any():
            raise InvalidDataError(
                f"{what} {name!r} is infinite at row {int(np.argmax(is_infinite))} "
                f"({int(is_infinite.sum())} of {len(values)} rows): wanted finite numbers"
            )


def _stack(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Columns [N, K] beside one another."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len({*lengths.values()}) > 1:
        raise InvalidDataError(f"columns must be of one length, got {lengths}")
    return np.concatenate([*columns.values()], axis=1)


def as_classes(classes: Any, likelihood: gl.Likelihood) -> tuple[Hashable, ...]:
    """The labels of a likelihood that has as many classes."""
    try:
        labels = tuple(classes)
        number = len({*labels})
    except TypeError:
        labels, number = (), 0
    if number < max(2, len(labels)):
        raise InvalidDataError(f"classes must be two labels or more that differ, got {classes!r}")
    if isinstance(likelihood, gl.Gaussian) or number_of_classes(likelihood) not in (number, None):
        raise InvalidDataError(
            f"{number} classes want a likelihood of {number} classes (Bernoulli for two, Softmax), "
            f"got {type(likelihood).__name__}"
        )
    return labels


def as_categories(categories: Any) -> dict[str, tuple[Hashable, ...] | None]:
    """The words of each column of categories, or None where the first batch says them."""
    if not isinstance(categories, Mapping):
        return dict.fromkeys(as_names("categories", categories) if categories else ())
    found: dict[str, tuple[Hashable, ...] | None] = {
        name: tuple(some) for name, some in categories.items()
    }
    if empty := [name for name, some in found.items() if not some]:
        raise InvalidDataError(f"categories must name words, got none for {empty}")
    return found


def complete_rows(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows that are all there, and the number of the others.

    :param X: Inputs [N, D], NaN where one is missing.
    :param Y: Targets [N, P], NaN where one is missing.
    """
    is_complete = ~(np.isnan(Y).any(axis=1) | np.isnan(X).any(axis=1))
    return X[is_complete], Y[is_complete], int(np.count_nonzero(~is_complete))


# ---- the model ----

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
    those without a zone are taken as they stand, in columns that hold nothing else; each word of a
    column of ``categories`` is an input of its own, 1 in the rows that have it and 0 in others.
    Durations, lists and words in other columns are refused.

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
            if self._state is None:
                warn_if_alike("targets", Y, bool(state.outputs.is_open.all()))
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
        elif len(X):
            state = replace(state, inputs=inputs.with_units_of(X))
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
            "times": None if schema.times is None else list(schema.times),
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
            times = None if record.get("times") is None else tuple(record["times"])
            state = TableState(
                Schema(features, targets, classes, record["is_strict"], categories, times),
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


# ---- sources of batches ----


class Learner(Protocol):
    """A model that learns from pairs of arrays, such as a ``StreamingGP``."""

    def update(self, data: Any, /) -> Any:
        """Learn from one batch."""


@dataclass(frozen=True)
class StreamReport:
    """The numbers of a source that came to its end.

    :param num_batches: The number of batches that were learned.
    :param num_rows: The number of rows in them.
    :param num_skipped: The number of rows that were skipped, as a target was missing.
    :param seconds: The wall time, reading included.
    """

    num_batches: int
    num_rows: int
    num_skipped: int
    seconds: float


def stream(
    source: Iterable[Any],
    model: Learner | TableGP,
    *,
    label: str | None = None,
    report: Callable[[UpdateInfo], None] | None = None,
) -> StreamReport:
    """Learn from every batch of a source, one after another; only one is in memory at a time.

    A source is anything to loop over: a list, a generator, :func:`.read_csv`, the consumer of a
    message queue. It may go on for ever, and be left by an exception or Ctrl-C: the model then
    holds the batches that were learned. Rows without a target are skipped and counted; a batch that
    has nothing else is no batch.

    :param source: Tables for a :class:`TableGP`; pairs of X [N, D] and Y [N, P] for any other
        model, with NaN in Y where a target is missing.
    :param model: The model.
    :param label: The text in front of a progress bar on a terminal, or of a line for each batch
        elsewhere. Without it no progress is shown.
    :param report: Called with what ``update`` returned after every batch.
    :returns: the numbers of batches and rows.
    :raises InvalidDataError: if a batch is refused; says which. Those before it are learned.

    >>> sgp.stream([(X + 5.0, Y), (X + 9.0, Y)], model).num_rows
    40
    """
    start, batches, rows, skipped = time.perf_counter(), 0, 0, 0
    on_terminal = sys.stderr.isatty()
    with tqdm(source, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, batch in enumerate(bar, start=1):
            try:
                info, size, missing = _learn(batch, model)
            except InvalidDataError as error:
                raise InvalidDataError(f"batch {number}, after {rows} rows: {error}") from error
            rows, skipped, batches = rows + size, skipped + missing, batches + bool(size)
            if size and report is not None:
                report(info)
            if label is not None and not on_terminal:
                print(f"{label}: batch {number}, {rows} rows, {skipped} skipped", flush=True)
    return StreamReport(batches, rows, skipped, time.perf_counter() - start)


def _learn(batch: Any, model: Learner | TableGP) -> tuple[Any, int, int]:
    """The result of ``update``, the number of rows that it saw, and of those that were skipped."""
    if isinstance(model, TableGP):
        rows, skipped = model.num_rows, model.num_skipped
        info = model.update(batch)
        return info, model.num_rows - rows, model.num_skipped - skipped
    if is_table(batch) and not isinstance(batch, tuple):
        raise InvalidDataError(
            f"a {type(model).__name__} takes pairs (X, Y), got a {type(batch).__name__}; "
            "tables are for a TableGP"
        )
    X, Y = as_pair(batch)
    X, Y = as_matrix("X", X, None), as_real_array("Y", Y)
    skipped = 0
    if Y.ndim == 2 and len(X) == len(Y):  # else the model says what it wants
        X, Y, skipped = complete_rows(X, Y)
    return (model.update((X, Y)) if len(X) else None), len(X), skipped
