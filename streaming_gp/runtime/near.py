"""Predictions that condition on near rows alone, as the model that was exported does.

Of the rows (z, r) the k that would each alone reduce the variance at x most are conditioned on,

- ``w = (K_NN + diag r_N)⁻¹ k_N``
- mean ``m(x) + wᵀ (z_N − m_N)``, variance ``k(x, x) − wᵀ k_N``,

and where there are points that are conditioned on as a whole, k and m are those given them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from streaming_gp.errors import NumericalError
from streaming_gp.numerics.neighbors import Index
from streaming_gp.runtime.kernels import Constant, Isotropic, Kernel, Sum, White

JITTERS = 1e-10, 1e-8, 1e-6, 1e-4
"""Noise that makes up for rounding, as parts of the prior variance: the least that does."""
SMALLEST_VARIANCE = 1e-12
"""As a part of the prior variance: rounding below is cut off."""
AT_ONCE = 2**22
"""The largest number of elements of the covariances that are factorised at once."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What is conditioned on where it is near, at one ε.

    :param number: k, the number of neighbours.
    :param inputs: Which of the sets of inputs of the file are theirs.
    :param targets: z [G, n, C].
    :param noise: r [G, n].
    """

    number: int
    inputs: int
    targets: np.ndarray
    noise: np.ndarray


class Neighbors:
    """Which rows are near, by one kernel.

    :param kernel: The kernel.
    :param Z: The rows [n, D].
    :param noise: The variance of their noise [n].
    """

    def __init__(self, kernel: Kernel, Z: np.ndarray, noise: np.ndarray) -> None:
        self._kernel, self._noise = kernel, noise
        self._metric = _metric_of(kernel)
        self._differ = bool(noise.max() > 1.5 * noise.min())
        if self._metric is None:
            self._at_rows, self._variance = kernel.bind(Z), kernel.variance(Z)
        else:
            self._index = Index.of(self._coordinates(Z))

    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        assert self._metric is not None
        columns = X if self._metric.columns is None else X[:, self._metric.columns]
        return np.ascontiguousarray(columns / self._metric.lengthscales)

    def of(self, X: np.ndarray, number: int) -> np.ndarray:
        """Those of inputs X [B, D]: [B, k]."""
        size = len(self._noise)
        if self._metric is None:
            return self._of_largest_correlation(X, number)
        places = self._coordinates(X)
        if number == size or not self._differ:
            return self._index.nearest(places, number)
        found = self._index.nearest(places, min(2 * number, size))
        gaps = places[:, None] - self._index.coordinates[found]
        k = self._metric.of_squared_distance(np.einsum("bkd,bkd->bk", gaps, gaps))
        own = float(self._metric.of_squared_distance(np.zeros(1))[0])
        return np.take_along_axis(found, _largest(k**2 / (own + self._noise[found]), number), 1)

    def _of_largest_correlation(self, X: np.ndarray, number: int) -> np.ndarray:
        found = np.empty((len(X), number), int)
        step = max(1, AT_ONCE // len(self._noise))
        for start in range(0, len(X), step):
            some = slice(start, start + step)
            gain = self._at_rows(X[some]).T ** 2 / (self._variance + self._noise)
            found[some] = _largest(gain, number)
        return found


def _largest(values: np.ndarray, number: int) -> np.ndarray:
    """Where so many of the largest of each row of values are."""
    return np.argpartition(-values, number - 1, axis=1)[:, :number]


def _metric_of(kernel: Kernel) -> Isotropic | None:
    """The part in whose lengthscales distances say all of a kernel's correlations; or None."""
    if isinstance(kernel, Sum):
        parts = [part for part in kernel.parts if not isinstance(part, (Constant, White))]
        return _metric_of(parts[0]) if len(parts) == 1 else None
    return kernel if isinstance(kernel, Isotropic) else None


def solved(
    kernel: Kernel,
    X: np.ndarray,
    Z: np.ndarray,
    errors: np.ndarray,
    noise: np.ndarray,
    far: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """What rows of its own say at each input X [B, D].

    :param Z: [B, k, D].
    :param errors: ``z − m`` [B, k, C].
    :param noise: r [B, k].
    :param far: What far points know of the rows [B, k, M] and of X [B, M].
    :returns: ``wᵀ (z − m)`` [B, C] and the variance left [B].
    """
    among, k = kernel.about(Z, X)
    diagonal, own = kernel.variance(Z), kernel.variance(X)
    if far is not None:
        V, v = far
        among = among - V @ np.swapaxes(V, 1, 2)
        k = k - np.einsum("bkm,bm->bk", V, v)
        diagonal, own = diagonal - np.sum(V**2, axis=-1), own - np.sum(v**2, axis=-1)
    both = np.concatenate([k[..., None], errors], axis=-1)
    for jitter in JITTERS:
        np.einsum("bkk->bk", among)[:] = diagonal * (1.0 + jitter) + noise
        try:
            white = np.stack([_whitened(K, b) for K, b in zip(among, both, strict=True)])
        except np.linalg.LinAlgError:
            continue
        known = np.einsum("bk,bkc->bc", white[..., 0], white[..., 1:])
        left = own - np.einsum("bk,bk->b", white[..., 0], white[..., 0])
        return known, np.maximum(left, SMALLEST_VARIANCE * own)
    raise NumericalError("the covariance of neighbours is not positive")


def _whitened(K: np.ndarray, b: np.ndarray) -> np.ndarray:
    L = cholesky(K, lower=True, check_finite=False)
    return np.asarray(solve_triangular(L, b, lower=True, check_finite=False))
