"""Where the points of a batch start: candidates, greedy choices among them, and limits of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streaming_gp.gp.hyperparameters.strategies import Limits
from streaming_gp.gp.process.dense import SMALLEST_VARIANCE, DenseProcess, refuse_far_below_zero
from streaming_gp.numerics import stacks

NUGGET = 1e-6
"""Variance of the points' white noise, relative to their mean cavity variance."""
RESOLUTION = 1e-8
"""Share of the largest variance below which a candidate counts as explained."""
AT_ONCE = 1000
"""Covariances of so many candidates are computed in one call, as each call costs more than they."""
PROBES = 1000
"""The gain of a point is weighed on so many candidates, or as many as there are to be points."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The places where pseudo-points may start, and the moments of f there.

    :param inputs: Inputs of the batch, after earlier points that are taken over [N, D].
    :param variance: Cavity variances of f at the candidates [N].
    :param columns: Gives the cavity covariances [N, K] with the candidates of K indices.
    :param among: Gives the cavity covariances [K, K] of the candidates of K indices.
    :param site_weights: Gives the site precisions of the data, in inverse squared units of f [N];
        a function, as they cost an evaluation.
    :param num_present: The number of candidates, the first ones, that are earlier points.
    """

    inputs: np.ndarray
    variance: np.ndarray
    columns: Callable[[np.ndarray], np.ndarray]
    among: Callable[[np.ndarray], np.ndarray]
    site_weights: Callable[[], np.ndarray]
    num_present: int = 0


Place = Callable[[Candidates], np.ndarray]
"""Chooses pseudo-inputs [M, D]."""


class Inputs(NamedTuple):
    """Inputs under a process at one ε.

    :param X: [N, D].
    :param V: Their projection [G, R, N].
    :param mean: Of f [G, N, C].
    :param variance: Of f [G, N].
    """

    X: np.ndarray
    V: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def rows(self, some: np.ndarray) -> Inputs:
        """Some of them."""
        X, V, mean, variance = self
        return Inputs(X[some], V[:, :, some], mean[:, some], variance[:, some])


@dataclass(frozen=True)
class Places:
    """Inputs under a process of pseudo-observations, in groups of latent functions.

    :param process: The process at one ε.
    """

    process: DenseProcess

    def inputs(self, X: np.ndarray) -> Inputs:
        """Inputs [N, D] under the process.

        :raises NumericalError: as :meth:`.DenseProcess.marginals`.
        """
        V, prior = self.process.project(X), self.process.prior.variance(X)
        variance = prior - np.einsum("grn,grn->gn", V, V)
        refuse_far_below_zero(variance, prior)
        return Inputs(
            X, V, self.process.mean(X, V), np.maximum(variance, SMALLEST_VARIANCE * prior)
        )

    def covariance(self, one: Inputs, other: Inputs) -> np.ndarray:
        """Covariances [G, N, K] of f; white noise is shared by no two sets of inputs."""
        prior = self.process.prior.covariance(one.X, other.X)
        return prior - stacks.product(stacks.transposed(one.V), other.V)


# ---- greedy choices ----


def greedy_variance(
    candidates: Candidates, max_number: int, first: Iterable[int] = ()
) -> np.ndarray:
    """Pick the input of largest conditional variance, condition on it, repeat.

    A pivoted Cholesky factorisation of the cavity covariance (Fine & Scheinberg 2001; as an
    initialisation of inducing points: Burt, Rasmussen & van der Wilk 2020, section 4.1). Ends
    early where every input is explained, so duplicated inputs get one point. At least one index
    is returned.

    :param first: Indices that are picked before all others, unless those before explain them.
    """
    residual = candidates.variance.copy()
    floor = RESOLUTION * residual.max()
    factors = np.zeros((min(max_number, len(residual)), len(residual)))
    wanted, chosen = iter(first), list[int]()
    column_of = _columns(candidates)
    for row in factors:
        best = next((one for one in wanted if residual[one] > floor), int(np.argmax(residual)))
        if chosen and residual[best] <= floor:
            break
        before = factors[: len(chosen)]
        row[:] = (column_of(best) - before.T @ before[:, best]) / np.sqrt(residual[best])
        residual = np.maximum(residual - row**2, 0.0)
        residual[best] = 0.0
        chosen.append(best)
    return np.array(chosen)


def _columns(candidates: Candidates) -> Callable[[int], np.ndarray]:
    """Gives the cavity covariances [N] of all candidates with one of them."""
    number = len(candidates.variance)
    if number > AT_ONCE:
        return lambda one: candidates.columns(np.array([one]))[:, 0]
    covariance = candidates.among(np.arange(number))
    return lambda one: np.asarray(covariance[:, one])


def mostly_present(candidates: Candidates, max_number: int, fresh: int) -> np.ndarray:
    """The present points, but for as many as are to start anew at inputs of greatest variance.

    Those of them go that the others explain best.

    :param max_number: The largest number of points.
    :param fresh: The number of present points that start anew once there are so many.
    """
    present = candidates.num_present
    kept = min(present, max_number - fresh)
    if kept < 1:
        return greedy_variance(candidates, max_number)
    among_present = replace(
        candidates,
        variance=candidates.variance[:present],
        columns=lambda some: candidates.columns(some)[:present],
    )
    first = greedy_variance(among_present, kept)
    return greedy_variance(candidates, max_number, first)


def greedy_gain(candidates: Candidates, max_number: int, tolerance: float = 0.0) -> np.ndarray:
    """Pick the input by which the bound gains most, to first order, condition on it, repeat.

    Points that explain variances r_n leave ``½ Σ_n w_n r_n`` nats to be gained (for Gaussian noise
    the trace term of Titsias 2009, which with the data fit bounds the gap to the exact evidence:
    Burt, Rasmussen & van der Wilk 2020, lemma 2). One at input j takes away
    ``½ Σ_n w_n r_nj² / r_jj``. Ends where ``tolerance`` nats for each datum are left.
    """
    number = len(candidates.variance)
    most = min(number, max(PROBES, max_number))
    probes = np.unique(np.linspace(0, number - 1, most).astype(int))
    weight = candidates.site_weights()[probes]
    residual = candidates.among(probes).copy()
    floor = RESOLUTION * residual.diagonal().max()
    chosen: list[int] = []
    while len(chosen) < min(max_number, len(probes)):
        left = residual.diagonal()
        if chosen and (0.5 * np.mean(weight * left) <= tolerance or left.max() <= floor):
            break
        gain = np.where(left > floor, weight @ residual**2 / np.maximum(left, floor), 0.0)
        best = int(np.argmax(gain))
        residual -= np.outer(residual[:, best], residual[best]) / residual[best, best]
        chosen.append(best)
    return probes[chosen]


# ---- moves ----


def spread(X: np.ndarray) -> np.ndarray:
    """Standard deviation of each input [D]; 1 where it is constant."""
    deviation = np.std(X, axis=0)
    return np.where(deviation > 0.0, deviation, 1.0)


def limits_within(X: np.ndarray, start: np.ndarray, unit: np.ndarray) -> list[Limits]:
    """Limits of offsets [M D], in a unit [D], that keep places within the range of X [N, D].

    Under a kernel that grows without bound places would move on for ever, until rounding is all
    that is left.
    """
    least, most = (np.ravel((edge - start) / unit) for edge in (X.min(axis=0), X.max(axis=0)))
    return list(zip(least, most, strict=True))
