"""How a surrogate learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP
from streaming_gp.inputs import require_not_negative
from streaming_gp.surrogate.pending import OBSERVED, ROWS
from streaming_gp.surrogate.predictions import Predictions
from streaming_gp.surrogate.rows import Dataset, as_rows


class StreamingSurrogate(Predictions):
    """A model that takes in each observation in milliseconds, and forgets pending ones exactly.

    New rows are absorbed as factors of their own, by linear algebra alone; :meth:`optimize` learns
    hyperparameters from all rows, when these have become so many more. Points whose values are
    still to come are factors too, which stand for guesses: :meth:`remove_pending` takes them out,
    and at fixed hyperparameters the model is exactly the one that never had them.

    :param model: A model that has seen no data, with a point at every input
        (``PrivatePseudoPoints("all")``) and Gaussian noise, for which all this is exact.
    :param growth: The share by which rows must have grown for hyperparameters to be learned anew; 0
        for each time.
    :raises InvalidDataError: if the model has seen data, or growth is negative.
    """

    def __init__(self, model: StreamingGP, growth: float = 0.25) -> None:
        require_not_negative("growth", growth)
        if model.num_updates:
            raise InvalidDataError("wanted a model that has seen no data")
        super().__init__(model)
        self._growth = growth
        self._learned_from = 0
        self._dataset: Any = None
        self._X, self._Y = np.zeros((0, 0)), np.zeros((0, 0))

    def update(self, dataset: Dataset | tuple[Any, Any]) -> None:
        """Take in the rows that are new; hyperparameters stay as they are.

        :param dataset: **All** rows, as Trieste gives them, or a pair (X [N, D], Y [N, P]). If it
            does not begin with the rows that are known, what is known is forgotten first.
        :raises InvalidDataError: as :meth:`streaming_gp.StreamingGP.update`; the model is as it
            was then.
        """
        X, Y = as_rows(dataset)
        known = len(self._X) if self._goes_on(X, Y) else 0
        with self._all_or_nothing():
            if known == 0:
                self._forget([name for name in self.model.factors if name not in self._pending])
            if len(X) > known:
                name = f"{ROWS}{known}" if OBSERVED in self.model.factors else OBSERVED
                self.model.update((X[known:], Y[known:]), batch_id=name, learn=False)
        if known == 0:
            self._learned_from = 0
        self._X, self._Y, self._dataset = X, Y, dataset

    def optimize(self, dataset: Dataset | tuple[Any, Any]) -> None:
        """Learn hyperparameters from all rows, if these have grown by so much since the last time.

        Pending points have no part in that.

        :param dataset: All rows, as in :meth:`update`, which need not have been called.
        :raises InvalidDataError: as :meth:`update`.
        :raises NumericalError: as :meth:`streaming_gp.StreamingGP.update`; the model is as it was
            then.
        """
        X, Y = as_rows(dataset)
        learned_from = self._learned_from if self._goes_on(X, Y) else 0
        if len(X) >= max(1.0, (1.0 + self._growth) * learned_from):
            self._learn(X, Y)
            self._dataset = dataset
        else:
            self.update(dataset)

    def get_internal_data(self) -> Any:
        """The rows as they came."""
        return self._dataset

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """All rows as one factor, with hyperparameters of their own; pending points come back."""
        with self._all_or_nothing():
            self._forget([name for name in self.model.factors if name != OBSERVED])
            if OBSERVED in self.model.factors:
                self.model.revisit(OBSERVED, (X, Y))
            else:
                self.model.update((X, Y), batch_id=OBSERVED, learn=True)
            for name, data in self._pending.items():
                self.model.update(data, batch_id=name, learn=False)
        self._X, self._Y, self._learned_from = X, Y, len(X)

    def _goes_on(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """Whether these rows begin with those that are known."""
        known = len(self._X)
        return np.array_equal(X[:known], self._X) and np.array_equal(Y[:known], self._Y)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Several changes of the model count as one."""
        before = self.model.ledger
        try:
            yield
        except BaseException:
            if self.model.ledger is not before:
                self.model.adopt(before)
            raise
