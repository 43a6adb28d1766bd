"""Which points of a process matter least, and what the others keep of them."""

from __future__ import annotations

import numpy as np
from scipy import linalg

DROPPED_AT_ONCE = 0.1
"""The share of the points that one pass may drop."""
LARGEST_OVERLAP = 0.25
"""Squared partial correlation of two points, above which one pass does not drop both: one of them
may be all that stands for the other."""


def losses(Q: np.ndarray, gamma: np.ndarray, alpha: np.ndarray, W: np.ndarray) -> np.ndarray:
    """What the posterior loses without each point: ``KL(p(u) ‖ p(u_r) p₀(u_j | u_r))``, in nats.

    With ``p₀(u_j | u_r)`` of precision Q_jj and ``p(u_j | u_r)`` of precision Q_jj + W_jj this is
    ``½ Σ_c [log(1 + W_jj / Q_jj) + (α_jc² − Γ_jj) / Q_jj]``.

    :param Q: The diagonal of Q [M].
    :param gamma: The diagonal of Γ [M].
    :param alpha: α [M, C].
    :param W: The diagonal of W [M].
    """
    C = alpha.shape[1]
    nats = C * np.log1p(W / Q) + (np.einsum("mc,mc->m", alpha, alpha) - C * gamma) / Q
    return 0.5 * nats


def kept_points(K: np.ndarray, V: np.ndarray, mean: np.ndarray, number: int) -> np.ndarray:
    """The indices of ``number`` points, after those that matter least went in a few passes.

    :param K: Their prior covariance [R, R], nugget included.
    :param V: Their posterior covariance [R, R].
    :param mean: Their posterior mean less the prior's [R, C].
    """
    kept = np.arange(len(K))
    while len(kept) > number:
        among = np.ix_(kept, kept)
        Q, P = _inverse(K[among]), _inverse(V[among])
        gamma = Q.diagonal() - np.einsum("ij,ij->i", Q @ V[among], Q)
        W = np.maximum(P.diagonal() - Q.diagonal(), 0.0)
        order = np.argsort(losses(Q.diagonal(), gamma, Q @ mean[kept], W))
        most = min(len(kept) - number, max(1, int(DROPPED_AT_ONCE * len(kept))))
        kept = np.delete(kept, _apart(Q, order, most))
    return kept


def _apart(Q: np.ndarray, order: np.ndarray, most: int) -> list[int]:
    """The first points in order that do not stand for one another."""
    scale = np.sqrt(Q.diagonal())
    overlap = (Q / np.multiply.outer(scale, scale)) ** 2
    chosen: list[int] = []
    for j in order:
        if len(chosen) == most:
            break
        if not chosen or overlap[j, chosen].max() < LARGEST_OVERLAP:
            chosen.append(int(j))
    return chosen


def _inverse(A: np.ndarray) -> np.ndarray:
    """Its entries themselves say what a point loses."""
    return linalg.cho_solve(linalg.cho_factor(A, lower=True), np.eye(len(A)))
