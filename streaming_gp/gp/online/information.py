"""Gaussian information about u: ``t(u) = exp(−½ uᵀ W u + hᵀ u)``, with u counted from its mean."""

from __future__ import annotations

import copy
from math import sqrt

import numpy as np
from scipy import linalg

from streaming_gp.gp.online import symmetric

SMALLEST_PRECISION = 1e-14
"""In any direction, as a part of the largest: rounding below is cut off."""


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

        With w = W_j, ``b = w + W_jj a`` and ``θ = 1 / (1 + variance W_jj)``, the Gaussian integral
        leaves ``W + a wᵀ + w aᵀ + W_jj a aᵀ − θ variance b bᵀ``. This is
        ``W + θ (W_jj a aᵀ + a wᵀ + w aᵀ − variance w wᵀ)``, a change of rank two.

        :param a: Weights [slots], zero at j.
        :param c: Shift [C].
        """
        w = symmetric.column(self.precision, j)
        weight = w[j]
        if weight > 0.0:
            w[j] = 0.0
            theta = 1.0 / (1.0 + variance * weight)
            rest = theta * (self.precision_mean[j] - weight * c)
            shift = rest * variance + c
            self.precision_mean += np.multiply.outer(a, rest) - np.multiply.outer(w, shift)
            root = sqrt(theta)
            s, half = -variance * root / (1.0 + root), 0.5 * theta * weight
            symmetric.add_outer_pair(self.precision, a + s * w, half * a + (theta - s * half) * w)
        symmetric.clear(self.precision, j)
        self.precision_mean[j] = 0.0


def factored(W: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R [M, M] and s [M, C] with ``W = R Rᵀ`` and ``h = R s``."""
    values, vectors = linalg.eigh(W)
    roots = np.sqrt(np.where(values > SMALLEST_PRECISION * values[-1], values, 0.0))[:, None]
    targets = np.divide(vectors.T @ h, roots, where=roots > 0.0, out=np.zeros_like(h))
    return vectors * roots.T, targets


def integrate_out_of_both(
    base: Information, own: Information, j: int, Qj: np.ndarray, a: np.ndarray
) -> None:
    """u_j out of the base under the prior, and out of what was learned under prior and base.

    :param Qj: Column j of the prior precision [slots].
    :param a: ``−Qj / Qj[j]``, zero at j: the weights of u_j given the others.
    """
    known = symmetric.column(base.precision, j)
    if known[j] > 0.0:
        total = Qj[j] + known[j]
        under_base = (Qj + known) / -total
        under_base[j] = 0.0
        own.integrate_out(j, under_base, base.precision_mean[j] / total, 1.0 / total)
    else:
        own.integrate_out(j, a, 0.0, 1.0 / Qj[j])
    base.integrate_out(j, a, 0.0, 1.0 / Qj[j])
