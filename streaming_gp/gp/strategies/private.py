"""The default: private points that start where the bound gains most."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streaming_gp.arguments import is_positive_integer
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Exact
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.every_input import LearningSample
from streaming_gp.gp.strategies.own import OwnPseudoPoints
from streaming_gp.gp.strategies.selection import greedy_gain
from streaming_gp.serialization import storable

FEW = 40
"""Once a budget is exceeded, ε is learned on so many points of a batch."""


@storable
@dataclass(frozen=True)
class PrivatePseudoPoints(OwnPseudoPoints):
    """Every batch owns its pseudo-points (PVI 2018, section 6.2).

    They start at the inputs by which the bound gains most.

    :param number: The number of points for each batch; ``"auto"`` for as many as the bound can
        still gain from; ``"all"`` for one at every input, which is exact and moves none.
    :param optimise_locations: Whether the locations are optimised together with the rest.
    :param budget: The largest number of points that all batches may hold together; None for no
        budget. See :class:`OwnPseudoPoints`. With ``"all"`` every batch keeps a point at each input
        until the budget is reached; then the points that matter least go, and what they said is
        projected onto the others. The newest batches that hold a tenth of the budget stay apart.
    :param tolerance: For ``"auto"``: the nats for each datum that may be left ungained.
    :param max_number: For ``"auto"``: the largest number of points in one batch.
    :param sample: For ``"all"``: what hyperparameters are learned from; by default a point at
        every input of the sample until the budget is exceeded, and 40 points from then on.
    :raises InvalidDataError: if an argument is out of its range.
    """

    number: int | Literal["all", "auto"]  # type: ignore[assignment]
    optimise_locations: bool = True
    budget: int | None = None
    tolerance: float = 0.01
    max_number: int = 30
    sample: LearningSample | None = None

    def __post_init__(self) -> None:
        if self.number not in ("all", "auto") and not is_positive_integer(self.number):
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, 'all' or 'auto', "
                f"got {self.number!r}"
            )
        if not (self.tolerance > 0.0 and self.max_number > 0):
            raise InvalidDataError("tolerance and max_number must be positive")
        if self.number != "all":
            self._check_budget(self.largest_batch)
        elif self.budget is not None and not is_positive_integer(self.budget):
            raise InvalidDataError(f"a budget must be a positive integer, got {self.budget!r}")

    @property
    def largest_batch(self) -> int:
        return self.max_number if self.number == "auto" else int(self.number)

    def _sample_of(self, batch: Batch, cavity: Process) -> LearningSample:
        """All points while all are kept; then as few as a batch will keep of its own."""
        if self.sample is not None:
            return self.sample
        number = len(batch.data[0]) + cavity.num_pseudo_points
        fits = self.budget is None or number <= self.budget
        return LearningSample() if fits else LearningSample(num_points=FEW)

    def place(self, candidates: Candidates) -> np.ndarray:
        if self.number == "all":
            return candidates.inputs
        tolerance = self.tolerance if self.number == "auto" else 0.0
        return candidates.inputs[greedy_gain(candidates, self.largest_batch, tolerance)]

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """The exact bound where every input has a point."""
        return Exact() if self.number == "all" else default

    def fit_alone(
        self, fitter: Fitter, cavity: Process, batch: Batch, own: PseudoPointFactor | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        if self.number == "all":
            return every_input.fitted(fitter, cavity, batch, self._sample_of(batch, cavity))
        return super().fit_alone(fitter, cavity, batch, own)

    def make_room(
        self,
        fitter: Fitter,
        ledger: GPLedger,
        epsilon: np.ndarray,
        num_batches: int = 1,
        kept: Collection[str] = (),
    ) -> GPLedger:
        if self.number == "all":
            return ledger
        return super().make_room(fitter, ledger, epsilon, num_batches, kept)

    def merge(self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray) -> GPLedger:
        if self.number == "all" and self.budget is not None:
            return every_input.within(fitter, ledger, epsilon, self.budget)
        return ledger

    def check_round(self) -> None:
        """:raises InvalidDataError: for a point at every input within a budget."""
        if self.number == "all" and self.budget is not None:
            raise InvalidDataError(
                "batches of a round are visited again, and a budget merges batches that have a "
                f"pseudo-point at every input; got {self}"
            )
