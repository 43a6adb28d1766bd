"""All batches share one set of pseudo-points; also in the paper's own form."""

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
from streaming_gp.gp.fit.points import Candidates, greedy_variance, mostly_present
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
class SharedPseudoPoints:
    """All batches share one set of points (Bui et al. 2017a; PVI 2018, appendices C.1 and C.3).

    Each update starts from the M candidates, present points and new inputs, of greatest conditional
    variance, moves them, and projects earlier factors onto them.

    :param number: The number M of points.
    :param growth: The largest number of points by which M grows with a batch until it is reached.
        Without it the first batch gets all of them, and fits far better than later ones can be
        fitted: q(ε) then holds a noise that the same points cannot reach on more data.
    :param fresh: The largest number of points that start anew with a batch once there are M; the
        others start where they are. Without it all may start anew, which loses most of what many
        points say in many dimensions. 0 suits streams whose inputs stay in one region.
    :param optimise_locations: Whether the points move with every batch; otherwise the first batch
        decides where they stay, and no factor is ever projected.
    :param kept_batches: The number of newest batches whose factors are kept apart, so that they can
        be revisited or removed; older ones become one factor. With fixed locations all are kept.
    :raises InvalidDataError: if the numbers are not positive integers, or points that do not move
        are to grow in number or to start anew.

    >>> shared = sgp.StreamingGP(*parts, pseudo_points=sgp.SharedPseudoPoints(6))
    >>> infos = [shared.update(shard) for shard in shards]
    >>> all(np.array_equal(one.Z, shared.factors["batch-1"].Z) for one in shared.factors.values())
    True
    """

    number: int
    growth: int | None = None
    optimise_locations: bool = True
    kept_batches: int = 10
    fresh: int | None = None

    def __post_init__(self) -> None:
        if not (is_positive_integer(self.number) and is_positive_integer(self.kept_batches)):
            raise InvalidDataError(
                "number of shared pseudo-points and of kept batches must be positive integers, "
                f"got {self.number!r} and {self.kept_batches!r}"
            )
        if self.growth is not None and not (
            is_positive_integer(self.growth) and self.optimise_locations
        ):
            raise InvalidDataError(
                f"growth must be a positive integer, of points that move; got {self.growth!r}"
            )
        if self.fresh is not None and not (
            0 <= self.fresh <= self.number and self.optimise_locations
        ):
            raise InvalidDataError(
                f"fresh must lie between 0 and the number of points, which move; got {self.fresh!r}"
            )

    def place(self, candidates: Candidates) -> np.ndarray:
        """The candidates [M, D] of greatest conditional variance."""
        growth = self.number if self.growth is None else self.growth
        number = min(self.number, candidates.num_present + growth)
        if self.fresh is None or candidates.num_present == 0:
            return candidates.inputs[greedy_variance(candidates, number)]
        fresh = self.fresh if number == candidates.num_present else 0
        return candidates.inputs[mostly_present(candidates, number, fresh)]

    # ---- the protocol ----

    @property
    def allowed(self) -> Allowed:
        """A sliding window of the batches that are kept apart; nobody can fit alone."""
        return Allowed(
            clients=False,
            rounds=False,
            window=self.kept_batches,
            moves=self.optimise_locations,
            because="every fit moves the points of all others, and older ones become one factor",
        )

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        return default

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
    ) -> Fitted:
        """All factors are projected onto new shared points while the batch is fitted on them."""

        def cavity_in(moved: GPLedger) -> Process:
            cavity = moved.cavity(batch.name)
            if question.removed_fraction == 1.0 or batch.name not in moved.factors:
                return cavity
            return cavity.times([moved.factors[batch.name] ** (1.0 - question.removed_fraction)])

        present = ledger.posterior.pseudo_observations
        at = present[0] if present and not self.optimise_locations else None
        return fitter.fit_onto_shared(
            ledger, question.cavity, cavity_in, batch, self.place, at, self.optimise_locations
        )

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        """Older factors multiplied into one, which on shared points loses nothing."""
        own = [name for name in ledger.factors if name != MERGED]
        older = own[: -self.kept_batches]
        return multiplied(ledger, older) if older else ledger


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
