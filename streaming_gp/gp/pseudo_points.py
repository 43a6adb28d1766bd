"""Where a batch puts its pseudo-points, and how many it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streaming_gp.errors import InvalidDataError

Column = Callable[[int], np.ndarray]
"""Cavity covariance [N] between all inputs and input number i."""


@dataclass(frozen=True)
class PrivatePseudoPoints:
    """Every batch owns its pseudo-points (PVI 2018, section 6.2).

    :param number: points for each batch; ``"auto"`` for as many as the bound can still gain from;
        ``"all"`` for one at every input, which is exact and moves none.
    :param optimise_locations: whether the locations are optimised together with the rest.
    :param tolerance: for ``"auto"``: nats for each datum that may be left ungained.
    :param max_number: for ``"auto"``: never more points than this in one batch.
    """

    number: int | Literal["all", "auto"]
    optimise_locations: bool = True
    tolerance: float = 0.01
    max_number: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.number, str):
            valid = self.number in ("all", "auto")
        else:
            valid = isinstance(self.number, (int, np.integer)) and not isinstance(self.number, bool)
            valid = valid and self.number > 0
        if not valid:
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, 'all' or 'auto', "
                f"got {self.number!r}"
            )
        if not (self.tolerance > 0.0 and self.max_number > 0):
            raise InvalidDataError("tolerance and max_number must be positive")

    @property
    def exact(self) -> bool:
        """Whether every input carries a pseudo-point."""
        return self.number == "all"

    @property
    def moves(self) -> bool:
        """Whether locations are optimised."""
        return self.optimise_locations and not self.exact

    def choose(
        self, variance: np.ndarray, column: Column, site_weights: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Indices [M] of the inputs at which the points start.

        :param variance: cavity variances of f at the inputs [N].
        :param column: cavity covariances with one input.
        :param site_weights: gives the site precisions of the data [N], in inverse squared units
            of f; asked for ``"auto"`` only, as they cost an evaluation.
        """
        if self.exact:
            return np.arange(len(variance))
        if self.number != "auto":
            return greedy_variance(variance, column, int(self.number), lambda _: False)

        weight = site_weights()

        def gained_enough(residual: np.ndarray) -> bool:
            return remaining_gain(residual, weight) <= self.tolerance * len(residual)

        return greedy_variance(variance, column, self.max_number, gained_enough)


def remaining_gain(residual: np.ndarray, weight: np.ndarray) -> float:
    """Nats by which more points can still raise the bound, to first order: ``½ Σ_n w_n r_n``.

    r_n is the cavity variance that the points leave unexplained. For Gaussian noise this is the
    trace term ``tr(K̃ − Q̃)/(2σ²)`` of Titsias (2009), which together with the data fit bounds the
    gap to the exact evidence (Burt, Rasmussen & van der Wilk 2020, lemma 2 and section 4.2).
    """
    return 0.5 * float(np.sum(weight * residual))


def greedy_variance(
    variance: np.ndarray,
    column: Column,
    max_number: int,
    stop: Callable[[np.ndarray], bool],
    resolution: float = 1e-8,
) -> np.ndarray:
    """Pick the input of largest conditional variance, condition on it, repeat.

    A pivoted Cholesky factorisation of the cavity covariance (Fine & Scheinberg 2001; as an
    initialisation of inducing points: Burt, Rasmussen & van der Wilk 2020, section 4.1). Ends
    early where every input is explained to ``resolution`` of the largest variance, so duplicated
    inputs get one point. At least one index is returned.
    """
    residual = variance.copy()
    floor = resolution * variance.max()
    factors = np.zeros((min(max_number, len(variance)), len(variance)))
    chosen: list[int] = []
    for row in factors:
        best = int(np.argmax(residual))
        if chosen and (residual[best] <= floor or stop(residual)):
            break
        known = factors[: len(chosen)]
        row[:] = (column(best) - known.T @ known[:, best]) / np.sqrt(residual[best])
        residual = np.maximum(residual - row**2, 0.0)
        residual[best] = 0.0
        chosen.append(best)
    return np.array(chosen)
