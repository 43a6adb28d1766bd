"""Drops the points of a factor that matter least, and projects what it says onto the others.

Dropping a point j from points u with covariance K and information W = R Rᵀ leaves the variance
``1 / (K⁻¹)_jj`` of it unexplained, and by ``t'(b) = exp E[log t(u) | b]`` loses
``½ W_jj / (K⁻¹)_jj`` nats; W then moves to the others along ``u_j = −(K⁻¹)_jr u_r / (K⁻¹)_jj + …``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular

from streaming_gp.gp.fitting.problem import NUGGET
from streaming_gp.gp.process.observations import PseudoObservations, factored
from streaming_gp.numerics import dense, symmetric

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
    K = np.array(covariance)
    np.einsum("grr->gr", K)[:] += nugget
    groups = [_about(m, group, members) for group, m in enumerate(mean)]
    kept = least_lost(K, [W for W, _, _ in groups], len(Z) - number)
    constant, parts = 0.0, []
    for k, m, (W, h, squares) in zip(K, mean, groups, strict=True):
        onto, fewer = _projected(k, W, h, kept)
        R, s = factored(onto, fewer)
        unexplained = np.vdot(W, k) - symmetric.inner(onto, k[np.ix_(kept, kept)])
        constant -= 0.5 * (squares - np.sum(s**2) + m.shape[1] * unexplained)
        parts.append((R, s + R.T @ m[kept]))
    factor, targets = (np.stack(part) for part in zip(*parts, strict=True))
    return PseudoObservations(Z[kept], factor, targets, nugget), float(constant)


def _about(
    mean: np.ndarray, group: int, members: Sequence[PseudoObservations]
) -> tuple[np.ndarray, np.ndarray, float]:
    """What the members say of one group about its mean [R, C]: W [R, R], h [R, C] and ``‖s‖²``."""
    W, h, squares, start = np.zeros((len(mean), len(mean))), np.zeros_like(mean), 0.0, 0
    for one in members:
        mine = slice(start, start + len(one.Z))
        R = one.precision_factor[group]
        residual = one.pseudo_targets[group] - R.T @ mean[mine]
        W[mine, mine] = dense.product(R, R.T)
        h[mine], squares, start = R @ residual, squares + float(np.sum(residual**2)), mine.stop
    return W, h, squares


def least_lost(
    covariance: np.ndarray, information: Sequence[np.ndarray], number: int
) -> np.ndarray:
    """Indices of the points that stay when ``number`` of them are dropped, in order.

    :param covariance: K [G, R, R].
    :param information: W [R, R] of each group.
    """
    precision = reduce(np.add, map(_inverse, covariance))  # of groups, whose scale does not matter
    weight = np.array(reduce(np.add, information), order="F")
    stays = np.ones(len(precision), bool)
    while number > 0:
        dropped = _first_to_go(precision, weight, stays, min(AT_ONCE, number))
        _drop(precision, weight, dropped)
        stays[dropped] = False
        number -= len(dropped)
    return np.flatnonzero(stays)


def _inverse(K: np.ndarray) -> np.ndarray:
    """K⁻¹: scores need its diagonal and its rows, and nothing else is computed from it."""
    lower, _ = lapack.dpotri(cholesky(K, lower=True), lower=1, overwrite_c=1)
    return np.asarray(lower)


def _first_to_go(
    precision: np.ndarray, weight: np.ndarray, stays: np.ndarray, number: int
) -> np.ndarray:
    """The points whose loss is smallest, one after another; scores of the finalists are exact."""
    staying = np.flatnonzero(stays)
    losses = (weight.diagonal() / precision.diagonal())[staying]
    finalists = np.sort(staying[np.argsort(losses)[: FINALISTS * number]])
    P, W = symmetric.among(precision, finalists), symmetric.among(weight, finalists)
    gone: list[int] = []
    for _ in range(number):
        losses = W.diagonal() / P.diagonal()
        losses[gone] = np.inf
        j = int(np.argmin(losses))
        p, w = symmetric.column(P, j), symmetric.column(W, j)
        onto = p / -p[j]
        onto[j] = 0.0
        symmetric.add_outer_pair(W, onto, w + 0.5 * w[j] * onto)
        symmetric.add_outer(P, -1.0 / p[j], p)
        gone.append(j)
        _forget(P, j)
    return finalists[gone]


def _forget(precision: np.ndarray, j: int) -> None:
    """Nothing depends on point j any more."""
    symmetric.clear(precision, j)
    precision[j, j] = 1.0


def _drop(precision: np.ndarray, weight: np.ndarray, dropped: np.ndarray) -> None:
    """Make K⁻¹ and W those of the points that stay, in their rows and columns."""
    across = symmetric.columns(precision, dropped)
    chol = cholesky(across[:, dropped], lower=True)
    white = solve_triangular(chol, across, lower=True)
    onto = solve_triangular(chol, -white, lower=True, trans=1)
    onto[:, dropped] = 0.0
    moved = symmetric.columns(weight, dropped)
    symmetric.add_product_pairs(weight, onto, moved + 0.5 * moved[:, dropped] @ onto)
    symmetric.add_products(precision, -1.0, white)
    for j in dropped:
        _forget(precision, j)


def _projected(
    K: np.ndarray, W: np.ndarray, h: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """W and h of one group on the points that stay, by ``u_d = A u_k + …`` for the others."""
    dropped = np.setdiff1d(np.arange(len(K)), kept)
    chol = cholesky(K[np.ix_(kept, kept)], lower=True)
    A = cho_solve((chol, True), K[np.ix_(kept, dropped)]).T
    onto = np.asfortranarray(W[np.ix_(kept, kept)])
    moved = W[np.ix_(dropped, kept)] + 0.5 * dense.product(W[np.ix_(dropped, dropped)], A)
    symmetric.add_product_pairs(onto, A, moved)
    return onto, h[kept] + A.T @ h[dropped]
