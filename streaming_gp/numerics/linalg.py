"""Linear algebra through Cholesky and QR factors; nothing here forms an inverse."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

LOG_TWO_PI = float(np.log(2.0 * np.pi))
"""``log 2π``."""


def logdet_from_cholesky(chol: tf.Tensor) -> tf.Tensor:
    """``log det A`` [...] from the lower factor [..., N, N] of ``A = L Lᵀ``."""
    return 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)), axis=-1)


def solve_lower(chol: tf.Tensor, rhs: tf.Tensor, adjoint: bool = False) -> tf.Tensor:
    """``L⁻¹ rhs`` for a lower factor ``chol`` [..., N, N] and ``rhs`` [..., N, K].

    A factor without batch axes, or with axes of size one, is broadcast against ``rhs``.
    """
    return tf.linalg.triangular_solve(chol, rhs, adjoint=adjoint)


def solve_lower_transposed(chol: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
    """``L⁻ᵀ rhs``, otherwise as :func:`solve_lower`."""
    return solve_lower(chol, rhs, adjoint=True)


def add_to_diagonal(matrix: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """``matrix + diag(values)`` for ``matrix`` [..., N, N] and broadcastable ``values`` [N]."""
    diagonal = tf.linalg.diag_part(matrix)
    return tf.linalg.set_diag(matrix, diagonal + values)


def compress_rows(rows: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace N observations ``targets ≈ rows @ u`` by M that carry the same information on u.

    With the economy factorisation ``rows = Q T`` the likelihood ``N(targets; rows u, I)`` equals
    ``N(Qᵀ targets; T u, I)`` up to a constant. Missing rows (N < M) are zeros: they say nothing.

    :param rows: [..., N, M].
    :param targets: [..., N, C].
    :returns: their counterparts [..., M, M] and [..., M, C].
    """
    q, t = np.linalg.qr(rows)
    s = np.swapaxes(q, -1, -2) @ targets
    missing = rows.shape[-1] - t.shape[-2]
    padding = [(0, 0)] * (rows.ndim - 2) + [(0, missing), (0, 0)]
    return np.pad(t, padding), np.pad(s, padding)
