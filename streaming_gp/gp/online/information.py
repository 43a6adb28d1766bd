"""Gaussian information about u: ``t(u) = exp(−½ uᵀ W u + hᵀ u)``, with u counted from its mean."""

from __future__ import annotations

import copy

import numpy as np

from streaming_gp.gp.online import symmetric


class Information:
    """W and h in slots.

    :param slots: The number of slots.
    :param columns: The number C of functions that share W.

    :ivar precision: W, [slots, slots].
    :ivar precision_mean: h, [slots, C].
    """

    def __init__(self, slots: int, columns: int) -> None:
        self.precision = symmetric.zeros(slots)
        self.precision_mean = np.zeros((slots, columns))

    def copy(self) -> Information:
        """The same, in arrays of its own."""
        clone = copy.copy(self)
        clone.precision = self.precision.copy(order="K")
        clone.precision_mean = self.precision_mean.copy()
        return clone

    def set(self, W: np.ndarray, h: np.ndarray) -> None:
        """Say W [M, M], h [M, C] of the first M slots, and nothing of the others."""
        self.precision[:], self.precision_mean[:] = 0.0, 0.0
        self.precision[: len(W), : len(W)] = W
        self.precision_mean[: len(W)] = h

    def observe(self, weights: np.ndarray, values: np.ndarray, precision: float) -> None:
        """Multiply by ``N(values; weightsᵀ u, 1 / precision)``, for weights [slots], values [C]."""
        symmetric.add_outer(self.precision, precision, weights)
        self.precision_mean += np.multiply.outer(precision * weights, values)

    def observe_slot(self, j: int, values: np.ndarray, precision: float) -> None:
        """Multiply by ``N(values; u_j, 1 / precision)``."""
        self.precision[j, j] += precision
        self.precision_mean[j] += precision * values

    def integrate_out(self, j: int, a: np.ndarray, c: np.ndarray | float, variance: float) -> None:
        """``∫ p(u_j | u) t(u) du_j``, for ``p(u_j | u) = N(u_j; aᵀ u + c, variance)``.

        With ``u_j = aᵀu + c + e`` and ``b = W_j + W_jj a``, the Gaussian integral over e takes
        ``κ b bᵀ``, ``κ = variance / (1 + variance W_jj)``, off the precision.

        :param a: Weights [slots], zero at j.
        :param c: Shift [C].
        """
        w = symmetric.column(self.precision, j)
        own = w[j]
        if own > 0.0:
            w[j] = 0.0
            b = w + own * a
            kappa = variance / (1.0 + variance * own)
            rest = self.precision_mean[j] - own * c
            symmetric.add_outer_pair(self.precision, a, w + 0.5 * own * a)
            symmetric.add_outer(self.precision, -kappa, b)
            self.precision_mean += np.multiply.outer(a - kappa * b, rest)
            self.precision_mean -= np.multiply.outer(w, np.broadcast_to(c, rest.shape))
        symmetric.clear(self.precision, j)
        self.precision_mean[j] = 0.0
