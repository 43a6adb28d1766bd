"""What regression and classification share: rows by name, which are learned in batches."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import gpflow
import numpy as np

from streaming_gp.defaults import default_kernel
from streaming_gp.gp import (
    HyperparameterStrategy,
    LearningSchedule,
    LocalOptimiser,
    PseudoPointStrategy,
    StreamingGP,
    UntilSettled,
)
from streaming_gp.inputs import require_positive_integer
from streaming_gp.river.features import checked, matrix, names_in
from streaming_gp.scaling import Scaling

Row = dict[Hashable, float]


class LearnsInBatches:
    """Rows wait until they are a batch, which a :class:`~streaming_gp.StreamingGP` learns.

    The names and the scale of the inputs are those of the first batch.
    """

    kernel: gpflow.kernels.Kernel | None
    pseudo_points: PseudoPointStrategy | None
    hyperparameters: HyperparameterStrategy | None
    optimiser: LocalOptimiser | None
    learning: LearningSchedule | None
    features: tuple[Hashable, ...] | None
    batch_size: int
    scale: bool
    seed: int

    def _start(self) -> None:
        """Nothing is known yet."""
        require_positive_integer("batch_size", self.batch_size)
        self._model: StreamingGP | None = None
        self._names: tuple[Hashable, ...] | None = None
        self._inputs: Scaling | None = None
        self._waiting: list[tuple[Row, Any]] = []

    @property
    def model(self) -> StreamingGP | None:
        """The model of scaled inputs; None before the first batch is full."""
        return self._model

    @property
    def feature_names(self) -> tuple[Hashable, ...] | None:
        """The names of the inputs, in the model's order; None before the first batch is full."""
        return self._names

    # ---- batches ----

    def _take(self, rows: Sequence[tuple[Row, Any]]) -> bool:
        """Learn all whole batches of what waits and these rows; the rest waits.

        :returns: whether there was a batch.
        """
        waiting, size = [*self._waiting, *rows], self.batch_size
        is_full = len(waiting) >= size
        while len(waiting) >= size:
            self._learn([x for x, _ in waiting[:size]], [y for _, y in waiting[:size]])
            waiting = waiting[size:]
            self._waiting = []  # what is learned must not be learned again if a later batch fails
        self._waiting = waiting
        return is_full

    def _learn(self, rows: list[Row], targets: list[Any]) -> None:
        """One batch, the first of which says what the inputs are."""
        raise NotImplementedError

    def _first_inputs(self, rows: list[Row]) -> tuple[tuple[Hashable, ...], Scaling]:
        """The inputs and their scale, as the first batch has them."""
        names = names_in(rows) if self.features is None else tuple(self.features)
        return names, Scaling.of(matrix(rows, names), self.scale)

    def _new_model(
        self, num_inputs: int, likelihood: Any, pseudo_points: PseudoPointStrategy
    ) -> StreamingGP:
        kernel = default_kernel(num_inputs) if self.kernel is None else copy.deepcopy(self.kernel)
        return StreamingGP(
            kernel,
            likelihood,
            pseudo_points=self.pseudo_points or pseudo_points,
            hyperparameters=self.hyperparameters,
            optimiser=self.optimiser,
            learning=self.learning or UntilSettled(),
            seed=self.seed,
        )

    # ---- rows ----

    def _as_inputs(self, rows: Sequence[Row]) -> np.ndarray:
        """Scaled inputs [N, D]; a feature that a row does not have is at its mean."""
        assert self._names is not None
        assert self._inputs is not None
        return scaled_inputs(rows, self._names, self._inputs)


def scaled_inputs(rows: Sequence[Row], names: tuple[Hashable, ...], scaling: Scaling) -> np.ndarray:
    """Rows [N, D] in units of the scaling, with 0 where a feature is missing."""
    return np.nan_to_num(scaling.scaled(matrix(rows, names)))


def rows_of(X: Any) -> list[Row]:
    """The rows of a pandas frame, by name."""
    return [checked(row) for row in X.to_dict("records")]
