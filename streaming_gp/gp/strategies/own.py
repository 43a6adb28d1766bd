"""Batches with pseudo-points of their own: all of a strategy but the choice of the points."""

from __future__ import annotations

import abc
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Exact
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.point import DIVERGENCE
from streaming_gp.gp.process.observations import Observations
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.strategies.budget import compressed, within_budget
from streaming_gp.gp.strategies.memory import refuse_memory
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
        would exceed it, earlier factors are first projected onto fewer points, so that an endless
        stream costs what its budget does. None for no budget.
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

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """:raises InvalidDataError: for a point at every input where ε remembers by eq. 93."""
        if type(default) is Exact:
            why = "a point at every input: these have no white noise of their own"
            refuse_memory(hyperparameters, DIVERGENCE, why)
        return default

    def visit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        own = ledger.factors.get(batch.name)
        if question.removed_fraction < 1.0:  # what stays of the old factor is on the old points
            batch = replace(batch, hold=True)
        return ledger, *self.fit_alone(fitter, question.cavity, batch, own)

    def fit_alone(
        self, fitter: Fitter, cavity: Process, batch: Batch, own: PseudoPointFactor | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        at = _points_of(own)
        move = self.optimise_locations and not (batch.hold and at is not None)
        factor, report = fitter.fit(cavity, batch, self.place, at, move)
        kept = fitter.of_what_is_kept(cavity, batch, factor, report)
        constant = factor.log_scale + kept.free_energy - report.free_energy
        return replace(factor, log_scale=constant), kept

    def merge(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        if self.budget is None:
            return ledger
        return within_budget(fitter, ledger, self.budget, epsilon, kept, self.optimise_locations)

    def compressed(
        self, fitter: Fitter, ledger: GPLedger, number: int, epsilon: np.ndarray
    ) -> tuple[GPLedger, float]:
        return compressed(fitter, ledger, number, epsilon, self.optimise_locations)

    def check_change(self, ledger: GPLedger, name: str) -> None:  # noqa: B027
        """Every factor stands alone: nothing to refuse."""

    def check_apart(self, num_batches: int) -> None:
        """:raises InvalidDataError: for a window of batches within a budget, which merges them."""
        if num_batches > 0 and self.budget is not None:
            raise InvalidDataError(
                "a sliding window wants batches that stay apart, and bounds the number of points "
                f"itself; got {self}, whose budget merges batches"
            )

    def check_round(self) -> None:  # noqa: B027
        """Every factor stands alone: nothing to refuse."""


def _points_of(own: PseudoPointFactor | None) -> Observations | None:
    """The points that a batch has had before, if its factor is on one set of them."""
    if own is None or len(own.pseudo_observations) != 1:
        return None
    return own.pseudo_observations[0]
