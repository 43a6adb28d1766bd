"""river's interface: rows of named features, one at a time, which are learned in batches."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import gpflow
import numpy as np
from gpflow.likelihoods import Likelihood
from river import base, proba

from streaming_gp.errors import InvalidDataError
from streaming_gp.estimators import (
    Estimator,
    Scaling,
    class_number,
    class_probabilities,
    default_likelihood,
)
from streaming_gp.frames.columns import number, words
from streaming_gp.gp import (
    OnlineGP,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    StreamingGP,
    UntilSettled,
)
from streaming_gp.inputs import require_positive_integer

__all__ = [
    "StreamingGPClassifier",
    "StreamingGPRegressor",
]

if TYPE_CHECKING:
    import pandas as pd

Row = dict[Hashable, float]

LONGEST_FIRST = 20
"""Batches that the first one is as long as at most."""
LEAST_NOISE = 1e-4
"""The least variance of the noise in scaled units: rows learned one at a time want some."""


@dataclass(eq=False, repr=False, kw_only=True)
class RowEstimator(Estimator):
    """Rows wait until they are a batch, which a :class:`~streaming_gp.StreamingGP` learns.

    The names of the inputs, and all scales, are those of the first batch. Rows without any feature
    before it say no more than what targets there are.
    """

    batch_size: int = 50
    budget: int | None = 400
    features: tuple[Hashable, ...] | None = None
    drift_detector: Any = None
    seed: int = 0
    _is_limited: ClassVar[bool] = True  # whether there must be a budget

    def __post_init__(self) -> None:
        require_positive_integer("batch_size", self.batch_size)
        if self.budget is not None or self._is_limited:
            require_positive_integer("budget", self.budget)  # type: ignore[arg-type]
        if self.features is not None:
            _require_several("features", self.features, 1, "at least one name, all different")
        self._detector = copy.deepcopy(self.drift_detector)
        self._silent: deque[float] = deque(maxlen=self.batch_size)
        self._begin()

    def _begin(self) -> None:
        """As if no row had come yet."""
        self._model: StreamingGP | None = None
        self._names: tuple[Hashable, ...] = ()
        self._inputs = self._targets = Scaling.of(np.zeros((0, 0)))
        self._waiting: list[tuple[Row, float]] = []

    @property
    def model(self) -> StreamingGP | None:
        """The model of scaled inputs; None before the first batch is full."""
        return self._model

    @property
    def feature_names(self) -> tuple[Hashable, ...] | None:
        """The names of the inputs, in the model's order; None before the first batch is full."""
        return None if self._model is None else self._names

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from several rows, to the same end as from one after another.

        :param X: A frame whose columns are features.
        :param y: The targets or labels.
        :raises InvalidDataError: as :meth:`learn_one`, or if there are not as many of them as rows.
        """
        rows, targets = _rows_of(X), [self._as_target(one) for one in y]
        if len(rows) != len(targets):
            raise InvalidDataError(f"got {len(rows)} rows and {len(targets)} targets")
        if self._detector is None:
            self._take([*zip(rows, targets, strict=True)])
            return
        for row, target in zip(rows, targets, strict=True):  # a change may come between any two
            self._learn_row(row, target)

    def _take(self, rows: Sequence[tuple[Row, float]]) -> bool:
        """Learn all whole batches of the rows that wait and of these; the rest waits.

        :returns: whether there was a batch.
        """
        if self._model is None and self.features is None:
            self._silent.extend(target for row, target in rows if not row)
            rows = [(row, target) for row, target in rows if row]
        waiting, is_full = [*self._waiting, *rows], False
        while len(waiting) >= (size := self._size_of_next([target for _, target in waiting])):
            self._learn(waiting[:size])
            waiting, is_full = waiting[size:], True
            self._waiting = []  # a batch must not be learned again if a later one fails
        self._waiting = waiting
        return is_full

    def _size_of_next(self, targets: Sequence[float]) -> int:
        """The number of rows of the next batch, of which these are there.

        The first one fixes the scale: it waits until half a batch of targets differ from the first
        target, so that a machine that is off to begin with does not say how large they are.
        """
        if self._model is not None or not self._scales_targets:
            return self.batch_size
        number = np.cumsum([target != targets[0] for target in targets])
        enough = int(np.searchsorted(number, self.batch_size / 2)) + 1
        return min(max(self.batch_size, enough), LONGEST_FIRST * self.batch_size)

    def _learn(self, batch: list[tuple[Row, float]]) -> None:
        """One batch, the first of which fixes names and scales."""
        rows, Y = [row for row, _ in batch], np.array([[target] for _, target in batch])
        names, inputs, targets, model = self._names, self._inputs, self._targets, self._model
        if model is not None:
            inputs = inputs.with_units_of(matrix(rows, names))
        else:
            names = names_in(rows) if self.features is None else tuple(self.features)
            inputs = Scaling.of(matrix(rows, names), self.scale)
            likelihood, points = self._defaults()
            targets = Scaling.of(Y, self._scales_targets)
            options: dict[str, Any] = {"pseudo_points": points, "seed": self.seed}
            if self.pseudo_points is not None or self.budget is not None:
                options["learning"] = UntilSettled()
            model = self._new_model(len(names), likelihood, **options)
        model.update((_scaled(rows, names, inputs), targets.scaled(Y)))
        self._check(model)
        self._names, self._inputs, self._targets, self._model = names, inputs, targets, model

    def _watch(self, error: float) -> None:
        """Give the error of a row to the detector; where it sees a change, all is forgotten."""
        if self._detector is not None and self._model is not None:
            self._detector.update(error)
            if self._detector.drift_detected:
                self._begin()

    @property
    def _targets_so_far(self) -> list[float]:
        """Those of all rows before the first batch."""
        return [*self._silent, *(target for _, target in self._waiting)]

    @property
    def _scales_targets(self) -> bool:
        return False

    def _defaults(self) -> tuple[Likelihood, PseudoPointStrategy]:
        raise NotImplementedError

    def _as_target(self, value: Any) -> float:
        raise NotImplementedError

    def _learn_row(self, row: Row, target: float) -> None:
        """Learn from one row, after the detector has seen its error."""
        raise NotImplementedError

    def _check(self, model: StreamingGP) -> None:
        """Refuse a model that cannot serve this estimator."""

    def _as_inputs(self, rows: Sequence[Row]) -> np.ndarray:
        """Scaled inputs [N, D]; a feature that a row does not have is at its mean."""
        return _scaled(rows, self._names, self._inputs)


class StreamingGPRegressor(RowEstimator, base.MiniBatchRegressor):
    """Streaming GP regression with Gaussian noise, behind river's interface.

    Rows wait until they are ``batch_size``, and are then learned together, hyperparameters
    included. Between batches every row is known at once all the same: each is learned one at a time
    by :meth:`StreamingGP.online <streaming_gp.StreamingGP.online>`, at the present hyperparameters,
    in a fraction of a millisecond. Before the first batch is full, predictions are the mean so far.

    **Features.** The inputs are the features of the first batch, or those that ``features`` names.
    One that is missing from a row, or None or NaN there, is taken to be at its mean over the first
    batch; one that is not among the inputs is ignored.

    **Scaling.** Inputs and targets are standardised by the first batch, and stay so, as points that
    are placed already cannot be rescaled: do not put river's running ``StandardScaler`` before it.
    The first batch is therefore longer where targets are all alike at first: it has half a batch of
    others, or twenty batches of rows.
    The deviation of the noise is at least a hundredth of that of the first batch's targets.

    :param kernel: A GPflow kernel over scaled inputs, copied before it is fitted; or the name of
        one, ``"squared-exponential"`` (the default), ``"matern32"`` or ``"matern52"``, with one
        lengthscale for each input.
    :param pseudo_points: A strategy whose factors stand alone; by default one point at every input,
        and 300 at most.
    :param hyperparameters: A strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: The settings of the fit of each batch.
    :param learning: Which batches learn hyperparameters; by default all until they settle, and then
        one of twenty.
    :param conditioning: How predictions of ``model`` condition on its points.
    :param batch_size: The number of rows that are learned together.
    :param budget: The largest number of points that predictions rest on.
    :param features: The names of the inputs, where the first batch may not have them all.
    :param scale: Whether to scale. If not, a missing feature is at 0.
    :param drift_detector: A change detector of river, such as ``drift.ADWIN()``, which gets the
        absolute error of each row before it is learned, in units of the first batch's deviation.
        Where it sees a change the model begins anew, with that row.
    :param seed: The seed of all random numbers.
    :raises InvalidDataError: if ``batch_size`` or ``budget`` is not a positive integer.

    .. code-block:: python

        model = StreamingGPRegressor(drift_detector=drift.ADWIN())
        for x, y in datasets.TrumpApproval():
            y_pred = model.predict_one(x, with_dist=True)  # y_pred.mu, y_pred.sigma
            model.learn_one(x, y)
    """

    def _begin(self) -> None:
        super()._begin()
        self._online: OnlineGP | None = None

    # ---- learning ----

    def learn_one(self, x: dict[Hashable, Any], y: float) -> None:
        """Learn from one row. If it is refused, nothing has changed.

        :param x: Numbers by name.
        :param y: The target.
        :raises InvalidDataError: if a value is no finite number, or the target is missing.
        :raises NumericalError: if a batch is full and a covariance stays indefinite.
        """
        self._learn_row(as_features(x), self._as_target(y))

    def _learn_row(self, row: Row, target: float) -> None:
        if self._detector is not None and self._model is not None:
            self._watch(abs(target - self._predict(row)[0]) / float(self._targets.unit[0]))
        online, is_last = self._online_model(), len(self._waiting) + 1 >= self.batch_size
        if online is not None and not is_last:
            online.update(*self._datum(row, target))
        if self._take([(row, target)]):
            self._online = None

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        self._online = None
        super().learn_many(X, y)

    @property
    def _scales_targets(self) -> bool:
        return self.scale

    def _defaults(self) -> tuple[Likelihood, PseudoPointStrategy]:
        likelihood = default_likelihood(least_variance=LEAST_NOISE if self.scale else None)
        budget = max(self._num_points - self.batch_size, 50)
        return likelihood, PrivatePseudoPoints("all", budget=budget)

    @property
    def _num_points(self) -> int:
        assert self.budget is not None
        return self.budget

    def _check(self, model: StreamingGP) -> None:
        model.online(self._num_points)

    def _as_target(self, value: Any) -> float:
        number = as_number("the target", value)
        if np.isnan(number):
            raise InvalidDataError("the target is missing: leave the row out")
        return number

    def _online_model(self) -> OnlineGP | None:
        """The model with the rows that wait; None before the first batch."""
        if self._online is None and self._model is not None:
            self._online = self._model.online(self._num_points)
            for row, target in self._waiting:
                self._online.update(*self._datum(row, target))
        return self._online

    def _datum(self, row: Row, target: float) -> tuple[np.ndarray, np.ndarray]:
        return self._as_inputs([row])[0], self._targets.scaled(np.array([target]))

    # ---- prediction ----

    def predict_one(
        self, x: dict[Hashable, Any], with_dist: bool = False
    ) -> float | proba.Gaussian:
        """The mean of the target at x, or its whole distribution, noise included.

        :param x: Numbers by name.
        :param with_dist: Whether to return river's ``proba.Gaussian`` and not its mean.
        :raises InvalidDataError: if a value is no finite number.
        """
        mean, variance = self._predict(as_features(x))
        if not with_dist:
            return mean
        distribution, half = proba.Gaussian(), float(np.sqrt(0.5 * variance))
        for value in (mean - half, mean + half):  # the two that have this mean and variance
            distribution.update(value)
        return distribution

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The mean of the target in each row of a frame, under the frame's own index."""
        import pandas as pd

        means = [self._predict(row)[0] for row in _rows_of(X)]
        return pd.Series(means, index=getattr(X, "index", None), dtype=float)

    def _predict(self, row: Row) -> tuple[float, float]:
        """Mean and variance of a new observation."""
        online = self._online_model()
        if online is None:
            targets = np.array(self._targets_so_far or [0.0])
            return float(targets.mean()), float(targets.var()) or 1.0
        assert self._model is not None
        mean, variance = online.predict(self._as_inputs([row])[0])
        noise = float(self._model.likelihood.variance.numpy())
        unit = float(self._targets.unit[0])
        return float(self._targets.original(mean)[0]), unit**2 * (float(variance[0]) + noise)

    def __getstate__(self) -> dict[str, Any]:
        """Without the online model, which is made again from the model and the rows that wait."""
        return {**vars(self), "_online": None}


