"""Where a batch puts its pseudo-points, and how many it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError


@dataclass(frozen=True, eq=False)
class Candidates:
    """Where points may start: inputs of the batch, after earlier points that are taken over.

    :param variance: cavity variances of f at the candidates [N].
    :param columns: cavity covariances [N, K] with the candidates of K indices.
    :param among: cavity covariances [K, K] of the candidates of K indices.
    :param site_weights: gives the site precisions of the data, in inverse squared units of f [N];
        a function, as they cost an evaluation.
    :param num_present: how many are earlier points.
    """

    variance: np.ndarray
    columns: Callable[[np.ndarray], np.ndarray]
    among: Callable[[np.ndarray], np.ndarray]
    site_weights: Callable[[], np.ndarray]
    num_present: int = 0


class PseudoPointStrategy(Protocol):
    """Which points carry a batch's factor, and what becomes of earlier ones."""

    @property
    def exact(self) -> bool:
        """Whether every input carries a pseudo-point."""
        ...

    @property
    def moves(self) -> bool:
        """Whether locations are optimised."""
        ...

    @property
    def absorbs(self) -> bool:
        """Whether the new points take over what the earlier ones know."""
        ...

    @property
    def freezes(self) -> bool:
        """Whether the marginal of earlier points stays as it is, and later ones rest on it."""
        ...

    def choose(self, candidates: Candidates) -> np.ndarray:
        """Indices [M] of the candidates at which the points start."""
        ...


@dataclass(frozen=True)
class _PointsOfTheirOwn:
    """What holds unless a strategy says otherwise."""

    @property
    def exact(self) -> bool:
        return False

    @property
    def absorbs(self) -> bool:
        return False

    @property
    def freezes(self) -> bool:
        return False


@dataclass(frozen=True)
class PrivatePseudoPoints(_PointsOfTheirOwn):
    """Every batch owns its pseudo-points (PVI 2018, section 6.2).

    They start at the inputs by which the bound gains most.

    :param number: points for each batch; ``"auto"`` for as many as the bound can still gain from;
        ``"all"`` for one at every input, which is exact and moves none.
    :param optimise_locations: whether the locations are optimised together with the rest.
    :param tolerance: for ``"auto"``: nats for each datum that may be left ungained.
    :param max_number: for ``"auto"``: never more points than this in one batch.
    :param budget: most points that all batches may hold together; where a batch would exceed it,
        earlier rows are first carried over to fewer points (maths page, "shared points"), so that
        an endless stream costs what its budget does.
    """

    number: int | Literal["all", "auto"]
    optimise_locations: bool = True
    tolerance: float = 0.01
    max_number: int = 30
    budget: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.number, str):
            valid = self.number in ("all", "auto")
        else:
            valid = is_positive_integer(self.number)
        if not valid:
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, 'all' or 'auto', "
                f"got {self.number!r}"
            )
        if not (self.tolerance > 0.0 and self.max_number > 0):
            raise InvalidDataError("tolerance and max_number must be positive")
        if self.budget is not None and (self.exact or self.budget < 2 * self.largest_batch):
            raise InvalidDataError(
                f"a budget must hold at least twice a batch's pseudo-points, got {self.budget} "
                f"for batches of {self.number!r}"
            )

    @property
    def largest_batch(self) -> int:
        """Most points that one batch can get, unless every input has one."""
        return self.max_number if self.number == "auto" else int(self.number)

    @property
    def exact(self) -> bool:
        """Whether every input carries a pseudo-point."""
        return self.number == "all"

    @property
    def moves(self) -> bool:
        """Whether locations are optimised."""
        return self.optimise_locations and not self.exact

    def choose(self, candidates: Candidates) -> np.ndarray:
        if self.exact:
            return np.arange(len(candidates.variance))
        tolerance = self.tolerance if self.number == "auto" else 0.0
        return greedy_gain(candidates, self.largest_batch, tolerance)


@dataclass(frozen=True)
class SharedPseudoPoints(_PointsOfTheirOwn):
    """All batches share one set of points (Bui et al. 2017a; PVI 2018, appendices C.1 and C.3).

    Each update starts from the M candidates, old points and new inputs, of greatest conditional
    variance, moves them, and carries earlier factors over to them.

    :param number: M.
    :param growth: by at most so many points does M grow with a batch until it is reached. Without
        it the first batch gets all of them, and fits far better than later ones can be fitted:
        q(ε) then holds a noise that the same points cannot reach on more data.
    :param optimise_locations: whether they move with every batch; otherwise the first batch
        decides where they stay, and no factor is ever carried over.
    :param kept_batches: the newest batches whose factors are kept apart, so that they can be
        revisited or removed; older ones become one factor. With fixed locations all are kept.
    """

    number: int
    growth: int | None = None
    optimise_locations: bool = True
    kept_batches: int = 10

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

    @property
    def moves(self) -> bool:
        return self.optimise_locations

    @property
    def absorbs(self) -> bool:
        return True

    def choose(self, candidates: Candidates) -> np.ndarray:
        growth = self.number if self.growth is None else self.growth
        return greedy_variance(candidates, min(self.number, candidates.num_present + growth))


