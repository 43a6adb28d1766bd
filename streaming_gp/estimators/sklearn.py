"""scikit-learn's interface: arrays, which ``fit`` streams through in batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar

import gpflow
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streaming_gp.errors import InvalidDataError, PoorFitWarning
from streaming_gp.estimators.base import (
    Estimator,
    Scaling,
    class_number,
    class_probabilities,
    default_likelihood,
    default_pseudo_points,
)
from streaming_gp.gp import (
    HyperparameterStrategy,
    LocalOptimiser,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    StreamingGP,
)
from streaming_gp.inputs import refuse_masked

E = TypeVar("E", bound="ArrayEstimator")

BATCH_SIZE = 1000
"""The number of rows that ``fit`` streams at a time by default."""

FEWEST_TO_LOOK_SORTED = 10
"""Of fewer labels it is no surprise if they are all alike."""


class ArrayEstimator(Estimator, BaseEstimator):
    """The parameters of both estimators, and a model that learns arrays in batches."""

    model_: StreamingGP
    input_scaler_: Scaling

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel | None = None,
        *,
        pseudo_points: PseudoPointStrategy | None = None,
        hyperparameters: HyperparameterStrategy | None = None,
        optimiser: LocalOptimiser | None = None,
        batch_size: int | None = None,
        scale: bool = True,
        num_prediction_samples: int = 16,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.optimiser = optimiser
        self.batch_size = batch_size
        self.scale = scale
        self.num_prediction_samples = num_prediction_samples
        self.random_state = random_state

    def fit(self: E, X: ArrayLike, y: ArrayLike) -> E:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P] of regression; the labels [N] of two classes or more.
        :raises ValueError: if they are not finite numbers of these shapes, or labels of classes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            X, Y = self._start(X, y)
            order = np.random.default_rng(self.model_.settings.seed).permutation(len(X))
            for rows in np.array_split(order, -(-len(X) // self._num_rows())):
                rows.sort()  # each batch looks like the whole
                self._learn(X[rows], Y[rows])
        return self

    def _start(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Begin with these data, and give inputs [N, D] and observations [N, P] for the model."""
        raise NotImplementedError

    def _validated(
        self, X: ArrayLike, y: ArrayLike, reset: bool, **checks: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        refuse_masked("X", X)
        refuse_masked("y", y)
        inputs, targets = validate_data(self, X, y, reset=reset, dtype=np.float64, **checks)
        return inputs, targets

    def _make_model(
        self,
        X: np.ndarray,
        num_classes: int | None = None,
        pseudo_points: PseudoPointStrategy | None = None,
    ) -> None:
        """Fix the scale of the inputs, and make a model that has seen nothing yet.

        :param pseudo_points: The default strategy; None for one by the number of rows.
        """
        self.input_scaler_ = Scaling.of(X, self.scale)
        self.model_ = self._new_model(
            X.shape[1],
            default_likelihood(num_classes),
            pseudo_points or default_pseudo_points(min(len(X), self._num_rows())),
            num_prediction_samples=self.num_prediction_samples,
            seed=int(check_random_state(self.random_state or 0).randint(np.iinfo(np.int32).max)),
        )

    def _num_rows(self) -> int:
        """The largest number of rows of a batch.

        :raises ValueError: if ``batch_size`` is no positive integer.
        """
        size = BATCH_SIZE if self.batch_size is None else self.batch_size
        return check_scalar(size, "batch_size", Integral, min_val=1)

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """One batch: inputs [N, D] in their own units, observations [N, P] in the model's."""
        self.model_.update((self.input_scaler_.scaled(X), Y))

    def _predict_y(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [N, P] of the model's observations."""
        check_is_fitted(self)
        refuse_masked("X", X)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        mean, variance = self.model_.predict_y(self.input_scaler_.scaled(inputs))
        return np.asarray(mean), np.asarray(variance)


class StreamingGPRegressor(RegressorMixin, ArrayEstimator):
    """Streaming GP regression with Gaussian noise, behind scikit-learn's interface.

    ``fit`` learns from scratch, streaming X through in batches; ``partial_fit`` continues with one
    more batch, whether after ``fit`` or from nothing. No batch is kept. Targets may have several
    columns: outputs share kernel and noise and are independent given them.

    **Scaling.** Inputs and targets are standardised inside, and predictions mapped back. The
    scaling is fixed by all of X and y in ``fit``, and by the first batch in ``partial_fit``, as
    pseudo-points that are placed already cannot be rescaled: let the first batch be typical of the
    stream. Columns that are constant there are only centred.

    :param kernel: A GPflow kernel over scaled inputs, copied before it is fitted; by default
        ``default_kernel``, a squared exponential with one lengthscale for each input.
    :param pseudo_points: A strategy such as :class:`~streaming_gp.PrivatePseudoPoints`; by default
        ``default_pseudo_points``, of which there are not more than 300 however long the stream.
    :param hyperparameters: A strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: The settings of the fit of each batch, a
        :class:`~streaming_gp.LocalOptimiser`.
    :param batch_size: The largest number of rows that ``fit`` streams at a time; 1000 by default.
    :param scale: Whether to scale. If not, lengthscales, noise and priors are in your own units.
    :param num_prediction_samples: The number of values of the hyperparameters over which
        predictions are averaged; even.
    :param random_state: The seed of all random numbers, or NumPy's generator of it. With None these
        are the same in every fit, and NumPy's global state is not touched.

    :ivar model_: The :class:`~streaming_gp.StreamingGP`, in scaled units.
    :ivar input_scaler_: The map from inputs to scaled units, with ``mean`` and ``unit`` [D].
    :ivar target_scaler_: The map from targets to scaled units, with ``mean`` and ``unit`` [P].
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.
    """

    target_scaler_: Scaling

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPRegressor:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P].
        :raises ValueError: if they are not finite numbers of these shapes, or D or P have changed.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            if hasattr(self, "model_"):
                X, Y = self._as_data(X, y, reset=False)
                Y = self.target_scaler_.scaled(Y)
            else:
                X, Y = self._start(X, y)
                warn_if_alike("inputs", X, self.scale)
                warn_if_alike("targets", Y, self.scale)
            self._learn(X, Y)
        return self

    def _start(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        X, Y = self._as_data(X, y, reset=True)
        self.target_scaler_ = Scaling.of(Y, self.scale)
        self._make_model(X)
        return X, self.target_scaler_.scaled(Y)

    def _as_data(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = self._validated(X, y, reset, multi_output=True, y_numeric=True)
        Y = targets.reshape(len(targets), -1).astype(np.float64)
        if not reset and Y.shape[1] != len(self.target_scaler_.unit):
            raise InvalidDataError(
                f"y must have {len(self.target_scaler_.unit)} outputs as before, got {Y.shape[1]}"
            )
        return inputs, Y

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of a new observation y at each input, and its standard deviation.

        The deviation is that of y, noise included, as scikit-learn's own
        ``GaussianProcessRegressor`` gives it where a ``WhiteKernel`` learns the noise;
        ``model_.predict_f`` has that of the function alone, in scaled units.

        :param X: The inputs [N, D].
        :param return_std: Whether to return the standard deviation too.
        :returns: mean [N], or [N, P] with several outputs, in units of y; with ``return_std`` also
            the standard deviation, of the same shape.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        mean, variance = self._predict_y(X)
        scaling, num_outputs = self.target_scaler_, mean.shape[1]
        shape = (-1,) if num_outputs == 1 else (-1, num_outputs)
        y_mean = scaling.original(mean).reshape(shape)
        return (y_mean, (scaling.unit * np.sqrt(variance)).reshape(shape)) if return_std else y_mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class StreamingGPClassifier(ClassifierMixin, ArrayEstimator):
    """Streaming GP classification, behind scikit-learn's interface.

    Two classes get one latent function and a probit (Bernoulli) likelihood, several get a latent
    function each, with a shared kernel, and a softmax likelihood. Labels may be of any type that
    can be sorted. ``fit``, ``partial_fit`` and the scaling of inputs are as in
    :class:`StreamingGPRegressor`.

    Where the first batch of ``partial_fit`` holds one class alone, hyperparameters are learned from
    the second class on, and pseudo-points are by default at every input, up to 300, if the batch
    has ten rows or more.

    :param kernel: The kernel, as in :class:`StreamingGPRegressor`; so are all further parameters.

    :ivar classes_: The labels, sorted.
    :ivar model_: The :class:`~streaming_gp.StreamingGP`, over scaled inputs and numbered labels.
    :ivar input_scaler_: The map from inputs to scaled units, with ``mean`` and ``unit`` [D].
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.
    """

    classes_: np.ndarray

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> StreamingGPClassifier:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The labels [N].
        :param classes: All labels that the stream will hold, at least two; wanted in the first
            call, and not changed later.
        :raises ValueError: if X is not a finite matrix of D columns, y holds other labels, or
            ``classes`` is missing in the first call or differs in a later one.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            is_first = not hasattr(self, "model_")
            X, y = self._as_data(X, y, reset=is_first)
            if is_first:
                if classes is None:
                    raise InvalidDataError("classes must be given in the first partial_fit")
                looks_sorted = len(y) >= FEWEST_TO_LOOK_SORTED and (y == y[0]).all()
                self._start_classes(X, classes, looks_sorted)
                warn_if_alike("inputs", X, self.scale)
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise InvalidDataError(
                    f"classes were {self.classes_} and cannot change, got {np.unique(classes)}"
                )
            self._learn(X, self._numbers(y))
        return self

    def _start(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        X, y = self._as_data(X, y, reset=True)
        self._start_classes(X, y)
        return X, self._numbers(y)

    def _as_data(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = self._validated(X, y, reset)
        check_classification_targets(labels)
        return inputs, labels

    def _start_classes(self, X: np.ndarray, labels: ArrayLike, looks_sorted: bool = False) -> None:
        """Make a model of so many classes.

        :param looks_sorted: Whether classes may come one after another. Labels of one class ask
            for few pseudo-points, and few of them say too little once another class comes.
        """
        self.classes_ = np.unique(column_or_1d(labels))
        number = len(self.classes_)
        if number < 2:
            raise InvalidDataError(
                f"a classifier needs at least 2 classes, got {number} class: {self.classes_}"
            )
        self._make_model(
            X, number, PrivatePseudoPoints("all", budget=300) if looks_sorted else None
        )

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        """Labels as numbers of their classes: [N, 1].

        :raises InvalidDataError: if one is of no class.
        """
        classes = self.classes_.tolist()
        return np.array([[class_number(label, classes)] for label in y.tolist()], np.float64)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probability of each class, averaged over the function and its hyperparameters.

        :param X: The inputs [N, D].
        :returns: [N, C], in the order of ``classes_``.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        return class_probabilities(self._predict_y(X)[0])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label at each input.

        :param X: The inputs [N, D].
        :returns: labels [N].
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]


def warn_if_alike(what: str, values: np.ndarray, scale: bool) -> None:
    """Warn where a first batch fixes a scale, and no column of it [N, C] says anything of one.

    :param what: The name of the values.
    :param scale: Whether there is a scale.
    """
    if scale and (values == values[0]).all():
        warnings.warn(
            f"{what} of the first batch are all alike, and so they fix no scale for the stream: "
            "wanted a typical first batch, or scale=False with data in units of their spread",
            PoorFitWarning,
            stacklevel=4,
        )


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
