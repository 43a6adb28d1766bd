"""Regression."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import gpflow
import numpy as np
from river import base, proba

from streaming_gp.defaults import logarithmic_parameters
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import (
    HyperparameterStrategy,
    LearningSchedule,
    LocalOptimiser,
    OnlineGP,
    PrivatePseudoPoints,
    PseudoPointStrategy,
)
from streaming_gp.river.base import LearnsInBatches, Row, rows_of, scaled_inputs
from streaming_gp.river.features import as_number, checked
from streaming_gp.scaling import Scaling

if TYPE_CHECKING:
    import pandas as pd

LEAST_NOISE = 1e-4
"""The least variance of the noise in scaled units: rows learned one at a time want some."""


class StreamingGPRegressor(LearnsInBatches, base.MiniBatchRegressor):
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
    The deviation of the noise is at least a hundredth of that of the first batch's targets.

    :param kernel: A GPflow kernel over scaled inputs, copied before it is fitted; by default a
        squared exponential with one lengthscale for each input.
    :param pseudo_points: A strategy whose factors stand alone; by default one point at every input,
        and 300 at most.
    :param hyperparameters: A strategy; :class:`~streaming_gp.VariationalHyperparameters` by
        default.
    :param optimiser: The settings of the fit of each batch.
    :param learning: Which batches learn hyperparameters; by default all until they settle, and then
        one of twenty.
    :param batch_size: The number of rows that are learned together.
    :param budget: The largest number of points that predictions rest on.
    :param features: The names of the inputs, where the first batch may not have them all.
    :param scale: Whether to scale. If not, a missing feature is at 0.
    :param seed: The seed of all random numbers.
    :raises InvalidDataError: if ``batch_size`` is not a positive integer.
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel | None = None,
        pseudo_points: PseudoPointStrategy | None = None,
        hyperparameters: HyperparameterStrategy | None = None,
        optimiser: LocalOptimiser | None = None,
        learning: LearningSchedule | None = None,
        batch_size: int = 50,
        budget: int = 400,
        features: tuple[Hashable, ...] | None = None,
        scale: bool = True,
        seed: int = 0,
    ) -> None:
        self.kernel = kernel
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.optimiser = optimiser
        self.learning = learning
        self.batch_size = batch_size
        self.budget = budget
        self.features = features
        self.scale = scale
        self.seed = seed
        self._targets: Scaling | None = None
        self._online: OnlineGP | None = None
        self._start()

    # ---- learning ----

    def learn_one(self, x: dict[Hashable, Any], y: float) -> None:
        """Learn from one row. If it is refused, nothing has changed.

        :param x: Numbers by name.
        :param y: The target.
        :raises InvalidDataError: if a value is no finite number, or the target is missing.
        :raises NumericalError: if a batch is full and a covariance stays indefinite.
        """
        row, target = checked(x), _target(y)
        online, is_last = self._at_hand(), len(self._waiting) + 1 >= self.batch_size
        if online is not None and not is_last:
            online.update(*self._scaled(row, target))
        if self._take([(row, target)]):
            self._online = None

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from several rows, to the same end as from one after another.

        :param X: A frame whose columns are features.
        :param y: The targets.
        :raises InvalidDataError: as :meth:`learn_one`, or if there are not as many targets as rows.
        """
        rows, targets = rows_of(X), [_target(one) for one in y.tolist()]
        if len(rows) != len(targets):
            raise InvalidDataError(f"got {len(rows)} rows and {len(targets)} targets")
        self._online = None
        self._take([*zip(rows, targets, strict=True)])

    def _learn(self, rows: list[Row], targets: list[Any]) -> None:
        Y = np.array(targets)[:, None]
        if self._model is not None:
            assert self._targets is not None
            self._model.update((self._as_inputs(rows), self._targets.scaled(Y)))
            return
        names, inputs = self._first_inputs(rows)
        scaling = Scaling.of(Y, self.scale)
        with logarithmic_parameters():
            floor = LEAST_NOISE if self.scale else None
            likelihood = gpflow.likelihoods.Gaussian(0.1, variance_lower_bound=floor)
        points = PrivatePseudoPoints("all", budget=max(self.budget - self.batch_size, 50))
        model = self._new_model(len(names), likelihood, points)
        model.update((scaled_inputs(rows, names, inputs), scaling.scaled(Y)))
        model.online(self.budget)  # refuses what cannot learn one row at a time
        self._model, self._names, self._inputs, self._targets = model, names, inputs, scaling

    # ---- one row at a time ----

    def _at_hand(self) -> OnlineGP | None:
        """All that was learned, the rows that wait among it; None before the first batch."""
        if self._online is None and self._model is not None:
            self._online = self._model.online(self.budget)
            for row, target in self._waiting:
                self._online.update(*self._scaled(row, target))
        return self._online

    def _scaled(self, row: Row, target: float) -> tuple[np.ndarray, np.ndarray]:
        assert self._targets is not None
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
        mean, variance = self._predicted(checked(x))
        if not with_dist:
            return mean
        return proba.Gaussian._from_state(n=1, m=mean, sig=variance, ddof=0)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The mean of the target in each row of a frame, under the frame's own index."""
        import pandas as pd

        means = [self._predicted(row)[0] for row in rows_of(X)]
        return pd.Series(means, index=X.index, dtype=float)

    def _predicted(self, row: Row) -> tuple[float, float]:
        """Mean and variance of a new observation."""
        online = self._at_hand()
        if online is None:
            known = np.array([target for _, target in self._waiting] or [0.0])
            return float(known.mean()), float(known.var()) or 1.0
        assert self._model is not None
        assert self._targets is not None
        mean, variance = online.predict(self._as_inputs([row])[0])
        noise = float(self._model.likelihood.variance.numpy())
        unit = float(self._targets.unit[0])
        return float(self._targets.original(mean)[0]), unit**2 * (float(variance[0]) + noise)

    def __getstate__(self) -> dict[str, Any]:
        """What is at hand is made again from the model and the rows that wait."""
        return {**vars(self), "_online": None}


def _target(value: Any) -> float:
    number = as_number("the target", value)
    if np.isnan(number):
        raise InvalidDataError("the target is missing: leave the row out")
    return number
