"""Private points: those by which the bound gains most, or one at every input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit import Exact
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.points import Candidates, greedy_gain
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.own import OwnPseudoPoints
from streaming_gp.gp.strategies.protocol import Allowed
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class PrivatePseudoPoints(OwnPseudoPoints):
    """Every batch owns its pseudo-points (PVI 2018, section 6.2).

    They start at the inputs by which the bound gains most.

    :param number: The number of points for each batch; ``"auto"``, the default, for as many as the
        bound can still gain from; ``"all"`` for one at every input, which is exact.
    :param optimise_locations: Whether the locations are optimised together with the rest; with
        ``"all"``, whether merged points move to where least is lost.
    :param budget: The largest number of points that all batches may hold together; None for no
        budget. See :class:`OwnPseudoPoints`. With ``"all"`` every batch keeps a point at each input
        until the budget is reached.
    :param tolerance: For ``"auto"``: the nats for each datum that may be left ungained.
    :param max_number: For ``"auto"``: the largest number of points in one batch.
    :raises InvalidDataError: if an argument is out of its range.
    """

    number: int | Literal["all", "auto"] = "auto"  # type: ignore[assignment]
    optimise_locations: bool = True
    budget: int | None = None
    tolerance: float = 0.01
    max_number: int = 30

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

    def place(self, candidates: Candidates) -> np.ndarray:
        if self.number == "all":
            return candidates.inputs
        tolerance = self.tolerance if self.number == "auto" else 0.0
        return candidates.inputs[greedy_gain(candidates, self.largest_batch, tolerance)]

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """The exact bound where every input has a point."""
        bound = Exact() if self.number == "all" else default
        return super().local_bound(bound, hyperparameters)

    @property
    def allowed(self) -> Allowed:
        """All; a budget merges batches that have a point at every input, whoever visits them."""
        allowed = super().allowed
        return replace(allowed, rounds=not (self.number == "all" and self.budget is not None))

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> Fitted:
        if self.number != "all":
            return super().fit(fitter, ledger, question, batch)
        return fitter.fit_at_every_input(question.cavity, batch, self.budget)