@dataclass(eq=False, repr=False, kw_only=True)
class StreamingGPClassifier(RowEstimator, base.MiniBatchClassifier):
    """Streaming GP classification, behind river's interface.

    Rows wait until they are ``batch_size``, and are then learned together; predictions are those of
    the batches so far. Before the first batch is full, probabilities are the frequencies of the
    labels, each counted once more than it came. Features and scaling are as in
    :class:`StreamingGPRegressor`.

    Labels are True and False, or those that ``classes`` names, all of which must be known at the
    start; for labels that appear later, put it into river's ``multiclass.OneVsRestClassifier``. Two
    classes get one latent function and a probit likelihood, several a function each and a softmax.

    :param classes: The labels.
    :param kernel: A GPflow kernel, as in :class:`StreamingGPRegressor`; so are further arguments.
    :param pseudo_points: A strategy; by default a point at every input, and ``budget`` at most.
    :param budget: The largest number of points; None for no limit, where predictions of long
        streams condition on near rows.
    :param learning: Which batches learn hyperparameters; without limit those by which the stream
        has doubled, else all until they settle.
    :param drift_detector: As there; it gets 1 for a row whose label was wrong, else 0.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer, or there are not at least
        two classes.
    """

    classes: tuple[Hashable, ...] = field(default=(False, True), kw_only=False)
    kernel: gpflow.kernels.Kernel | str | None = None
    batch_size: int = 100
    budget: int | None = None
    _is_limited: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_several("classes", self.classes, 2, "at least two different labels")

    @property
    def _multiclass(self) -> bool:
        """Whether labels are others than False and True."""
        return set(self.classes) != {False, True}

    # ---- learning ----

    def learn_one(self, x: dict[Hashable, Any], y: Hashable) -> None:
        """Learn from one row. If it is refused, nothing has changed.

        :param x: Numbers by name.
        :param y: The label.
        :raises InvalidDataError: if a value is no finite number, or the label is none of the
            classes.
        :raises NumericalError: if a batch is full and a covariance stays indefinite.
        """
        self._learn_row(as_features(x), self._as_target(y))

    def _learn_row(self, row: Row, target: float) -> None:
        if self._detector is not None and self._model is not None:
            self._watch(float(np.argmax(self._probabilities([row])[0]) != target))
        self._take([(row, target)])

    def _defaults(self) -> tuple[Likelihood, PseudoPointStrategy]:
        likelihood = default_likelihood(len(self.classes))
        return likelihood, PrivatePseudoPoints("all", budget=self.budget)

    def _as_target(self, value: Any) -> float:
        try:
            return float(class_number(value, self.classes))
        except InvalidDataError as error:
            raise InvalidDataError(
                f"{error}: name all of them, or use river's multiclass.OneVsRestClassifier"
            ) from None

    # ---- prediction ----

    def predict_proba_one(self, x: dict[Hashable, Any], **_: Any) -> dict[Hashable, float]:
        """The probability of each label at x.

        :param x: Numbers by name.
        :raises InvalidDataError: if a value is no finite number.
        """
        probabilities = self._probabilities([as_features(x)])[0].tolist()
        return dict(zip(self.classes, probabilities, strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probability of each label in each row of a frame, under the frame's own index."""
        import pandas as pd

        probabilities = self._probabilities(_rows_of(X))
        return pd.DataFrame(
            probabilities, index=getattr(X, "index", None), columns=pd.Index(list(self.classes))
        )

    def _probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """[N, C], in the order of the classes."""
        if not rows:
            return np.zeros((0, len(self.classes)))
        if self._model is None:
            counts = Counter(self._targets_so_far)
            frequencies = np.array([1.0 + counts[number] for number in range(len(self.classes))])
            return np.tile(frequencies / frequencies.sum(), (len(rows), 1))
        mean, _ = self._model.predict_y(self._as_inputs(rows))
        return class_probabilities(np.asarray(mean))


# ---- features by name ----


def _require_several(what: str, names: Any, least: int, wanted: str) -> None:
    """Names or labels that differ; a string would be taken for its letters."""
    try:
        number = 0 if isinstance(names, str) else len({*names})
    except TypeError:
        number = 0
    if number < least or number < len(names):
        raise InvalidDataError(f"{what} must be {wanted}, got {names!r:.100}")


def as_features(x: Any) -> Row:
    """The features that have a value; None and NaN are none."""
    if not isinstance(x, Mapping):
        raise InvalidDataError(f"x must map names to numbers, got a {type(x).__name__}")
    numbers = {name: as_number(f"feature {name!r}", value) for name, value in x.items()}
    return {name: value for name, value in numbers.items() if not np.isnan(value)}


def as_number(name: str, value: Any) -> float:
    """A number as a float, as columns of tables are read; None is NaN, and a flag is 0 or 1."""
    try:
        found = number(name, value)
    except InvalidDataError:
        if isinstance(value, Integral):  # finite, and too large
            raise
        found = inf
    if isinf(found):
        raise InvalidDataError(f"{name} must be a finite number, got {value!r:.100}")
    return found


def names_in(rows: Iterable[Row]) -> tuple[Hashable, ...]:
    """All names in these rows, in an order that does not depend on the order in the rows."""
    names = {name for row in rows for name in row}
    return tuple(sorted(names, key=lambda name: (str(name), type(name).__name__)))


def matrix(rows: Sequence[Row], names: Sequence[Hashable]) -> np.ndarray:
    """Rows [N, D] of these features, NaN where a row has none; other features are left out."""
    values = [[row.get(name, np.nan) for name in names] for row in rows]
    return np.array(values, dtype=float).reshape(len(rows), len(names))


def _scaled(rows: Sequence[Row], names: Sequence[Hashable], scaling: Scaling) -> np.ndarray:
    """Rows [N, D] in units of the scaling, with 0 where a feature is missing."""
    return np.nan_to_num(scaling.scaled(matrix(rows, names)))


def _rows_of(X: Any) -> list[Row]:
    """The rows of a frame, by name."""
    X = X.collect() if hasattr(X, "collect") else X
    columns = (words(str(name), X[name]) for name in X.columns)
    return [
        as_features(dict(zip(X.columns, row, strict=True))) for row in zip(*columns, strict=True)
    ]
