"""Classification."""

from __future__ import annotations

import gpflow
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import PrivatePseudoPoints
from streaming_gp.inputs import refuse_masked
from streaming_gp.sklearn.base import StreamingEstimator, unchanged_on_error, warn_if_alike

FEWEST_TO_LOOK_SORTED = 10
"""Of fewer labels it is no surprise if they are all alike."""


class StreamingGPClassifier(ClassifierMixin, StreamingEstimator):
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
    :ivar input_scaler_: The map from inputs to scaled units.
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.
    """

    classes_: np.ndarray

    def fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPClassifier:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The labels [N] of at least two classes.
        :raises ValueError: if X is not a finite matrix, or y does not hold labels of classes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            X, y = self._validated(X, y, reset=True)
            self._start_classification(X, y)
            self._learn_in_batches(X, self._numbered(y))
        return self

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
            X, y = self._validated(X, y, reset=is_first)
            if is_first:
                if classes is None:
                    raise InvalidDataError("classes must be given in the first partial_fit")
                looks_sorted = len(y) >= FEWEST_TO_LOOK_SORTED and (y == y[0]).all()
                self._start_classification(X, classes, looks_sorted)
                warn_if_alike("inputs", X, self.scale)
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise InvalidDataError(
                    f"classes were {self.classes_} and cannot change, got {np.unique(classes)}"
                )
            self._learn(X, self._numbered(y))
        return self

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        refuse_masked("X", X)
        refuse_masked("y", y)
        inputs, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        return inputs, labels

    def _start_classification(
        self, X: np.ndarray, labels: ArrayLike, looks_sorted: bool = False
    ) -> None:
        """Make a model of so many classes.

        :param looks_sorted: Whether classes may come one after another. Labels of one class ask
            for few pseudo-points, and few of them say too little once another class comes.
        """
        self.classes_ = np.unique(column_or_1d(labels))
        if len(self.classes_) < 2:
            raise InvalidDataError(
                f"a classifier needs at least 2 classes, got {len(self.classes_)} class: "
                f"{self.classes_}"
            )
        several = len(self.classes_) > 2
        softmax = gpflow.likelihoods.Softmax
        self._start(
            X,
            softmax(len(self.classes_)) if several else gpflow.likelihoods.Bernoulli(),
            PrivatePseudoPoints("all", budget=300) if looks_sorted else None,
        )

    def _numbered(self, y: np.ndarray) -> np.ndarray:
        """Labels as numbers of their classes: [N, 1].

        :raises ValueError: if one is of no class.
        """
        return LabelEncoder().fit(self.classes_).transform(y)[:, None]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probability of each class, averaged over the function and its hyperparameters.

        :param X: The inputs [N, D].
        :returns: [N, C], in the order of ``classes_``.
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        probability, _ = self._predict_y(X)
        if len(self.classes_) == 2:
            return np.hstack([1.0 - probability, probability])
        return probability / probability.sum(axis=1, keepdims=True)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label at each input.

        :param X: The inputs [N, D].
        :returns: labels [N].
        :raises NotFittedError: before ``fit`` or ``partial_fit``.
        """
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]
