"""scikit-learn estimators over :class:`~streaming_gp.StreamingGP`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any

import gpflow
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import LocalOptimiser, PrivatePseudoPoints, StreamingGP
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.persistence import model_from, state_of
from streaming_gp.gp.pseudo_points import PseudoPointStrategy

BATCH_SIZE = 1000
"""Rows that ``fit`` streams at a time by default."""


class _StreamingEstimator(BaseEstimator):
    """What regression and classification share: parameters, scaling of the inputs, the model."""

    model_: StreamingGP
    input_scaler_: StandardScaler

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

    # ---- learning ----

    def _start(self, X: np.ndarray, likelihood: gpflow.likelihoods.Likelihood) -> None:
        """Fix the scaling of the inputs, and make a model that has seen nothing yet."""
        self.input_scaler_ = _scaler(self.scale).fit(X)
        self.model_ = StreamingGP(
            default_kernel(X.shape[1]) if self.kernel is None else copy.deepcopy(self.kernel),
            likelihood,
            pseudo_points=self.pseudo_points or default_pseudo_points(min(len(X), self._rows())),
            hyperparameters=self.hyperparameters,
            optimiser=self.optimiser,
            num_prediction_samples=self.num_prediction_samples,
            seed=_seed(self.random_state),
        )

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """One batch: inputs [N, D] as they came, observations [N, P] as the model wants them."""
        self.model_.update((self.input_scaler_.transform(X), Y))
        _let_graphs_go(self.model_)

    def _rows(self) -> int:
        """Rows at a time.

        :raises ValueError: if ``batch_size`` is no positive integer.
        """
        size = BATCH_SIZE if self.batch_size is None else self.batch_size
        return check_scalar(size, "batch_size", Integral, min_val=1)

    def _learn_in_batches(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Batches of like size of shuffled rows, so that each looks like the whole."""
        order = np.random.default_rng(self.model_.seed).permutation(len(X))
        for rows in np.array_split(order, -(-len(X) // self._rows())):
            rows.sort()
            self._learn(X[rows], Y[rows])

    # ---- prediction ----

    def _predict_y(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [N, P] of the model's observations."""
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        mean, variance = self.model_.predict_y(self.input_scaler_.transform(inputs))
        _let_graphs_go(self.model_)
        return np.asarray(mean), np.asarray(variance)

    # ---- pickling: compiled functions stay behind ----

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        model = state.pop("model_", None)
        if model is not None:
            modules = copy.deepcopy((model.kernel, model.likelihood, model.mean_function))
            state["_model_state"] = state_of(model), modules
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        model_state, modules = state.pop("_model_state", (None, ()))
        super().__setstate__(state)
        if model_state is not None:
            self.model_ = model_from(model_state, *modules)


class StreamingGPRegressor(RegressorMixin, _StreamingEstimator):
    """Streaming GP regression with Gaussian noise, behind scikit-learn's interface.

    ``fit`` learns from scratch, streaming X through in batches; ``partial_fit`` continues with one
    more batch, whether after ``fit`` or from nothing. No batch is kept. Targets may have several
    columns: outputs share kernel and noise and are independent given them.

    **Scaling.** Inputs and targets are standardised inside, and predictions mapped back. The
    scaling is fixed by all of X and y in ``fit``, and by the first batch in ``partial_fit``, as
    pseudo-points that are placed already cannot be rescaled: let the first batch be typical of the
    stream. Columns that are constant there are only centred.

    :param kernel: a GPflow kernel over scaled inputs, copied before it is fitted; by default
        :func:`default_kernel`, a squared exponential with one lengthscale for each input.
    :param pseudo_points: a strategy such as :class:`~streaming_gp.PrivatePseudoPoints`; by default
        :func:`default_pseudo_points`, of which there are not more than 300 however long the stream.
    :param hyperparameters: a strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: how each batch is fitted: a :class:`~streaming_gp.LocalOptimiser`.
    :param batch_size: rows that ``fit`` streams at a time, at most; 1000 by default.
    :param scale: whether to scale. If not, lengthscales, noise and priors are in your own units.
    :param num_prediction_samples: values of the hyperparameters over which predictions are
        averaged; even.
    :param random_state: of all random numbers. With None these are the same in every fit, and
        NumPy's global state is not touched.

    :ivar model_: the :class:`~streaming_gp.StreamingGP`, in scaled units.
    :ivar input_scaler_: maps inputs to scaled units.
    :ivar target_scaler_: maps targets to scaled units.
    :ivar n_features_in_: D.
    :ivar feature_names_in_: names of the columns, where X was a data frame.
    """

    target_scaler_: StandardScaler

    def fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPRegressor:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: inputs [N, D].
        :param y: targets [N] or [N, P].
        :raises ValueError: if they are not finite numbers of these shapes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with _unchanged_on_error(self):
            X, Y = self._start_regression(X, y)
            self._learn_in_batches(X, self.target_scaler_.transform(Y))
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPRegressor:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: inputs [N, D].
        :param y: targets [N] or [N, P].
        :raises ValueError: if they are not finite numbers of these shapes, or D or P have changed.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with _unchanged_on_error(self):
            if hasattr(self, "model_"):
                X, Y = self._validated(X, y, reset=False)
            else:
                X, Y = self._start_regression(X, y)
            self._learn(X, self.target_scaler_.transform(Y))
        return self

    def _start_regression(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        X, Y = self._validated(X, y, reset=True)
        self.target_scaler_ = _scaler(self.scale).fit(Y)
        with _logarithmic_parameters():
            self._start(X, gpflow.likelihoods.Gaussian(0.1))
        return X, Y

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = validate_data(
            self, X, y, reset=reset, dtype=np.float64, multi_output=True, y_numeric=True
        )
        Y = targets.reshape(len(targets), -1)
        if not reset and Y.shape[1] != self.target_scaler_.n_features_in_:
            raise InvalidDataError(
                f"y must have {self.target_scaler_.n_features_in_} outputs as before, "
                f"got {Y.shape[1]}"
            )
        return inputs, Y

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of a new observation y at each input, and its standard deviation.

        The deviation is that of y, noise included, as scikit-learn's own
        ``GaussianProcessRegressor`` gives it where a ``WhiteKernel`` learns the noise;
        ``model_.predict_f`` has that of the function alone, in scaled units.

        :param X: inputs [N, D].
        :param return_std: whether to return the standard deviation too.
        :returns: mean [N], or [N, P] with several outputs, in units of y; with ``return_std`` also
            the standard deviation, of the same shape.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        mean, variance = self._predict_y(X)
        y_mean = _one_axis_less(self.target_scaler_.inverse_transform(mean))
        if not return_std:
            return y_mean
        unit = 1.0 if self.target_scaler_.scale_ is None else self.target_scaler_.scale_
        return y_mean, _one_axis_less(unit * np.sqrt(variance))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class StreamingGPClassifier(ClassifierMixin, _StreamingEstimator):
    """Streaming GP classification, behind scikit-learn's interface.

    Two classes get one latent function and a probit (Bernoulli) likelihood, several get a latent
    function each, with a shared kernel, and a softmax likelihood. Labels may be of any type that
    can be sorted. ``fit``, ``partial_fit`` and the scaling of inputs are as in
    :class:`StreamingGPRegressor`.

    :param kernel: as in :class:`StreamingGPRegressor`; so are all further parameters.

    :ivar classes_: the labels, sorted.
    :ivar model_: the :class:`~streaming_gp.StreamingGP`, over scaled inputs and numbered labels.
    :ivar input_scaler_: maps inputs to scaled units.
    :ivar n_features_in_: D.
    :ivar feature_names_in_: names of the columns, where X was a data frame.
    """

    classes_: np.ndarray

    def fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPClassifier:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: inputs [N, D].
        :param y: labels [N] of at least two classes.
        :raises ValueError: if X is not a finite matrix, or y does not hold labels of classes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with _unchanged_on_error(self):
            X, y = self._validated(X, y, reset=True)
            self._start_classification(X, y)
            self._learn_in_batches(X, self._numbered(y))
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> StreamingGPClassifier:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: inputs [N, D].
        :param y: labels [N].
        :param classes: all labels that the stream will hold, at least two; wanted in the first
            call, and not changed later.
        :raises ValueError: if X is not a finite matrix of D columns, y holds other labels, or
            ``classes`` is missing in the first call or differs in a later one.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with _unchanged_on_error(self):
            is_first = not hasattr(self, "model_")
            X, y = self._validated(X, y, reset=is_first)
            if is_first:
                if classes is None:
                    raise InvalidDataError("classes must be given in the first partial_fit")
                self._start_classification(X, classes)
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise InvalidDataError(
                    f"classes were {self.classes_} and cannot change, got {np.unique(classes)}"
                )
            self._learn(X, self._numbered(y))
        return self

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        return inputs, labels

    def _start_classification(self, X: np.ndarray, labels: ArrayLike) -> None:
        self.classes_ = np.unique(column_or_1d(labels))
        if len(self.classes_) < 2:
            raise InvalidDataError(
                f"a classifier needs at least 2 classes, got {len(self.classes_)} class: "
                f"{self.classes_}"
            )
        several = len(self.classes_) > 2
        softmax = gpflow.likelihoods.Softmax
        self._start(X, softmax(len(self.classes_)) if several else gpflow.likelihoods.Bernoulli())

    def _numbered(self, y: np.ndarray) -> np.ndarray:
        """Labels as numbers of their classes: [N, 1].

        :raises ValueError: if one is of no class.
        """
        return LabelEncoder().fit(self.classes_).transform(y)[:, None]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probability of each class, averaged over the function and its hyperparameters.

        :param X: inputs [N, D].
        :returns: [N, C], in the order of ``classes_``.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        probability, _ = self._predict_y(X)
        if len(self.classes_) == 2:
            return np.hstack([1.0 - probability, probability])
        return probability / probability.sum(axis=1, keepdims=True)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label at each input.

        :param X: inputs [N, D].
        :returns: labels [N].
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]


def default_kernel(num_inputs: int) -> gpflow.kernels.Kernel:
    """A squared exponential over standardised inputs, one lengthscale for each.

    They start at ``√D 10^(−1/D)``: the edge of one of ten like cells that share the spread of the
    data. In one dimension that is a tenth of a standard deviation; in many it nears √D, the length
    of a typical input. Automatic pseudo-points are placed by this start, so that too long a one
    leaves a rough function with too few.

    :param num_inputs: D.
    """
    start = np.sqrt(num_inputs) * 10.0 ** (-1.0 / num_inputs)
    with _logarithmic_parameters():
        return gpflow.kernels.SquaredExponential(lengthscales=np.full(num_inputs, start))


def default_pseudo_points(num_rows: int) -> PrivatePseudoPoints:
    """For each batch as many as the bound can gain from: up to a quarter of its rows.

    But up to 30 in any batch, and never more than 100; earlier ones are carried over to fewer
    where all together would exceed 300.

    :param num_rows: of the first batch.
    """
    return PrivatePseudoPoints("auto", max_number=int(np.clip(num_rows // 4, 30, 100)), budget=300)


def _logarithmic_parameters() -> AbstractContextManager[None]:
    """Positive GPflow parameters that are made within have an exponential transform.

    GPflow's default, TFP's softplus, registers a gradient with TensorFlow whenever it is traced,
    and that keeps the graphs of every model ever fitted: too many in a cross-validation.
    """
    return gpflow.config.as_context(replace(gpflow.config.config(), positive_bijector="exp"))


def _let_graphs_go(model: StreamingGP) -> None:
    """Empty the caches of the parameters' transforms, which outlive the model and hold its graphs.

    Graphs of softplus transforms stay: see :func:`_logarithmic_parameters`.
    """
    gpflow.utilities.reset_cache_bijectors(model)


def _scaler(scale: bool) -> StandardScaler:
    return StandardScaler(with_mean=scale, with_std=scale)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    return int(check_random_state(random_state or 0).randint(np.iinfo(np.int32).max))


def _one_axis_less(values: np.ndarray) -> np.ndarray:
    """[N, 1] as [N]; more columns stay."""
    return values[:, 0] if values.shape[1] == 1 else values


@contextmanager
def _unchanged_on_error(estimator: BaseEstimator) -> Iterator[None]:
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
