"""What regression and classification share."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import gpflow
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from streaming_gp.defaults import default_kernel, default_pseudo_points
from streaming_gp.errors import PoorFitWarning
from streaming_gp.gp import (
    HyperparameterStrategy,
    LocalOptimiser,
    PseudoPointStrategy,
    StreamingGP,
)
from streaming_gp.inputs import refuse_masked

BATCH_SIZE = 1000
"""The number of rows that ``fit`` streams at a time by default."""


class StreamingEstimator(BaseEstimator):
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

    def _start(
        self,
        X: np.ndarray,
        likelihood: gpflow.likelihoods.Likelihood,
        default: PseudoPointStrategy | None = None,
    ) -> None:
        """Fix the scaling of the inputs, and make a model that has seen nothing yet.

        :param default: The strategy where none is given; by default ``default_pseudo_points``.
        """
        if default is None:
            default = default_pseudo_points(min(len(X), self._rows()))
        self.input_scaler_ = scaler(self.scale).fit(X)
        self.model_ = StreamingGP(
            default_kernel(X.shape[1]) if self.kernel is None else copy.deepcopy(self.kernel),
            likelihood,
            pseudo_points=default if self.pseudo_points is None else self.pseudo_points,
            hyperparameters=self.hyperparameters,
            optimiser=self.optimiser,
            num_prediction_samples=self.num_prediction_samples,
            seed=_seed(self.random_state),
        )

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """One batch: inputs [N, D] as they came, observations [N, P] as the model wants them."""
        self.model_.update((self.input_scaler_.transform(X), Y))

    def _rows(self) -> int:
        """Rows at a time.

        :raises ValueError: if ``batch_size`` is no positive integer.
        """
        size = BATCH_SIZE if self.batch_size is None else self.batch_size
        return check_scalar(size, "batch_size", Integral, min_val=1)

    def _learn_in_batches(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Batches of like size of shuffled rows, so that each looks like the whole."""
        order = np.random.default_rng(self.model_.settings.seed).permutation(len(X))
        for rows in np.array_split(order, -(-len(X) // self._rows())):
            rows.sort()
            self._learn(X[rows], Y[rows])

    # ---- prediction ----

    def _predict_y(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [N, P] of the model's observations."""
        check_is_fitted(self)
        refuse_masked("X", X)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        mean, variance = self.model_.predict_y(self.input_scaler_.transform(inputs))
        return np.asarray(mean), np.asarray(variance)

    # ---- pickling: compiled functions stay behind ----

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        model = state.pop("model_", None)
        if model is not None:
            modules = copy.deepcopy((model.kernel, model.likelihood, model.mean_function))
            state["_model_state"] = model.state, modules
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        model_state, modules = state.pop("_model_state", (None, ()))
        super().__setstate__(state)
        if model_state is not None:
            self.model_ = StreamingGP.from_state(model_state, *modules)


def warn_if_alike(what: str, values: np.ndarray, scale: bool) -> None:
    """Warn where a first batch fixes a scaling, and no column of it [N, C] says anything of one.

    :param what: The name of the values.
    :param scale: Whether there is a scaling.
    """
    if scale and (values == values[0]).all():
        warnings.warn(
            f"{what} of the first batch are all alike, and so they fix no scale for the stream: "
            "wanted a typical first batch, or scale=False with data in units of their spread",
            PoorFitWarning,
            stacklevel=4,
        )


def scaler(scale: bool) -> StandardScaler:
    """One that centres and scales columns, or leaves them as they are."""
    return StandardScaler(with_mean=scale, with_std=scale)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    return int(check_random_state(random_state or 0).randint(np.iinfo(np.int32).max))


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
