"""Shared points in the paper's own form: independent of ε in the posterior."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit import Independent, Variational
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.points import Candidates, greedy_variance
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, PointHyperparameters
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.budget import multiplied
from streaming_gp.gp.strategies.protocol import MERGED, Allowed
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class IndependentPseudoPoints:
    """Shared points in the paper's own form (PVI 2018, appendix C.3): ``q(f, ε) = p(f | b, ε) q(b)
    q(ε)``.

    What earlier batches said is ``q(a) / p(a | ε)``, and the newest factor holds all that is known
    of f. Kept beside :class:`SharedPseudoPoints` for comparison, where the points depend on ε in
    the posterior. No batch can be revisited or removed.

    :param number: The number M of points.
    :param growth: The largest number of points by which M grows with a batch until it is reached.
    :param optimise_locations: Whether the points move from where a batch starts them.
    :raises InvalidDataError: if the numbers are not positive integers.
    """

    number: int
    growth: int | None = None
    optimise_locations: bool = True

    def __post_init__(self) -> None:
        for value in (self.number, self.number if self.growth is None else self.growth):
            if not is_positive_integer(value):
                raise InvalidDataError(
                    "number of shared pseudo-points and growth must be positive integers, "
                    f"got {self.number!r} and {self.growth!r}"
                )

    def place(self, candidates: Candidates) -> np.ndarray:
        """The candidates [M, D] of greatest conditional variance under the prior."""
        growth = self.number if self.growth is None else self.growth
        number = min(self.number, candidates.num_present + growth)
        return candidates.inputs[greedy_variance(candidates, number)]

    # ---- the protocol ----

    @property
    def allowed(self) -> Allowed:
        """Batches one after another, and nothing else."""
        return Allowed(
            clients=False,
            rounds=False,
            changes="none",
            fading=False,
            compression=False,
            because="the newest factor has taken in all that was known",
        )

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """:raises InvalidDataError: for another bound than the variational one, or a point ε."""
        if default != Variational():
            raise InvalidDataError(f"{self} takes no other bound, got {default}")
        if isinstance(hyperparameters, PointHyperparameters):
            raise InvalidDataError(
                f"{self} wants a distribution over the hyperparameters, or fixed ones, got "
                f"{hyperparameters}; for a point there are SharedPseudoPoints (appendix C.1)"
            )
        return Independent()

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.Question[Process], batch: Batch
    ) -> Fitted:
        """The new factor takes the place of all that others say of f."""
        found = fitter.fit(question.cavity, batch, self.place, move=self.optimise_locations)
        others = {
            name: replace(one, pseudo_observations=()) for name, one in ledger.factors.items()
        }
        return replace(found, ledger=ledger.with_factors(others))

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        """The older factors of ε become one."""
        older = [name for name in ledger.factors if name != MERGED][:-1]
        return multiplied(ledger, older) if older else ledger