@dataclass(frozen=True)
class ConditionalPseudoPoints(_PointsOfTheirOwn):
    """Private points in the paper's own form (PVI 2018, eqs. 89 and 94).

    The marginal of all earlier points is frozen, and a batch adds ``q(b | a)`` for its own. Kept
    beside :class:`PrivatePseudoPoints` for comparison: here later data cannot correct what earlier
    points say, and q(ε) is independent of the points. Only the newest batch can be revisited or
    removed, as later ones rest on earlier ones.

    :param number: points for each batch.
    :param optimise_locations: whether the locations are optimised together with the rest.
    """

    number: int
    optimise_locations: bool = True

    def __post_init__(self) -> None:
        if not is_positive_integer(self.number):
            raise InvalidDataError(
                f"number of pseudo-points must be a positive integer, got {self.number!r}"
            )

    @property
    def moves(self) -> bool:
        return self.optimise_locations

    @property
    def freezes(self) -> bool:
        return True

    def choose(self, candidates: Candidates) -> np.ndarray:
        return greedy_gain(candidates, self.number)


def is_positive_integer(value: object) -> bool:
    """Whether ``value`` is one, of Python's or NumPy's integers."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and value > 0  # type: ignore[operator]


RESOLUTION = 1e-8
"""Share of the largest variance below which a candidate counts as explained."""
WITNESSES = 1000
"""The gain of a point is weighed on so many candidates, or as many as there are to be points."""


def greedy_variance(candidates: Candidates, max_number: int) -> np.ndarray:
    """Pick the input of largest conditional variance, condition on it, repeat.

    A pivoted Cholesky factorisation of the cavity covariance (Fine & Scheinberg 2001; as an
    initialisation of inducing points: Burt, Rasmussen & van der Wilk 2020, section 4.1). Ends
    early where every input is explained, so duplicated inputs get one point. At least one index
    is returned.
    """
    residual = candidates.variance.copy()
    floor = RESOLUTION * residual.max()
    factors = np.zeros((min(max_number, len(residual)), len(residual)))
    chosen: list[int] = []
    for row in factors:
        best = int(np.argmax(residual))
        if chosen and residual[best] <= floor:
            break
        known = factors[: len(chosen)]
        column = candidates.columns(np.array([best]))[:, 0]
        row[:] = (column - known.T @ known[:, best]) / np.sqrt(residual[best])
        residual = np.maximum(residual - row**2, 0.0)
        residual[best] = 0.0
        chosen.append(best)
    return np.array(chosen)


def greedy_gain(candidates: Candidates, max_number: int, tolerance: float = 0.0) -> np.ndarray:
    """Pick the input by which the bound gains most, to first order, condition on it, repeat.

    Points that explain variances r_n leave ``½ Σ_n w_n r_n`` nats to be gained (for Gaussian noise
    the trace term of Titsias 2009, which with the data fit bounds the gap to the exact evidence:
    Burt, Rasmussen & van der Wilk 2020, lemma 2). One at input j takes away
    ``½ Σ_n w_n r_nj² / r_jj``. Ends where ``tolerance`` nats for each datum are left.
    """
    number = len(candidates.variance)
    most = min(number, max(WITNESSES, max_number))
    witnesses = np.unique(np.linspace(0, number - 1, most).astype(int))
    weight = candidates.site_weights()[witnesses]
    residual = candidates.among(witnesses).copy()
    floor = RESOLUTION * residual.diagonal().max()
    chosen: list[int] = []
    while len(chosen) < min(max_number, len(witnesses)):
        left = residual.diagonal()
        if chosen and (0.5 * np.mean(weight * left) <= tolerance or left.max() <= floor):
            break
        gain = np.where(left > floor, weight @ residual**2 / np.maximum(left, floor), 0.0)
        best = int(np.argmax(gain))
        residual -= np.outer(residual[:, best], residual[best]) / residual[best, best]
        chosen.append(best)
    return witnesses[chosen]
