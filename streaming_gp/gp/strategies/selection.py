"""Chooses among candidates: by conditional variance, or by what the bound gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from streaming_gp.gp.fitting.candidates import Candidates

RESOLUTION = 1e-8
"""Share of the largest variance below which a candidate counts as explained."""
AT_ONCE = 1000
"""Covariances of so many candidates are computed in one call, as each call costs more than they."""
PROBES = 1000
"""The gain of a point is weighed on so many candidates, or as many as there are to be points."""


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
        known = factors[: len(chosen)]
        row[:] = (column_of(best) - known.T @ known[:, best]) / np.sqrt(residual[best])
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
