"""Where a batch puts its pseudo-points, and what becomes of earlier ones: the protocol."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

import numpy as np

from streaming_gp import pvi
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.process.process import Process, PseudoPointFactor

MERGED = "merged"
"""Name of the factor that holds the batches whose own factors are kept no longer."""


@runtime_checkable
class PseudoPointStrategy(Protocol):
    """How a batch enters the ledger: a frozen dataclass of plain fields.

    :class:`~streaming_gp.OwnPseudoPoints` has all of this but the choice of points.
    """

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """The bound that batches are fitted by.

        :param default: The model's own bound.
        :param hyperparameters: What is learned about ε.
        :raises InvalidDataError: if these do not go with the strategy.
        """
        ...

    def visit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        """Fit a batch under the cavity of a question.

        :returns: the ledger that the new factor belongs into, which is another one only if earlier
            factors were projected onto other points or learned ε with it; the factor, undamped;
            and what was done.
        """
        ...

    def fit_alone(
        self, fitter: Fitter, cavity: Process, batch: Batch, own: PseudoPointFactor | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        """Fit a batch for a client that does not know the ledger.

        :param cavity: Prior times all other factors.
        :param own: The client's present factor, if it has one.
        :raises InvalidDataError: if factors of this strategy rest on one another.
        """
        ...

    def merge(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        """The ledger with no more factors and points than the strategy keeps.

        :param epsilon: The ε [E] at which factors are projected, if they are.
        :param kept: Names of factors that must stay as they are.
        :raises InvalidDataError: if these leave no room.
        """
        ...

    def compressed(
        self, fitter: Fitter, ledger: GPLedger, number: int, epsilon: np.ndarray
    ) -> tuple[GPLedger, float]:
        """The ledger as one factor on at most ``number`` points, and the nats that this loses.

        :raises InvalidDataError: if factors of this strategy cannot be compressed.
        """
        ...

    def check_change(self, ledger: GPLedger, name: str) -> None:
        """Refuse to revisit or remove a factor on which others rest.

        :raises InvalidDataError: if others do.
        """
        ...

    def check_apart(self, num_batches: int) -> None:
        """Refuse that factors of earlier batches fade or go one by one.

        :param num_batches: How many of the newest batches need a factor of their own; 0 where
            batches may be merged.
        :raises InvalidDataError: if factors rest on one another, or are merged before that.
        """
        ...

    def check_round(self) -> None:
        """Refuse that several batches are fitted under one ledger.

        :raises InvalidDataError: if their factors would rest on one another.
        """
        ...
