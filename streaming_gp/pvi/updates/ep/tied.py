"""One factor for all pieces of a client's data, whatever rule fits a piece (Li et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_positive_integer
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.ep.tilted import evidence, own_factor


@dataclass(frozen=True)
class TiedUpdate:
    """Stochastic EP over pieces of data: ``t ← t^(1−1/K) t_k`` with ``t_k`` under ``q / t^(1/K)``.

    A client's data are cut into K pieces, whose factors all are ``t^(1/K)``. The rule fits piece k
    under the cavity that leaves out one of them, and ``t_k`` is its answer. So stochastic EP takes
    moments by sampling (supplement, C.2), as distributed EP does, at a K-th of its memory:
    ``TiedUpdate(MomentSharingUpdate(...), 20)``. With single data as pieces and
    ``PowerEPUpdate.one_step()`` it is ``StochasticEPUpdate``.

    :param rule: The rule that fits a piece.
    :param pieces: The number of pieces K; rows are cut where they are, in order.
    :param passes: The number of passes over all pieces in one visit.
    :param averaged: Whether all pieces are fitted under one q, and then ``t ← Π_k t_k`` (averaged
        EP); else one after another, in a random order.
    :raises InvalidDataError: if a number is not positive.
    """

    rule: UpdateRule
    pieces: int
    passes: int = 1
    averaged: bool = False

    def __post_init__(self) -> None:
        require_positive_integer("pieces", self.pieces)
        require_positive_integer("passes", self.passes)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit piece after piece.

        :raises InvalidDataError: if there are more pieces than data.
        :raises ImproperError: if q is no distribution on the way.
        """
        if self.pieces > task.num_data:
            raise InvalidDataError(f"{task.num_data} data cannot be cut into {self.pieces} pieces")
        factor, skipped, knows_evidence = own_factor(task), 0, True
        rng, rows = np.random.default_rng(task.seed), np.arange(task.num_data)
        parts = np.array_split(rows, self.pieces)
        for _ in range(self.passes):
            total = factor**0.0
            for number in rng.permutation(self.pieces):
                found = self._fitted(task, factor, parts[number], int(rng.integers(2**31)))
                skipped += found.skipped
                knows_evidence &= bool(np.isfinite(found.free_energy))
                if self.averaged:
                    total = total * found.factor
                else:
                    factor = factor ** (1.0 - 1.0 / self.pieces) * found.factor
            factor = total if self.averaged else factor
        factor = factor.as_arrays()
        free_energy = evidence(task.cavity, factor) if knows_evidence else float("nan")
        return LocalResult(factor, free_energy, self.passes, skipped)

    def _fitted(self, task: LocalTask, factor: Factor, rows: np.ndarray, seed: int) -> LocalResult:
        """What the rule makes of one piece, while the client's factor is this one."""
        X, Y = task.data
        q = (task.cavity * factor).normalised()
        own = factor ** (1.0 / self.pieces)
        piece = (X[rows], Y[rows])
        return self.rule(replace(task, data=piece, posterior=q, own=own, start=q, seed=seed))
