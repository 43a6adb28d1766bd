"""scikit-learn's interface: arrays and frames, which ``fit`` streams through in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streaming_gp.errors import InvalidDataError
from streaming_gp.estimators import (
    Estimator,
    Scaling,
    class_number,
    class_probabilities,
    default_kernel,
    default_likelihood,
    few_rows,
    largest_probabilities,
    warn_if_alike,
    with_columns,
)
from streaming_gp.frames.columns import numbers, words
from streaming_gp.inputs import as_float64, as_real_array, refuse_masked

__all__ = [
    "BATCH_SIZE",
    "StreamingGPClassifier",
    "StreamingGPRegressor",
    "default_kernel",
]

BATCH_SIZE = 1000
"""The number of rows that ``fit`` streams at a time where points are fewer than rows."""

OUTGROWN = 10.0
"""Targets whose deviation has become so many units of their scale want another one: the prior would
hold their noise near the unit."""

MOST_SOFTMAX = 10
"""More classes are regressed on: a softmax of so many functions would take minutes."""


@dataclass(eq=False, repr=False, kw_only=True)
class ArrayEstimator(Estimator, BaseEstimator):
    """The settings of both estimators, and a model that learns arrays in batches."""

    batch_size: int | None = None
    num_prediction_samples: int = 16
    random_state: int | np.random.RandomState | None = None

    # ---- data ----

    def _as_inputs(self, X: Any) -> np.ndarray:
        """Inputs [N, D] in the units of the model, of which D and names are checked."""
        check_is_fitted(self)
        return self.input_scaler_.scaled(
            validate_data(self, _with_numbers(X), dtype=np.float64, reset=False)
        )

    def _validated(
        self, X: Any, y: Any, reset: bool, **checks: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """X [N, D] and y, of which scikit-learn has checked names, shapes and values."""
        refuse_masked("y", y)
        X = _with_numbers(X)
        inputs, targets = validate_data(self, X, y, reset=reset, dtype=np.float64, **checks)
        return inputs, targets

    # ---- learning ----

    def _make_model(self, X: np.ndarray, likelihood: Any) -> None:
        """Fix the scale of the inputs, and make a model that has seen nothing yet."""
        if self.batch_size is not None:
            check_scalar(self.batch_size, "batch_size", Integral, min_val=1)
        self.input_scaler_ = Scaling.of(X, self.scale)
        self.model_ = self._new_model(
            X.shape[1],
            likelihood,
            num_prediction_samples=self.num_prediction_samples,
            seed=int(check_random_state(self.random_state or 0).randint(np.iinfo(np.int32).max)),
        )

    def _stream(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Inputs and observations as the model takes them, in batches that look like the whole."""
        order = np.random.default_rng(self.model_.settings.seed).permutation(len(X))
        size = self.batch_size
        if size is None:
            size = len(X) if self.model_.settings.pseudo_points.allowed.near else BATCH_SIZE
        for rows in np.array_split(order, -(-len(X) // size)):
            rows.sort()
            self.model_.update((X[rows], Y[rows]))


class StreamingGPRegressor(RegressorMixin, ArrayEstimator):
    """Streaming GP regression with Gaussian noise, behind scikit-learn's interface.

    ``fit`` learns from scratch, streaming X through in batches; ``partial_fit`` continues with one
    more batch, whether after ``fit`` or from nothing. No batch is kept. Targets may have several
    columns: they share the kernel, each has noise of its own, and they are independent given both.

    **Scaling.** Inputs and targets are standardised inside, and predictions mapped back. The
    scaling is fixed by all of X and y in ``fit``, and by the first batch in ``partial_fit``, as
    pseudo-points that are placed already cannot be rescaled: let the first batch be typical of the
    stream. An input that is constant there gets its unit from the first batch in which it is not;
    where a target is the same in all of the first thousand rows at most, or in so few has come to
    vary ten times as much as in the first batch, the batch that shows it begins anew with them.

    **Weights.** ``fit`` and ``partial_fit`` take ``sample_weight``: a row of weight w has the
    noise's variance divided by w, so that it says of the function as much as w such rows. It is no
    named parameter, as scikit-learn's checks take one of that name for repeated rows, which would
    say more of the noise too.

    **Frames.** Columns of booleans are 0 and 1; categories of numbers are these; words, dates,
    durations and lists are refused by name, in y dates and durations too. A lazy frame is
    collected.

    :param kernel: A GPflow kernel over scaled inputs, copied before it is fitted; or the name of
        one, ``"squared-exponential"`` (the default), ``"matern32"`` or ``"matern52"``, which then
        has one lengthscale for each input, or one for all where these are more than 100.
    :param pseudo_points: A strategy such as :class:`~streaming_gp.PrivatePseudoPoints`; by default
        a point at every input.
    :param hyperparameters: A strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: The settings of the fit of each batch, a
        :class:`~streaming_gp.LocalOptimiser`.
    :param learning: Which batches learn hyperparameters; as in :class:`~streaming_gp.StreamingGP`.
    :param conditioning: How predictions condition on the points; as in
        :class:`~streaming_gp.StreamingGP`.
    :param batch_size: The largest number of rows that ``fit`` streams at a time; by default all of
        them, or 1000 with a strategy of few points.
    :param scale: Whether to scale. If not, lengthscales, noise and priors are in your own units.
    :param num_prediction_samples: The number of values of the hyperparameters over which
        predictions are averaged; even.
    :param random_state: The seed of all random numbers, or NumPy's generator of it. With None these
        are the same in every fit, and NumPy's global state is not touched.

    :ivar model_: The :class:`~streaming_gp.StreamingGP`, in scaled units. With weights its inputs
        have one more column, the weight, which the kernel does not see.
    :ivar input_scaler_: The map from inputs to scaled units, with ``mean`` and ``unit`` [D].
    :ivar target_scaler_: The map from targets to scaled units, with ``mean`` and ``unit`` [P].
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.

    >>> regressor = sgp.sklearn.StreamingGPRegressor("matern32")
    >>> regressor = regressor.fit(X, Y[:, 0], sample_weight=np.ones(20))
    >>> mean, deviation = regressor.predict(X[:3], return_std=True)
    >>> regressor.sample_y(X[:3], n_samples=5).shape
    (3, 5)
    """

    target_scaler_: Scaling
    is_weighted_: bool

    def fit(self, X: Any, y: ArrayLike, **weights: Any) -> StreamingGPRegressor:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P].
        :param weights: ``sample_weight`` [N], positive; rows of weight zero are left out.
        :raises ValueError: if they are not finite numbers of these shapes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            X, Y, weight = self._start(X, y, weights)
            self._stream(self._with_weight(X, weight), self.target_scaler_.scaled(Y))
        return self

    def partial_fit(self, X: Any, y: ArrayLike, **weights: Any) -> StreamingGPRegressor:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P].
        :param weights: ``sample_weight`` [N]; wanted in the first call if it is in a later one.
        :raises ValueError: if they are not finite numbers of these shapes, or D or P have changed.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            if hasattr(self, "model_"):
                X, Y, weight = self._as_data(X, y, weights, reset=False)
                self.input_scaler_ = self.input_scaler_.with_units_of(X)
                X, Y, weight = self._with_rows_out_of_scale(X, Y, weight)
            else:
                X, Y, weight = self._start(X, y, weights)
                warn_if_alike("inputs", X, self.scale)
                warn_if_alike("targets", Y, self.scale)
            self.model_.update((self._with_weight(X, weight), self.target_scaler_.scaled(Y)))
        return self

    def _start(self, X: Any, y: Any, weights: dict[str, Any]) -> tuple[Any, Any, Any]:
        X, Y, weight = self._as_data(X, y, weights, reset=True)
        self.is_weighted_ = weight is not None
        self._begin(X, Y)
        return X, Y, weight

    def _begin(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Fix the scales, and make a model that has seen nothing yet."""
        self.target_scaler_ = Scaling.of(Y, self.scale)
        noise = default_likelihood(num_targets=Y.shape[1], is_weighted=self.is_weighted_)
        self._make_model(X, noise)

    def _with_rows_out_of_scale(
        self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The batch; and where the first rows fixed no scale for a target, as they were the same or
        nearly so, with all rows so far, for a model that begins anew.
        """
        rows = few_rows(self.model_) if self.scale else None
        if rows is None:
            return X, Y, weight
        inputs, targets = rows[0], self.target_scaler_.original(rows[1])
        was_flat = (targets == targets[0]).all(axis=0) & (targets[0] != Y).any(axis=0)
        spread = Scaling.of(np.concatenate([targets, Y])).unit
        if not (was_flat | (spread > OUTGROWN * self.target_scaler_.unit)).any():
            return X, Y, weight
        number = X.shape[1]
        weight = np.ones(len(X)) if weight is None else weight
        weights = inputs[:, number] if self.is_weighted_ else np.ones(len(inputs))
        X = np.concatenate([self.input_scaler_.original(inputs[:, :number]), X])
        Y, weight = np.concatenate([targets, Y]), np.concatenate([weights, weight])
        self._begin(X, Y)
        return X, Y, weight if self.is_weighted_ else None

    def _as_data(
        self, X: Any, y: Any, weights: dict[str, Any], reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Inputs [N, D], targets [N, P] and weights [N], in their own units."""
        if {*weights} - {"sample_weight"}:
            raise TypeError(f"wanted X, y and sample_weight, got {[*weights]} too")
        inputs, targets = self._validated(X, y, reset, multi_output=True, y_numeric=True)
        Y = as_float64("y", as_real_array("y", targets)).reshape(len(targets), -1)
        if not reset and Y.shape[1] != len(self.target_scaler_.unit):
            raise InvalidDataError(
                f"y must have {len(self.target_scaler_.unit)} outputs as before, got {Y.shape[1]}"
            )
        weight = weights.get("sample_weight")
        if weight is None:
            return inputs, Y, None
        weight = check_array(weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weight.shape != (len(Y),) or (weight < 0.0).any() or not weight.any():
            raise InvalidDataError(
                f"sample_weight must be [{len(Y)}] and not negative, and some positive"
            )
        return inputs[weight > 0.0], Y[weight > 0.0], weight[weight > 0.0]

    def _with_weight(self, X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        """Scaled inputs, and a column of weights where the model has one."""
        X = self.input_scaler_.scaled(X)
        if not self.is_weighted_:
            if weight is not None:
                raise InvalidDataError("sample_weight was not given in the first partial_fit")
            return X
        return np.column_stack([X, np.ones(len(X)) if weight is None else weight])

    # ---- prediction ----

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of a new observation y at each input, and its standard deviation or covariance.

        These are those of y, noise included, as scikit-learn's own ``GaussianProcessRegressor``
        gives them where a ``WhiteKernel`` learns the noise; ``model_.predict_f`` has those of the
        function alone, in scaled units.

        :param X: The inputs [N, D].
        :param return_std: Whether to return the standard deviation too.
        :param return_cov: Whether to return the covariance of all inputs too.
        :returns: mean [N], or [N, P] with several outputs, in units of y; with ``return_std`` also
            the standard deviation, of the same shape; with ``return_cov`` also the covariance
            [N, N], or [N, N, P].
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        :raises ValueError: if both are wanted.
        """
        if return_std and return_cov:
            raise InvalidDataError("wanted return_std or return_cov, not both")
        inputs, scaling = self._new_inputs(X), self.target_scaler_
        mean, variance = map(np.asarray, self.model_.predict_y(inputs))
        y_mean = self._of_targets(scaling.original(mean))
        if return_std:
            return y_mean, self._of_targets(scaling.unit * np.sqrt(variance))
        if not return_cov:
            return y_mean
        _, of_f = map(np.asarray, self.model_.predict_f(inputs, full_cov=True))
        covariance = np.moveaxis(of_f, 0, -1).copy()
        rows = np.arange(len(mean))
        covariance[rows, rows] = variance
        return y_mean, self._of_targets(scaling.unit**2 * covariance)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Draws of observations y, correlated over the inputs as the function is, with noise.

        Each has its own hyperparameters, drawn from their posterior.

        :param X: The inputs [N, D].
        :param n_samples: The number S of draws.
        :param random_state: The seed, or NumPy's generator of it.
        :returns: [N, S], or [N, P, S] with several outputs, in units of y.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        inputs, rng = self._new_inputs(X), check_random_state(random_state)
        seed = int(rng.randint(np.iinfo(np.int32).max))
        f = np.asarray(self.model_.predict_f_samples(inputs, n_samples, seed=seed))
        _, of_f = self.model_.predict_f(inputs)
        _, of_y = self.model_.predict_y(inputs)
        noise = np.sqrt(np.maximum(np.asarray(of_y) - np.asarray(of_f), 0.0))
        y = self.target_scaler_.original(f + noise * rng.standard_normal(f.shape))
        return self._of_targets(np.moveaxis(y, 0, -1), axis=1)

    def _new_inputs(self, X: Any) -> np.ndarray:
        inputs = self._as_inputs(X)
        return np.column_stack([inputs, np.ones(len(inputs))]) if self.is_weighted_ else inputs

    def _of_targets(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        """Values of all targets along an axis, which goes if there is but one."""
        return values.squeeze(axis) if values.shape[axis] == 1 else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class StreamingGPClassifier(ClassifierMixin, ArrayEstimator):
    """Streaming GP classification, behind scikit-learn's interface.

    Two classes get one latent function and a probit (Bernoulli) likelihood, up to ten a latent
    function each, with a shared kernel, and a softmax likelihood. More classes, and those of a
    stream whose classes are not said at its start, are regressed on: a function for each class has
    the values 1 at its rows and 0 at others, with Gaussian noise, and a class has the probability
    that its function is the largest. That takes one factorisation for all classes, and a label that
    comes later is exactly as if it had been known from the start, at fixed hyperparameters.

    Labels may be of any type that can be sorted. ``fit``, ``partial_fit``, frames and the scaling
    of inputs are as in :class:`StreamingGPRegressor`.

    Where the first batch of ``partial_fit`` holds one class alone, hyperparameters are learned from
    the second class on.

    :param kernel: The kernel, as in :class:`StreamingGPRegressor`; so are all further parameters.

    :ivar classes_: The labels, sorted.
    :ivar model_: The :class:`~streaming_gp.StreamingGP`, over scaled inputs and numbered labels.
    :ivar input_scaler_: The map from inputs to scaled units, with ``mean`` and ``unit`` [D].
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.

    >>> classifier = sgp.sklearn.StreamingGPClassifier().fit(X, np.where(Y[:, 0] > 0, "up", "down"))
    >>> classifier.classes_.tolist(), classifier.predict_proba(X[:3]).shape
    (['down', 'up'], (3, 2))
    """

    classes_: np.ndarray
    is_regressed_: bool

    def fit(self, X: Any, y: ArrayLike) -> StreamingGPClassifier:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The labels [N] of two classes or more.
        :raises ValueError: if they are not finite numbers of these shapes, or labels of classes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            X, y = self._as_data(X, y, reset=True)
            self._start(X, y, len(_sorted(y)) > MOST_SOFTMAX)
            self._stream(self.input_scaler_.scaled(X), self._observations(y))
        return self

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None
    ) -> StreamingGPClassifier:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The labels [N].
        :param classes: All labels that the stream will hold, at least two, which are not changed
            later. If they are not given in the first call, labels may come later.
        :raises ValueError: if X is not a finite matrix of D columns, y holds a label that is none
            of ``classes``, or these differ from those of the first call.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            is_first = not hasattr(self, "model_")
            X, y = self._as_data(X, y, reset=is_first)
            if is_first:
                known = y if classes is None else column_or_1d(classes)
                is_regressed = classes is None or len(_sorted(known)) > MOST_SOFTMAX
                self._start(X, known, is_regressed, classes is None)
                warn_if_alike("inputs", X, self.scale)
            elif classes is not None and not np.array_equal(_sorted(classes), self.classes_):
                raise InvalidDataError(
                    f"classes were {self.classes_} and cannot change, got {_sorted(classes)}"
                )
            elif self._may_grow:
                self._grow(y)
            self.input_scaler_ = self.input_scaler_.with_units_of(X)
            learn = False if self.is_regressed_ and len(self.classes_) == 1 else None
            data = self.input_scaler_.scaled(X), self._observations(y)
            self.model_.update(data, learn=learn)
        return self

    def _as_data(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        if np.ndim(y):
            found = words("y", np.ravel(np.asarray(y, dtype=object)))
            if None in found:
                raise InvalidDataError(
                    f"y misses {found.count(None)} of {len(found)} labels, the first at row "
                    f"{found.index(None)}: leave such rows out"
                )
        inputs, labels = self._validated(X, y, reset)
        check_classification_targets(labels)
        return inputs, labels

    def _start(
        self, X: np.ndarray, labels: Any, is_regressed: bool, may_grow: bool = False
    ) -> None:
        """Make a model of so many classes."""
        self.classes_ = _sorted(labels)
        self.is_regressed_, self._may_grow = is_regressed, may_grow
        number = len(self.classes_)
        if number < 2 and not may_grow:
            raise InvalidDataError(
                f"a classifier needs at least 2 classes, got {number} class: {self.classes_}"
            )
        self._make_model(X, default_likelihood(None if is_regressed else number))

    def _grow(self, labels: np.ndarray) -> None:
        """Take classes in that are new: their functions were 0 at all rows so far."""
        classes = _sorted(np.concatenate([self.classes_, labels]))
        if not {*self.classes_.tolist()} <= {*classes.tolist()}:  # numbers that became words
            raise InvalidDataError(f"labels were {self.classes_}, got others of {labels.dtype}")
        if len(classes) > len(self.classes_):
            places = np.searchsorted(classes, self.classes_)
            self.model_ = with_columns(self.model_, places, len(classes))
            self.classes_ = classes

    def _observations(self, y: np.ndarray) -> np.ndarray:
        """Labels by numbers of their classes [N, 1], or a column for each class [N, C]."""
        classes = self.classes_.tolist()
        places = np.array([class_number(label, classes) for label in y.tolist()])
        if self.is_regressed_:
            return np.eye(len(classes))[places]
        return places[:, None].astype(np.float64)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, averaged over the function and its hyperparameters.

        :param X: The inputs [N, D].
        :returns: [N, C], in the order of ``classes_``.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        inputs = self._as_inputs(X)
        mean, variance = map(np.asarray, self.model_.predict_y(inputs))
        if self.is_regressed_:
            return largest_probabilities(mean, variance)
        return class_probabilities(mean)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label at each input.

        :param X: The inputs [N, D].
        :returns: labels [N].
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]


def _sorted(labels: Any) -> np.ndarray:
    """The labels that differ, in order."""
    try:
        return np.unique(labels)
    except TypeError:
        kinds = sorted({type(one).__name__ for one in np.ravel(labels)})
        raise InvalidDataError(
            f"labels must be of a kind that can be sorted, got {kinds}"
        ) from None


def _with_numbers(X: Any) -> Any:
    """A frame whose columns are all of numbers, or what came if it is none."""
    refuse_masked("X", X)
    if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise InvalidDataError(f"X must hold numbers, got {X.dtype}")
    X = X.collect() if hasattr(X, "collect_schema") and hasattr(X, "collect") else X
    is_pandas, is_polars = hasattr(X, "iloc"), hasattr(X, "with_columns")
    names = X.columns if is_pandas or is_polars else getattr(X, "column_names", None)
    if names is None or hasattr(X, "sparse"):  # sparse frames are refused by scikit-learn
        return X
    matrix = np.stack([numbers(name, X[name]) for name in names], axis=1)
    if is_pandas:
        return type(X)(matrix, columns=names)
    return type(X)(matrix, schema=names) if is_polars else matrix


@contextmanager
def unchanged_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Attributes are set back if the block raises, which replaces but never mutates their values.

    ``StreamingGP.update`` does mutate the model, and undoes that itself.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
