"""Private and shared points in the paper's own forms, in which earlier points are frozen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit import Conditional, Independent, Variational
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.points import Candidates, greedy_gain, greedy_variance
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, PointHyperparameters
from streaming_gp.gp.hyperparameters.strategies import EVIDENCE
from streaming_gp.gp.strategies.budget import multiplied
from streaming_gp.gp.strategies.protocol import MERGED, Allowed, refuse_memory
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


@storable
@typed
@dataclass(frozen=True)
class ConditionalPseudoPoints:
    """Private points in the paper's own form (PVI 2018, eqs. 89 and 94).

    The marginal of all earlier points is frozen, and a batch adds ``q(b | a)`` for its own. Kept
    beside :class:`PrivatePseudoPoints` for comparison: here later data cannot correct what earlier
    points say, and q(ε) is independent of the points. Only the newest batch can be revisited or
    removed, as later ones rest on earlier ones.

    :param number: The number of points for each batch.
    :param optimise_locations: Whether the locations are optimised together with the rest.
    :raises InvalidDataError: if ``number`` is not a positive integer.

    >>> frozen = sgp.StreamingGP(*parts, pseudo_points=sgp.ConditionalPseudoPoints(4))
    >>> frozen.settings.pseudo_points.allowed.changes
    'newest'
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

    @property
    def allowed(self) -> Allowed:
        """Batches one after another, of which the newest can be taken out again."""
        return Allowed(
            clients=False,
            rounds=False,
            changes="newest",
            fading=False,
            compression=False,
            because="later factors rest on earlier ones",
        )

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """:raises InvalidDataError: for another bound than the variational one, or a point ε that
        remembers by the evidence.
        """
        if default != Variational():
            raise InvalidDataError(f"{self} takes no other bound, got {default}")
        refuse_memory(hyperparameters, EVIDENCE, f"{self}: it keeps no factor that is free of ε")
        return Conditional()

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
    ) -> Fitted:
        own = ledger.factors.get(batch.name)
        at = None if own is None else own.pseudo_observations[0]
        move = self.optimise_locations and not (batch.hold and at is not None)
        return fitter.fit(question.cavity, batch, self.place, at, move)

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        return ledger


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

    >>> independent = sgp.StreamingGP(*parts, pseudo_points=sgp.IndependentPseudoPoints(4))
    >>> independent.settings.pseudo_points.allowed.changes
    'none'
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
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
    ) -> Fitted:
        """The new factor takes the place of all that others say of f."""
        fitted = fitter.fit(question.cavity, batch, self.place, move=self.optimise_locations)
        others = {
            name: replace(one, pseudo_observations=()) for name, one in ledger.factors.items()
        }
        return replace(fitted, ledger=ledger.with_factors(others))

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        """The older factors of ε become one."""
        older = [name for name in ledger.factors if name != MERGED][:-1]
        return multiplied(ledger, older) if older else ledger
