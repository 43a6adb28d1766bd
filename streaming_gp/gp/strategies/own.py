"""Batches with pseudo-points of their own: all of a strategy but the choice of the points."""

from __future__ import annotations

import abc
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit import Exact
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.points import Candidates
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.strategies import DIVERGENCE
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.budget import within_budget
from streaming_gp.gp.strategies.protocol import Allowed, refuse_memory
from streaming_gp.inputs import is_positive_integer


@dataclass(frozen=True)
class OwnPseudoPoints(abc.ABC):
    """Every batch owns its pseudo-points (PVI 2018, section 6.2); a subclass says where they start.

    A frozen dataclass that defines :meth:`place` is a strategy that works with every bound, with
    budgets, rounds and journals; decorated with :func:`streaming_gp.serialization.storable` also
    with files.

    :param number: The largest number of points that a batch gets.
    :param optimise_locations: Whether the locations are optimised together with the rest.
    :param budget: The largest number of points that all batches may hold together; where a batch
        exceeds it, earlier factors are projected onto fewer points, so that an endless stream costs
        what its budget does. None for no budget.
    :raises InvalidDataError: if the numbers are not positive integers, or the budget does not hold
        twice a batch's points.
    """

    number: int
    optimise_locations: bool = True
    budget: int | None = None

    def __post_init__(self) -> None:
        if not is_positive_integer(self.number):
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, got {self.number!r}"
            )
        self._check_budget(self.number)

    def _check_budget(self, largest_batch: int) -> None:
        if self.budget is not None and self.budget < 2 * largest_batch:
            raise InvalidDataError(
                f"a budget must hold at least twice a batch's pseudo-points, got {self.budget} "
                f"for batches of {self.number!r}"
            )

    @abc.abstractmethod
    def place(self, candidates: Candidates) -> np.ndarray:
        """The pseudo-inputs [M, D] at which the points of a batch start.

        :param candidates: The inputs of the batch, and what is known of f there.
        """

    @property
    def largest_batch(self) -> int:
        """The largest number of points that one batch gets."""
        return self.number

    # ---- the protocol ----

    @property
    def allowed(self) -> Allowed:
        """All, as every factor stands alone; within a budget no sliding window."""
        return Allowed(
            window=None if self.budget is None else 0,
            moves=self.optimise_locations,
            because="its budget merges batches, and bounds their points itself",
        )

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """:raises InvalidDataError: for a point at every input where ε remembers by eq. 93."""
        if type(default) is Exact:
            why = "a point at every input: these have no white noise of their own"
            refuse_memory(hyperparameters, DIVERGENCE, why)
        return default

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> Fitted:
        """On points that start where they were, if the batch has had some.

        Where only a part of its old factor was taken out, they stay there, as what stays of it.
        """
        own = ledger.factors.get(batch.name)
        known = own is not None and len(own.pseudo_observations) == 1
        at = own.pseudo_observations[0] if own is not None and known else None
        holds = at is not None and (batch.hold or question.removed_fraction < 1.0)
        move = self.optimise_locations and not holds
        return fitter.fit(question.cavity, batch, self.place, at, move)

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        if self.budget is None:
            return ledger
        return within_budget(fitter, ledger, self.budget, epsilon, kept, self.optimise_locations)
