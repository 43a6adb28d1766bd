"""Batches with pseudo-points of their own: those by which the bound gains most, or others; and
private points in the paper's own form, in which earlier ones are frozen.
"""

from __future__ import annotations

import abc
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit import Conditional, Variational
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.points import Candidates, greedy_gain
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.strategies import DIVERGENCE, EVIDENCE, check_evidence
from streaming_gp.gp.strategies.budget import within_budget
from streaming_gp.gp.strategies.protocol import Allowed, refuse_memory
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.serialization import storable


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
        return default

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
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

    >>> few = sgp.StreamingGP(*parts, pseudo_points=sgp.PrivatePseudoPoints(5))
    >>> few.update((X, Y)).num_pseudo_points
    5
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
        """:raises InvalidDataError: for a point at every input where ε remembers by eq. 93, or a
        strategy learns it in a way of its own.
        """
        if self.number == "all":
            why = "a point at every input: these have no white noise of their own"
            refuse_memory(hyperparameters, DIVERGENCE, why)
            check_evidence(hyperparameters)
        return default

    @property
    def allowed(self) -> Allowed:
        """All; a budget merges batches that have a point at every input, whoever visits them."""
        allowed = super().allowed
        is_all = self.number == "all"
        return replace(allowed, rounds=not (is_all and self.budget is not None), near=is_all)

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
    ) -> Fitted:
        if self.number != "all":
            return super().fit(fitter, ledger, question, batch)
        return fitter.data.fit(ledger, question.cavity, batch)


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
