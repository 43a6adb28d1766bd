"""What strategies have in common whose later factors rest on earlier ones."""

from __future__ import annotations

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Variational
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.process import Process, PseudoPointFactor


class OneAfterAnother:
    """Batches can be learned one after another, and no factor can be taken out of the ledger."""

    def _refuse_other_bounds(self, default: LocalBound) -> None:
        """:raises InvalidDataError: for another bound than the variational one."""
        if default != Variational():
            raise InvalidDataError(f"{self} takes no other bound, got {default}")

    # ---- the protocol ----

    def fit_alone(
        self, fitter: Fitter, cavity: Process, batch: Batch, own: PseudoPointFactor | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        """:raises InvalidDataError: always, as later factors rest on earlier ones."""
        raise InvalidDataError(
            f"clients that fit on their own need private pseudo-points, got {self}: "
            "later factors would rest on earlier ones"
        )

    def compressed(
        self, fitter: Fitter, ledger: GPLedger, number: int, epsilon: np.ndarray
    ) -> tuple[GPLedger, float]:
        """:raises InvalidDataError: always, as later factors rest on earlier ones."""
        raise InvalidDataError(f"{self} cannot be compressed: later factors rest on earlier ones")

    def check_apart(self, num_batches: int) -> None:
        """:raises InvalidDataError: always, as later factors rest on earlier ones."""
        raise InvalidDataError(
            f"nothing can be forgotten, as later factors rest on earlier ones; got {self}"
        )

    def check_round(self) -> None:
        """:raises InvalidDataError: always, as later factors rest on earlier ones."""
        raise InvalidDataError(
            "batches that are fitted under one ledger need pseudo-points of their own, got "
            f"{self}: later factors rest on earlier ones"
        )
