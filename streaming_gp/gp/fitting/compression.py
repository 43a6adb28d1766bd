"""The part of a cavity that matters to a batch: what its hyperparameters are learned under.

A fit over ε asks for the cavity at many values of ε; what that costs must not grow with the stream.
Under a few points near the batch it does not: data among them as they are, merged points by what
the cavity says of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import eigh

from streaming_gp.gp.fitting.problem import NUGGET
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.numerics import dense, triangular
from streaming_gp.numerics.linalg import compress_rows

MOST_ROWS = 1000
"""Of more observations of one input each, those closest to a batch are looked at."""
PROBES = 100
"""What a point explains is looked at on so many inputs of the batch."""
CERTAIN = 1e-10
"""Share of the prior variance below which what is left of it is taken for rounding."""


def nearby(
    prior: PriorAt,
    factorised: Callable[[Process], DenseProcess],
    cavity: Process,
    X: np.ndarray,
    number: int,
) -> Process:
    """The cavity's marginal at ``number`` of its points near X, as pseudo-observations of these.

    At the ε of ``prior`` it is that marginal exactly; at other values of ε they are what they
    are, observations of f.

    :param prior: The prior at one ε.
    :param factorised: Gives a process at that ε.
    :param cavity: The cavity, whose q(ε) stays.
    :param X: The inputs of the batch [N, D].
    :param number: The largest number of points.
    """
    process = factorised(Process(_closest_rows(prior, plain(cavity), X)))
    Z = np.concatenate([one.Z for one in process.members])
    points = Z[_most_correlated(process, X, Z, number)]
    observations = (_marginal(process, points),) if len(points) > 0 else ()
    return Process(observations, cavity.hyperparameters)


def _closest_rows(
    prior: PriorAt, observations: tuple[PseudoObservations, ...], X: np.ndarray
) -> tuple[PseudoObservations, ...]:
    """Where there are very many observations of one input each, those closest to X."""
    single = [one.is_diagonal for one in observations]
    number = sum(len(one.Z) for one, alone in zip(observations, single, strict=True) if alone)
    if number <= MOST_ROWS:
        return observations
    closeness = [
        prior.covariance(one.Z, X).mean(axis=0).max(axis=1) if alone else None
        for one, alone in zip(observations, single, strict=True)
    ]
    values = np.concatenate([close for close in closeness if close is not None])
    least = np.partition(values, -MOST_ROWS)[-MOST_ROWS]
    return tuple(
        one if close is None else _rows(one, np.flatnonzero(close >= least))
        for one, close in zip(observations, closeness, strict=True)
        if close is None or close.max() >= least
    )


def _rows(one: PseudoObservations, kept: np.ndarray) -> PseudoObservations:
    factor = one.precision_factor[:, kept][:, :, kept]
    return PseudoObservations(one.Z[kept], factor, one.pseudo_targets[:, kept], one.nugget)


def _most_correlated(
    process: DenseProcess, X: np.ndarray, Z: np.ndarray, number: int
) -> np.ndarray:
    """Points that explain most of the prior variance at X, one after another.

    A point j explains ``Σ_n cov(f_n, f_j)² / var(f_j)``, given those before. There are none where
    X is so far from all of them that every covariance is zero.
    """
    probes = X[np.unique(np.linspace(0, len(X) - 1, PROBES).astype(int))]
    between = process.prior.covariance(probes, Z).mean(axis=0)
    K = process.prior.covariance(Z).mean(axis=0)
    known = np.zeros((number, len(Z)))
    variance = K.diagonal().copy()
    floor = NUGGET * variance.max()
    chosen: list[int] = []
    for row in known:
        explained = np.sum(between**2, axis=0) / np.maximum(variance, floor)
        explained[variance <= floor] = -1.0
        best = int(np.argmax(explained))
        if explained[best] <= 0.0:
            break
        before = known[: len(chosen)]
        column = K[best] - before.T @ before[:, best]
        between -= np.outer(between[:, best] / variance[best], column)
        row[:] = column / np.sqrt(variance[best])
        variance = variance - row**2
        variance[best] = 0.0
        chosen.append(best)
    return np.array(chosen, dtype=int)


def _marginal(process: DenseProcess, points: np.ndarray) -> PseudoObservations:
    """Pseudo-observations that turn the prior at the points into the process's marginal.

    With ``K = L Lᵀ`` the covariance is ``L (I − A Aᵀ) Lᵀ``, which adds the precision
    ``L⁻ᵀ U diag(e / (1 − e)) Uᵀ L⁻¹`` for ``A Aᵀ = U diag(e) Uᵀ``.
    """
    prior = process.prior
    V = process.project(points)
    K = prior.covariance(points)
    nugget = NUGGET * float(np.mean(np.diagonal(K, axis1=1, axis2=2)))
    chol = np.linalg.cholesky(K + nugget * np.eye(len(points)))
    A = _solved(chol, np.swapaxes(V, 1, 2))
    pairs = [eigh(dense.product(one, one.T), driver="evd") for one in A]
    explained, U = (np.stack(part) for part in zip(*pairs, strict=True))
    explained = np.clip(explained, 0.0, 1.0 - CERTAIN)[:, :, None]
    gain = np.sqrt(explained / (1.0 - explained))
    factor = _solved(chol, U * np.swapaxes(gain, 1, 2), transposed=True)
    shift = _solved(chol, process.mean(points, V) - prior.mean(points))
    white = np.swapaxes(U, 1, 2) @ shift
    # s makes the mean of the whitened points what it is: (1 + g²) mean = g s̃, and s = s̃ + Rᵀ m.
    told = np.where(gain > 0.0, white * (1.0 + gain**2) / np.maximum(gain, CERTAIN), 0.0)
    rows = np.swapaxes(factor, 1, 2)
    rows, targets = compress_rows(rows, told + rows @ prior.mean(points))  # to a triangle
    return PseudoObservations(points, np.swapaxes(rows, 1, 2), targets, nugget)


def _solved(chol: np.ndarray, rhs: np.ndarray, transposed: bool = False) -> np.ndarray:
    """``L⁻¹ rhs`` or ``L⁻ᵀ rhs`` for G lower factors [G, N, N] and rhs [G, N, K]."""
    pairs = zip(chol, rhs, strict=True)
    return np.stack([triangular.solve(L, b, transposed) for L, b in pairs])
