"""Regression."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data

from streaming_gp.defaults import logarithmic_parameters
from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import refuse_masked
from streaming_gp.sklearn.base import StreamingEstimator, scaler, unchanged_on_error, warn_if_alike


class StreamingGPRegressor(RegressorMixin, StreamingEstimator):
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
    :ivar input_scaler_: The map from inputs to scaled units.
    :ivar target_scaler_: The map from targets to scaled units.
    :ivar n_features_in_: The number of inputs D.
    :ivar feature_names_in_: The names of the columns, where X was a data frame.
    """

    target_scaler_: StandardScaler

    def fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPRegressor:
        """Learn from scratch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P].
        :raises ValueError: if they are not finite numbers of these shapes.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            X, Y = self._start_regression(X, y)
            self._learn_in_batches(X, self.target_scaler_.transform(Y))
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> StreamingGPRegressor:
        """Learn from one more batch. If anything raises, the estimator is exactly as it was.

        :param X: The inputs [N, D].
        :param y: The targets [N] or [N, P].
        :raises ValueError: if they are not finite numbers of these shapes, or D or P have changed.
        :raises NumericalError: if a covariance stays indefinite.
        """
        with unchanged_on_error(self):
            if hasattr(self, "model_"):
                X, Y = self._validated(X, y, reset=False)
            else:
                X, Y = self._start_regression(X, y)
                warn_if_alike("inputs", X, self.scale)
                warn_if_alike("targets", Y, self.scale)
            self._learn(X, self.target_scaler_.transform(Y))
        return self

    def _start_regression(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        X, Y = self._validated(X, y, reset=True)
        self.target_scaler_ = scaler(self.scale).fit(Y)
        with logarithmic_parameters():
            self._start(X, gpflow.likelihoods.Gaussian(0.1))
        return X, Y

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        refuse_masked("X", X)
        refuse_masked("y", y)
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

        :param X: The inputs [N, D].
        :param return_std: Whether to return the standard deviation too.
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


def _one_axis_less(values: np.ndarray) -> np.ndarray:
    """[N, 1] as [N]; more columns stay."""
    return values[:, 0] if values.shape[1] == 1 else values
