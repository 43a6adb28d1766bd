"""Private points in the paper's own form: what earlier points say is frozen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Conditional
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.point import EVIDENCE
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.strategies.memory import refuse_memory
from streaming_gp.gp.strategies.one_after_another import OneAfterAnother
from streaming_gp.gp.strategies.selection import greedy_gain
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class ConditionalPseudoPoints(OneAfterAnother):
    """Private points in the paper's own form (PVI 2018, eqs. 89 and 94).

    The marginal of all earlier points is frozen, and a batch adds ``q(b | a)`` for its own. Kept
    beside :class:`PrivatePseudoPoints` for comparison: here later data cannot correct what earlier
    points say, and q(ε) is independent of the points. Only the newest batch can be revisited or
    removed, as later ones rest on earlier ones.

    :param number: The number of points for each batch.
    :param optimise_locations: Whether the locations are optimised together with the rest.
    :raises InvalidDataError: if ``number`` is not a positive integer.
    """

    number: int
    optimise_locations: bool = True

    def __post_init__(self) -> None:
        if not is_positive_integer(self.number):
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, got {self.number!r}"
            )

    def place(self, candidates: Candidates) -> np.ndarray:
        """The candidates [M, D] by which the bound gains most."""
        return candidates.inputs[greedy_gain(candidates, self.number)]

    # ---- the protocol ----

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """:raises InvalidDataError: for another bound than the variational one, or a point ε that
        remembers by the evidence.
        """
        self._refuse_other_bounds(default)
        refuse_memory(hyperparameters, EVIDENCE, f"{self}: it keeps no factor that is free of ε")
        return Conditional()

    def visit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        own = ledger.factors.get(batch.name)
        at = None if own is None else own.pseudo_observations[0]
        move = self.optimise_locations and not (batch.hold and at is not None)
        return ledger, *fitter.fit(question.cavity, batch, self.place, at, move)

    def merge(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        return ledger

    def check_change(self, ledger: GPLedger, name: str) -> None:
        """:raises InvalidDataError: for all factors but the newest."""
        newest = list(ledger.factors)[-1]
        if name != newest:
            raise InvalidDataError(
                f"with conditional pseudo-points only the newest factor {newest!r} can be "
                f"revisited or removed, as later ones rest on earlier ones; got {name!r}"
            )
