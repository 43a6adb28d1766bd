"""Gaussian information about u: ``t(u) = exp(−½ uᵀ W u + hᵀ u)``, with u counted from its mean."""

from __future__ import annotations

import copy
from math import sqrt

import numpy as np

from streaming_gp.numerics import symmetric


class Information:
    """W and h in slots, as the symmetric matrix ``[[W, −h], [−hᵀ, ·]]`` of ``(u, 1)``.

    What changes W changes h with it: ``u_j = aᵀ u + c`` is ``u_j = (a, c)ᵀ (u, 1)``. Functions that
    share W have a last row each.

    :param slots: The number of slots.
    :param columns: The number C of functions that share W.

    :ivar matrix: [slots + C, slots + C]; its last C rows and columns meet in numbers without use.
    """

    def __init__(self, slots: int, columns: int) -> None:
        self.matrix = symmetric.zeros(slots + columns)
        self.slots = slots

    def copy(self) -> Information:
        """The same, in arrays of its own."""
        clone = copy.copy(self)
        clone.matrix = self.matrix.copy(order="K")
        return clone

    @property
    def precision(self) -> np.ndarray:
        """W, [slots, slots]; its lower triangle counts."""
        return self.matrix[: self.slots, : self.slots]

    @property
    def precision_mean(self) -> np.ndarray:
        """h, [slots, C]."""
        return -self.matrix[self.slots :, : self.slots].T

    def set(self, W: np.ndarray, h: np.ndarray) -> None:
        """Say W [M, M], h [M, C] of the first M slots, and nothing of the others."""
        self.matrix[:] = 0.0
        self.matrix[: len(W), : len(W)] = W
        self.matrix[self.slots :, : len(h)] = -h.T

    def observe(self, weights: np.ndarray, values: np.ndarray, precision: float) -> None:
        """Multiply by ``N(values; weightsᵀ u, 1 / precision)``, for values [C].

        :param weights: [slots + C], zero in the last rows.
        """
        observed = weights.copy()
        observed[self.slots :] = -values
        symmetric.add_outer(self.matrix, precision, observed)

    def observe_slot(self, j: int, values: np.ndarray, precision: float) -> None:
        """Multiply by ``N(values; u_j, 1 / precision)``."""
        self.matrix[j, j] += precision
        self.matrix[self.slots :, j] -= precision * values

    def integrate_out(self, j: int, a: np.ndarray, variance: float) -> None:
        """``∫ p(u_j | u) t(u) du_j``, for ``p(u_j | u) = N(u_j; aᵀ (u, 1), variance)``.

        With w = W_j, ``b = w + W_jj a`` and ``θ = 1 / (1 + variance W_jj)``, the Gaussian integral
        leaves ``W + a wᵀ + w aᵀ + W_jj a aᵀ − θ variance b bᵀ``. This is
        ``W + θ (W_jj a aᵀ + a wᵀ + w aᵀ − variance w wᵀ)``, a change of rank two.

        :param a: Weights [slots + C], zero at j.
        """
        w = symmetric.column(self.matrix, j)
        weight = w[j]
        if weight > 0.0:
            w[j] = 0.0
            theta = 1.0 / (1.0 + variance * weight)
            root = sqrt(theta)
            s, half = -variance * root / (1.0 + root), 0.5 * theta * weight
            symmetric.add_outer_pair(self.matrix, a + s * w, half * a + (theta - s * half) * w)
        symmetric.clear(self.matrix, j)


def integrate_out_of_both(
    base: Information, own: Information, j: int, Qj: np.ndarray, a: np.ndarray
) -> None:
    """u_j out of the base under the prior, and out of what was learned under prior and base.

    :param Qj: Column j of the prior precision [slots + C].
    :param a: ``−Qj / Qj[j]``, zero at j: the weights of u_j given the others.
    """
    known = symmetric.column(base.matrix, j)
    if known[j] > 0.0:
        total = Qj[j] + known[j]
        under_base = (Qj + known) / -total
        under_base[j] = 0.0
        own.integrate_out(j, under_base, 1.0 / total)
    else:
        own.integrate_out(j, a, 1.0 / Qj[j])
    base.integrate_out(j, a, 1.0 / Qj[j])
