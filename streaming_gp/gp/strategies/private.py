"""Private points: those by which the bound gains most, or one at every input."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.single_observations import singles
from streaming_gp.gp.strategies import every_input, sites_anew, together
from streaming_gp.gp.strategies.learning_sample import LearningSample, fine
from streaming_gp.gp.strategies.own import OwnPseudoPoints
from streaming_gp.gp.strategies.selection import greedy_gain
from streaming_gp.gp.strategies.with_targets import FactorWithTargets, with_targets
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
        ``"all"``, whether up to 300 points of a budget move to where projections lose least, and
        any number when the merged points are fitted anew.
    :param budget: The largest number of points that all batches may hold together; None for no
        budget. See :class:`OwnPseudoPoints`. With ``"all"`` every batch keeps a point at each input
        until the budget is reached; then the points that matter least go, and what they said is
        projected onto the others. The newest batches that hold a tenth of the budget stay apart.
        With ``"all"`` and a variational ε small batches learn ε together: the first 200 data as
        one batch, later ones when 300 have come.
    :param tolerance: For ``"auto"``: the nats for each datum that may be left ungained.
    :param max_number: For ``"auto"``: the largest number of points in one batch.
    :param sample: For ``"all"``: what hyperparameters are learned from; by default a point at every
        input of the sample until the budget is exceeded. From then on it is 70 points by FITC, of
        batches of up to 100 data 40, under those of earlier observations that are nearest; as
        merged factors no longer show these, a random sample of them is remembered, for a quarter of
        the bytes of the budget's precision matrix. Beside it, it is as few points as the budget has
        for the batch by the variational bound, whose smoother ε is taken from when projections
        leave more unexplained than its noise. While all that was merged is remembered, up to 1,000
        merged points are fitted anew to all of it whenever the stream has grown by half, and the
        smoother ε with them; otherwise batches go on to learn, and at the smoother ε nothing more
        is remembered.
    :raises InvalidDataError: if an argument is out of its range.
    """

    number: int | Literal["all", "auto"] = "auto"  # type: ignore[assignment]
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

    def _is_full(self, batch: Batch, cavity: Process) -> bool:
        number = len(batch.data[0]) + cavity.num_pseudo_points
        return self.budget is not None and number > self.budget

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

    def visit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        is_next = batch.stream_seed is not None
        knows = is_next or isinstance(ledger.factors.get(batch.name), FactorWithTargets)
        if not (knows and self._has_all_data(fitter, question.cavity)):
            return self._visit(fitter, ledger, question, batch)
        visit = self._next if is_next else self._visit
        ledger, factor, report = visit(fitter, ledger, question, batch)
        if fitter.bound.is_conjugate:
            return ledger, factor, report
        factor = with_targets(factor, batch.data)
        if is_next:
            return sites_anew.refreshed(fitter, ledger, batch, factor, report)
        return ledger, factor, report

    def _has_all_data(self, fitter: Fitter, cavity: Process) -> bool:
        """Each input has a point, so that ε, if it has a q, may be learned from the data anew."""
        has_q = cavity.hyperparameters is not None and fitter.local.parameters.size > 0
        return self.number == "all" and has_q

    def _has_likelihoods(self, fitter: Fitter, cavity: Process) -> bool:
        """Factors are likelihoods, too, as noise is Gaussian."""
        return self._has_all_data(fitter, cavity) and fitter.bound.is_conjugate

    def _next(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        """The next batch of a stream."""
        cavity = question.cavity
        if batch.learn:
            return together.fitted(
                fitter, ledger, batch, self.budget, partial(self._fit_new, fitter)
            )
        if self.budget is None and together.has_learned(ledger):
            return ledger, *together.absorbed(fitter, cavity, batch, fitter.location(cavity))
        return self._visit(fitter, ledger, question, batch)

    def _fit_new(
        self, fitter: Fitter, ledger: GPLedger, batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        return self._visit(fitter, ledger, pvi.Question(ledger.posterior, None), batch)

    def _visit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        cavity, budget = question.cavity, self.budget
        learns = batch.learn and self.sample is None and self._has_likelihoods(fitter, cavity)
        if budget is not None and learns and self._is_full(batch, cavity):
            move = self.optimise_locations
            return every_input.fitted_at_two_scales(fitter, ledger, cavity, batch, budget, move)
        return super().visit(fitter, ledger, question, batch)

    def fit_alone(
        self, fitter: Fitter, cavity: Process, batch: Batch, own: PseudoPointFactor | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        if self.number != "all":
            return super().fit_alone(fitter, cavity, batch, own)
        is_full = self._is_full(batch, cavity)
        default = fine(len(batch.data[0])) if is_full else LearningSample()
        sample = self.sample or default
        known = singles(cavity) if sample.num_points is None else None
        return every_input.fitted(fitter, cavity, batch, sample, self.budget, known)

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
            move = self.optimise_locations
            remembers = self.sample is None and fitter.bound.is_conjugate
            return every_input.within(fitter, ledger, epsilon, self.budget, move, remembers)
        return ledger

    def check_round(self) -> None:
        """:raises InvalidDataError: for a point at every input within a budget."""
        if self.number == "all" and self.budget is not None:
            raise InvalidDataError(
                "batches of a round are visited again, and a budget merges batches that have a "
                f"pseudo-point at every input; got {self}"
            )
