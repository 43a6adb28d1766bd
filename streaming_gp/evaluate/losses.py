"""Losses of single points, by what the model's likelihood says that it predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpflow.likelihoods import Bernoulli

from streaming_gp.errors import InvalidDataError
from streaming_gp.evaluate.learner import HasLikelihood, Learner
from streaming_gp.metrics import on_wrong_side, squared_error, wrong_class
from streaming_gp.validation import SEVERAL_CLASSES, number_of_classes


def losses(model: Learner, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Squared error or 0/1 loss, mean over outputs, and −log density, of every point: [N, 2]."""
    density = as_matrix(model.predict_log_density((X, Y))).sum(axis=1)  # it checks the batch, too
    loss = _loss(likelihood_of(model), as_matrix(model.predict_y(X)[0]), as_matrix(Y))
    return np.stack([loss.mean(axis=1), -density], axis=1)


def _loss(likelihood: Any, mean: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Losses [N, P], or [N, 1] for several classes, of which the means [N, C] are probabilities."""
    if isinstance(likelihood, SEVERAL_CLASSES):
        return wrong_class(mean, targets)[:, None]
    if mean.shape[1] not in (1, targets.shape[1]):  # 1: before any data P may be unknown
        raise InvalidDataError(
            f"predict_y gave means of {mean.shape[1]} outputs for targets of {targets.shape[1]}"
        )
    if isinstance(likelihood, Bernoulli):
        return on_wrong_side(mean, targets)
    return squared_error(mean, targets)


def as_matrix(values: Any) -> np.ndarray:
    """Values [N] or [N, P] as floats [N, P]."""
    array = np.asarray(values, float)
    return array.reshape(len(array), -1)


def likelihood_of(model: Learner) -> Any:
    """The model's likelihood, or None."""
    return model.likelihood if isinstance(model, HasLikelihood) else None


def is_regression(model: Learner) -> bool:
    """Whether squared errors are the losses, and not errors of classification."""
    return number_of_classes(likelihood_of(model)) is None
