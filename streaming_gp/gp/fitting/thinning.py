"""Drops the points of a factor that matter least, and projects what it says onto the others.

Dropping a point j from points u with covariance K and information W = R Rᵀ leaves the variance
``1 / (K⁻¹)_jj`` of it unexplained, and by ``t'(b) = exp E[log t(u) | b]`` loses
``½ W_jj / (K⁻¹)_jj`` nats; W then moves to the others along ``u_j = −(K⁻¹)_jr u_r / (K⁻¹)_jj + …``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.linalg import block_diag, cholesky, lapack, qr, solve_triangular

from streaming_gp.gp.fitting.problem import NUGGET
from streaming_gp.gp.process.pseudo_observations import PseudoObservations

AT_ONCE = 128
"""So many points are dropped before the rest is brought up to date."""
FINALISTS = 3
"""These are chosen among so many times their number, which are kept up to date throughout."""


def thinned(
    covariance: np.ndarray,
    mean: np.ndarray,
    members: Sequence[PseudoObservations],
    number: int,
) -> tuple[PseudoObservations, float]:
    """All members as one on ``number`` of their points, and the log constant that is left over.

    :param covariance: Of f at the members' points under all else that is known [G, R, R].
    :param mean: Likewise [G, R, C].
    :param members: The pseudo-observations, of R points together.
    :param number: The number of points that stay.
    """
    Z = np.concatenate([one.Z for one in members])
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    nugget = max(*(one.nugget for one in members), NUGGET * float(np.mean(diagonal)))
    K = covariance + nugget * np.eye(len(Z))
    information = np.stack([block_diag(*each) for each in _by_group(members, "precision")])
    kept = least_lost(K, information, len(Z) - number)
    constant, parts = 0.0, []
    for group, (k, w, m) in enumerate(zip(K, information, mean, strict=True)):
        factors = [one.precision_factor[group] for one in members]
        targets = np.concatenate([one.pseudo_targets[group] for one in members])
        *found, left_over = _projected(k, factors, targets, m, kept)
        unexplained = np.sum(k * w) - np.sum(found.pop() ** 2)
        constant -= 0.5 * (left_over + m.shape[1] * unexplained)
        parts.append(found)
    factor, fewer = (np.stack(part) for part in zip(*parts, strict=True))
    return PseudoObservations(Z[kept], factor, fewer, nugget), float(constant)


def _by_group(members: Sequence[PseudoObservations], name: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(getattr(one, name) for one in members), strict=True)


def least_lost(covariance: np.ndarray, information: np.ndarray, number: int) -> np.ndarray:
    """Indices of the points that stay when ``number`` of them are dropped, in order.

    :param covariance: K [G, R, R].
    :param information: W [G, R, R].
    """
    precision = np.mean([_inverse(k) for k in covariance], axis=0)
    weight = np.sum(information, axis=0)
    stay = np.arange(len(precision))
    while number > 0:
        some = min(AT_ONCE, number)
        dropped = _first_to_go(precision, weight, some)
        rest = np.setdiff1d(np.arange(len(stay)), dropped)
        precision, weight = _without(precision, weight, dropped, rest)
        stay, number = stay[rest], number - some
    return stay


def _inverse(K: np.ndarray) -> np.ndarray:
    """K⁻¹: scores need its diagonal and its rows, and nothing else is computed from it."""
    lower, _ = lapack.dpotri(cholesky(K, lower=True), lower=1)
    return np.asarray(np.tril(lower) + np.tril(lower, -1).T)


def _first_to_go(precision: np.ndarray, weight: np.ndarray, number: int) -> np.ndarray:
    """The points whose loss is smallest, one after another; scores of the finalists are exact."""
    losses = weight.diagonal() / precision.diagonal()
    finalists = np.argsort(losses)[: FINALISTS * number]
    P, W = precision[np.ix_(finalists, finalists)], weight[np.ix_(finalists, finalists)]
    gone: list[int] = []
    for _ in range(number):
        losses = W.diagonal() / P.diagonal()
        losses[gone] = np.inf
        j = int(np.argmin(losses))
        onto = -P[:, j] / P[j, j]
        onto[[*gone, j]] = 0.0
        half = np.outer(onto, W[:, j] + 0.5 * W[j, j] * onto)
        W += half + half.T
        P -= np.outer(P[:, j] / P[j, j], P[j])
        gone.append(j)
        P[gone, gone] = 1.0
    return finalists[gone]


def _without(
    precision: np.ndarray, weight: np.ndarray, dropped: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """K⁻¹ and W of the points that stay."""
    across = precision[np.ix_(rest, dropped)]
    onto = -np.linalg.solve(precision[np.ix_(dropped, dropped)], across.T)
    moved = weight[np.ix_(rest, dropped)] @ onto
    inner = onto.T @ (weight[np.ix_(dropped, dropped)] @ onto)
    kept = np.ix_(rest, rest)
    return precision[kept] + across @ onto, weight[kept] + moved + moved.T + inner


def _projected(
    K: np.ndarray,
    factors: Sequence[np.ndarray],
    s: np.ndarray,
    mean: np.ndarray,
    kept: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """One group on the points that stay: R' [M, M], s' [M, C], the rows of the design on whitened
    points [R, M], and ``‖s‖² − ‖s'‖²`` about the mean.
    """
    chol = cholesky(K[np.ix_(kept, kept)], lower=True)
    design = solve_triangular(chol, K[kept], lower=True).T
    rows, shift = _transposed_times(factors, design), _transposed_times(factors, mean)
    M, residual = len(kept), s - shift
    triangle = qr(np.hstack([rows, residual]), mode="r", check_finite=False)[0]
    fewer = np.zeros((M, M + s.shape[1]))
    fewer[: min(M, len(triangle))] = triangle[:M]
    factor = solve_triangular(chol, fewer[:, :M].T, lower=True, trans=1)
    targets = fewer[:, M:] + factor.T @ mean[kept]
    left_over = float(np.sum(residual**2) - np.sum(fewer[:, M:] ** 2))
    return factor, targets, rows, left_over


def _transposed_times(factors: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """``Rᵀ values``, for R block diagonal."""
    starts = np.cumsum([0, *(len(R) for R in factors)])
    spans = zip(factors, starts[:-1], starts[1:], strict=True)
    return np.concatenate([R.T @ values[i:j] for R, i, j in spans])
