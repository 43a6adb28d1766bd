"""How much worse a model becomes on points that it has learned."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming_gp.evaluate.learner import Learner
from streaming_gp.evaluate.losses import losses


class KeptBatch(NamedTuple):
    """Kept points of a batch, and their mean losses [2] right after it was learned."""

    X: np.ndarray
    Y: np.ndarray
    losses: np.ndarray


class KeptBatches:
    """A bounded random sample of batches, and of their points (Vitter 1985, algorithm R).

    :param num_points: The largest number of points kept of a batch.
    :param num_batches: The largest number of batches of which points are kept.
    :param seed: The seed of the sample.
    """

    def __init__(self, num_points: int, num_batches: int, seed: int) -> None:
        self._num_points, self._num_batches = num_points, num_batches
        self._rng = np.random.default_rng(seed)
        self._kept: list[KeptBatch] = []
        self._seen = 0

    def growth(
        self, model: Learner, X: np.ndarray, Y: np.ndarray
    ) -> tuple[float | None, float | None]:
        """Mean growth of both losses of earlier batches, if any; then the batch is kept, too.

        :param model: A model that has just learned the batch.
        :param X: The inputs of the batch [N, D].
        :param Y: The targets of the batch [N, P].
        """
        if not self._num_points or not self._num_batches:
            return None, None
        rows = self._rng.permutation(len(X))[: self._num_points]
        samples = [*((kept.X, kept.Y) for kept in self._kept), (X[rows], Y[rows])]
        now = _mean_losses(model, samples)
        grown = [later - kept.losses for later, kept in zip(now, self._kept, strict=False)]
        self._keep(KeptBatch(*samples[-1], now[-1]))
        return tuple(np.mean(grown, axis=0).tolist()) if grown else (None, None)

    def _keep(self, batch: KeptBatch) -> None:
        self._seen += 1
        if len(self._kept) < self._num_batches:
            self._kept.append(batch)
        elif (place := int(self._rng.integers(self._seen))) < self._num_batches:
            self._kept[place] = batch


def _mean_losses(model: Learner, samples: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Mean losses [2] of each sample, all predicted at once."""
    X, Y = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    cuts = np.cumsum([len(sample[0]) for sample in samples])[:-1]
    return [part.mean(axis=0) for part in np.split(losses(model, X, Y), cuts)]
