"""Classification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import gpflow
import numpy as np
from river import base

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import (
    HyperparameterStrategy,
    LearningSchedule,
    LocalOptimiser,
    PrivatePseudoPoints,
    PseudoPointStrategy,
)
from streaming_gp.river.base import LearnsInBatches, Row, rows_of, scaled_inputs
from streaming_gp.river.features import checked

if TYPE_CHECKING:
    import pandas as pd


class StreamingGPClassifier(LearnsInBatches, base.MiniBatchClassifier):
    """Streaming GP classification, behind river's interface.

    Rows wait until they are ``batch_size``, and are then learned together; predictions are those of
    the batches so far. Before the first batch is full, probabilities are the frequencies of the
    labels, each counted once more than it came. Features and scaling are as in
    :class:`StreamingGPRegressor`.

    Labels are True and False, or those that ``classes`` names, all of which must be known at the
    start; for labels that appear later, put it into river's ``multiclass.OneVsRestClassifier``. Two
    classes get one latent function and a probit likelihood, several a function each and a softmax.

    :param classes: The labels.
    :param kernel: A GPflow kernel over scaled inputs, copied before it is fitted; by default a
        squared exponential with one lengthscale for each input.
    :param pseudo_points: A strategy; by default ten points a batch, and 100 at most.
    :param hyperparameters: A strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: The settings of the fit of each batch.
    :param learning: Which batches learn hyperparameters; by default all until they settle, and then
        one of twenty.
    :param batch_size: The number of rows that are learned together.
    :param features: The names of the inputs, where the first batch may not have them all.
    :param scale: Whether to scale. If not, a missing feature is at 0.
    :param seed: The seed of all random numbers.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer, or there are not at least
        two classes.
    """

    def __init__(
        self,
        classes: tuple[Hashable, ...] = (False, True),
        kernel: gpflow.kernels.Kernel | None = None,
        pseudo_points: PseudoPointStrategy | None = None,
        hyperparameters: HyperparameterStrategy | None = None,
        optimiser: LocalOptimiser | None = None,
        learning: LearningSchedule | None = None,
        batch_size: int = 100,
        features: tuple[Hashable, ...] | None = None,
        scale: bool = True,
        seed: int = 0,
    ) -> None:
        self.classes = classes
        self.kernel = kernel
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.optimiser = optimiser
        self.learning = learning
        self.batch_size = batch_size
        self.features = features
        self.scale = scale
        self.seed = seed
        if len(set(classes)) != len(classes) or len(classes) < 2:
            raise InvalidDataError(f"classes must be at least two different labels, got {classes}")
        self._start()

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
        self._take([(checked(x), self._number_of(y))])

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from several rows, to the same end as from one after another.

        :param X: A frame whose columns are features.
        :param y: The labels.
        :raises InvalidDataError: as :meth:`learn_one`, or if there are not as many labels as rows.
        """
        rows, labels = rows_of(X), [self._number_of(label) for label in y.tolist()]
        if len(rows) != len(labels):
            raise InvalidDataError(f"got {len(rows)} rows and {len(labels)} labels")
        self._take([*zip(rows, labels, strict=True)])

    def _learn(self, rows: list[Row], targets: list[Any]) -> None:
        Y = np.array(targets, dtype=float)[:, None]
        if self._model is not None:
            self._model.update((self._as_inputs(rows), Y))
            return
        names, inputs = self._first_inputs(rows)
        several = len(self.classes) > 2
        softmax, bernoulli = gpflow.likelihoods.Softmax, gpflow.likelihoods.Bernoulli
        likelihood = softmax(len(self.classes)) if several else bernoulli()
        model = self._new_model(len(names), likelihood, PrivatePseudoPoints(10, budget=100))
        model.update((scaled_inputs(rows, names, inputs), Y))
        self._model, self._names, self._inputs = model, names, inputs

    def _number_of(self, label: Any) -> int:
        if label not in self.classes:
            raise InvalidDataError(
                f"the label {label!r} is none of the classes {self.classes}: name all of them, or "
                "use river's multiclass.OneVsRestClassifier"
            )
        return self.classes.index(label)

    # ---- prediction ----

    def predict_proba_one(self, x: dict[Hashable, Any], **_: Any) -> dict[Hashable, float]:
        """The probability of each label at x.

        :param x: Numbers by name.
        :raises InvalidDataError: if a value is no finite number.
        """
        probabilities = self._probabilities([checked(x)])[0].tolist()
        return dict(zip(self.classes, probabilities, strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probability of each label in each row of a frame, under the frame's own index."""
        import pandas as pd

        found = self._probabilities(rows_of(X))
        return pd.DataFrame(found, index=X.index, columns=pd.Index(list(self.classes)))

    def _probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """[N, C], in the order of the classes."""
        if not rows:
            return np.zeros((0, len(self.classes)))
        if self._model is None:
            counts = Counter(label for _, label in self._waiting)
            seen = np.array([1.0 + counts[number] for number in range(len(self.classes))])
            return np.tile(seen / seen.sum(), (len(rows), 1))
        mean = np.asarray(self._model.predict_y(self._as_inputs(rows))[0])
        both = np.hstack([1.0 - mean, mean]) if len(self.classes) == 2 else mean
        return both / both.sum(axis=1, keepdims=True)
