"""river's linear models, one point at a time: the floor."""

from __future__ import annotations

from typing import Any

import numpy as np
from river import linear_model, optim

from experiments.benchmarks.methods.learner import NOISE_VARIANCE, Held, Prediction, Setup


class RiverLinear:
    """Linear or logistic regression by stochastic gradients at the given rate.

    The predictive variance of a regression is the mean squared error so far, of predictions made
    before a point was learned.
    """

    def __init__(self, classes: bool, rate: float) -> None:
        self._classes = classes
        optimiser = optim.SGD(rate)
        self._model: Any = (
            linear_model.LogisticRegression(optimiser)
            if classes
            else linear_model.LinearRegression(optimiser)
        )
        self._squares, self._number = NOISE_VARIANCE, 1

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        for x, y in zip(X, Y[:, 0], strict=True):
            point = dict(enumerate(x))
            if not self._classes:
                self._squares += (self._model.predict_one(point) - y) ** 2
                self._number += 1
            self._model.learn_one(point, bool(y) if self._classes else y)

    def predict(self, X: np.ndarray) -> Prediction:
        points = [dict(enumerate(x)) for x in X]
        if self._classes:
            chances = [self._model.predict_proba_one(point)[True] for point in points]
            return Prediction.of_label(np.array(chances))
        mean = np.array([self._model.predict_one(point) for point in points])
        return Prediction(mean, np.full(len(X), self._squares / self._number))

    def held(self) -> Held:
        number = len(self._model.weights) + 1
        return Held(number, "features", 8 * number)


def linear(setup: Setup, thousandths: int) -> RiverLinear:
    return RiverLinear(setup.classes, thousandths / 1000)
