"""A Gaussian process on at most so many points, updated one observation at a time.

With ``u = f(Z)`` + nugget noise, ``K = k(Z, Z) + nugget``, and information (W, h) about u counted
from its prior mean:

- ``Q = K⁻¹``, ``Γ = (K + W⁻¹)⁻¹`` and ``α = (I + W K)⁻¹ h``;
- mean ``m(x) + k(x, Z) α``, covariance ``k(x, x') − k(x, Z) Γ k(Z, x')``.

An observation adds one point; beyond the budget the point goes that matters least. What is left is
the exact marginal of the others, as in Csató & Opper (2002, "Sparse on-line Gaussian processes"):
``p(u_j | u)`` is integrated out of both parts of the information, of what was known before and of
what was learned since. All changes are of rank one or two. Q, an inverse, is held as its entries
say what a point loses and how others stand for it. Every change of Γ is one of α as well, whose
negative is held as the last C rows of the same matrix (as h is of W, see
:class:`.Information`).

What a point matters is the KL divergence by which the posterior changes without it, times its
relevance: the largest prior correlation with an input that came t observations ago, times
``exp(−t / memory)``. A stream that moves on leaves points behind that no input comes near.
"""

from __future__ import annotations

import copy
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from streaming_gp.gp.online.information import Information, integrate_out_of_both
from streaming_gp.gp.online.kernel import KnownProcess
from streaming_gp.gp.online.rows import rows_of
from streaming_gp.gp.online.selection import losses
from streaming_gp.gp.online.soundness import clear_error, is_sound, sound
from streaming_gp.gp.process.observations import PseudoObservations, factored
from streaming_gp.numerics import symmetric
from streaming_gp.numerics.linalg import LOG_TWO_PI

MOST_ROUNDING = 0.01
"""Of a variance below zero, as a part of nugget or noise: beyond, inverses are computed anew."""
REFRESH, DELICATE = 2, 1e-3
"""Where the noise is so small a part of the prior's variance, rounding grows with every change:
inverses are also computed anew after so many observations for each point."""
SMALLEST_VARIANCE = 1e-12
"""Of a prediction, as a part of the prior's: rounding below is cut off."""


class _Seen(NamedTuple):
    """An observation, as the process sees it.

    :param row: x as the rows hold it.
    :param slot: Where its point would be.
    :param q: Q k [slots + C], −1 at the slot and zero in the last rows.
    :param g: Γ k [slots + C], −1 at the slot, and in the last rows the residuals.
    :param correlation: The prior's, of f(x) with f at each point [slots + C].
    :param scale: The prior standard deviation of f(x).
    :param rounding: How far the variances of f(x) lie below 0, as a part of what is added to them.
    :param novelty: The prior variance of its u given the others.
    :param variance: The predictive variance of y.
    :param centred: y less its prior mean [C].
    :param residual: y less its predictive mean [C].
    """

    row: Any
    slot: int
    q: np.ndarray
    g: np.ndarray
    correlation: np.ndarray
    scale: float
    rounding: float
    novelty: float
    variance: float
    centred: np.ndarray
    residual: np.ndarray

    def log_density(self) -> float:
        """``log N(y; mean, variance)``, in nats."""
        squared = float(self.residual @ self.residual) / self.variance
        return -0.5 * (len(self.residual) * (log(self.variance) + LOG_TWO_PI) + squared)


class OnlineState:
    """The process and its algebra.

    :param process: Prior and noise.
    :param budget: The largest number of points.
    :param input_dim: D.
    :param columns: The number C of functions that share the kernel.
    :param nugget: The variance of the points' white noise, less than that of the observations.
    :param memory: The number of observations in which relevance falls e-fold; infinite for never.
    """

    def __init__(
        self,
        process: KnownProcess,
        budget: int,
        input_dim: int,
        columns: int,
        nugget: float,
        memory: float,
    ) -> None:
        self.slots = slots = budget + 1
        size = slots + columns
        self.process = process
        self.budget = budget
        self.nugget = nugget
        self.memory = memory
        self._precision = 1.0 / (process.noise - nugget)  # of u: the nugget is a part of the noise
        self.rows = rows_of(process.kernel, size, input_dim)  # the last C stay empty
        self.base, self.own = Information(slots, columns), Information(slots, columns)
        self.log_evidence = 0.0
        self.input_dim, self.columns = input_dim, columns
        self._Q, self._gamma = symmetric.zeros(size), symmetric.zeros(size)
        self._last: tuple[bytes, tuple[Any, ...]] | None = None
        self._relevance, self._scale = np.zeros(size), np.ones(size)
        self._since_refresh = 0

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [C] of f(x), for x [D]."""
        _, k, g, prior, mean = self._met(x)
        is_delicate = self.process.noise < DELICATE * prior
        least = MOST_ROUNDING * self.process.noise if is_delicate else 0.0
        variance = max(prior - float(k @ g), SMALLEST_VARIANCE * prior, least)
        return mean - g[self.slots :], np.full(self.columns, variance)

    def _met(self, x: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, float, np.ndarray]:
        """x as a row, k(Z, x), Γ k(Z, x), prior variance and mean; the last x is at hand."""
        name = x.tobytes()
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        row = self.rows.row_of(x)
        k, prior, mean = (
            self.rows.against(row),
            self.process.variance_at(x),
            self.process.mean_at(x),
        )
        for is_anew in (False, True):
            self._gamma[self.slots :, self.slots :] = 0.0  # where squares of residuals gather
            g = symmetric.times(self._gamma, k)
            if is_anew or is_sound(prior - float(k @ g), prior):
                break
            self.refresh()  # of rounding that has grown
        sound(prior - float(k @ g), prior)
        self._last = name, (row, k, g, prior, mean)
        return self._last[1]

    def learn(self, x: np.ndarray, y: np.ndarray) -> None:
        """Condition on ``y = f(x) + noise``, for x [D] and y [C]."""
        seen = self._seen(x, y)
        self._since_refresh += 1
        is_due = self._since_refresh > REFRESH * self.budget
        if seen.rounding > MOST_ROUNDING or (
            is_due and self.process.noise < DELICATE * seen.scale**2
        ):
            self.refresh()
            seen = self._seen(x, y)
        self.log_evidence += sound(seen.log_density())
        self._relevance = np.maximum(exp(-1.0 / self.memory) * self._relevance, seen.correlation)
        if np.count_nonzero(self.rows.is_used) < self.budget:
            self._add(x, seen)
            return
        least = int(np.argmin(self._what_matters(seen)))
        if self.rows.is_used[least]:
            self._add(x, seen)
            self._remove(least)
        else:
            self._project(seen)

    # ---- one observation ----

    def _seen(self, x: np.ndarray, y: np.ndarray) -> _Seen:
        row, k, g, prior, mean = self._met(x)
        self._last = None
        q, g, centred = symmetric.times(self._Q, k), g.copy(), y - mean
        novelty, variance = prior - float(k @ q), prior - float(k @ g)
        slot = self.rows.free_slot
        q[slot] = g[slot] = -1.0
        g[self.slots :] += centred
        return _Seen(
            row,
            slot,
            q,
            g,
            correlation=np.abs(k) / (sqrt(prior) * self._scale),
            scale=sqrt(prior),
            rounding=max(-novelty / self.nugget, -variance / self.process.noise),
            novelty=max(novelty, 0.0) + self.nugget,
            variance=max(variance, 0.0) + self.process.noise,
            centred=centred,
            residual=g[self.slots :].copy(),
        )

    def _what_matters(self, seen: _Seen) -> np.ndarray:
        """How much each point [slots] matters after it, its own among them."""
        slots, q, g = self.slots, seen.q[: self.slots], seen.g[: self.slots]
        Q = self._Q.diagonal()[:slots] + q * q / seen.novelty
        gamma = self._gamma.diagonal()[:slots] + g * g / seen.variance
        alpha = self._gamma[slots:, :slots] + np.multiply.outer(seen.residual / seen.variance, g)
        W = (self.base.matrix.diagonal() + self.own.matrix.diagonal())[:slots]
        W[seen.slot], self._relevance[seen.slot] = self._precision, 1.0
        return losses(Q, gamma, alpha, W) * self._relevance[:slots]

    def _add(self, x: np.ndarray, seen: _Seen) -> None:
        """A point at x, and what it observed."""
        self._put(seen.slot, x, seen.row, seen.scale)
        symmetric.add_outer(self._Q, 1.0 / seen.novelty, seen.q)
        symmetric.add_outer(self._gamma, 1.0 / seen.variance, seen.g)
        self.own.observe_slot(seen.slot, seen.centred, self._precision)

    def _put(self, j: int, x: np.ndarray, row: Any, scale: float) -> None:
        self.rows.put(j, x, row)
        self._relevance[j], self._scale[j] = 1.0, scale

    def _remove(self, j: int) -> None:
        """Leave the marginal of all points but j."""
        self._last = None
        Qj, gamma_j = symmetric.column(self._Q, j), symmetric.column(self._gamma, j)
        a = Qj / -Qj[j]
        a[j] = 0.0
        symmetric.add_outer(self._Q, -1.0 / Qj[j], Qj)
        symmetric.clear(self._Q, j)
        symmetric.add_outer_pair(self._gamma, a, gamma_j + 0.5 * gamma_j[j] * a)
        symmetric.clear(self._gamma, j)
        integrate_out_of_both(self.base, self.own, j, Qj, a)
        self.rows.drop(j)

    def _project(self, seen: _Seen) -> None:
        """The same as adding the point and removing it at once."""
        symmetric.add_outer(self._gamma, 1.0 / seen.variance, seen.q - seen.g)
        noise = self.process.noise + seen.novelty - self.nugget
        seen.q[seen.slot] = 0.0
        self.own.observe(seen.q, seen.centred, 1.0 / noise)

    # ---- as a whole ----

    def copy(self) -> OnlineState:
        """A state that goes on by itself; prior and noise are shared."""
        clone = copy.copy(self)
        clone._last = None
        clone.rows = self.rows.copy()
        clone.base, clone.own = self.base.copy(), self.own.copy()
        clone._Q, clone._gamma = self._Q.copy(order="K"), self._gamma.copy(order="K")
        clone._relevance, clone._scale = self._relevance.copy(), self._scale.copy()
        return clone

    def hold(
        self,
        Z: np.ndarray,
        base: tuple[np.ndarray, np.ndarray],
        own: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Hold these points [M, D] and this information about them, instead of all present ones.

        :param base: W [M, M] and h [M, C] of what was known before.
        :param own: The same of what was learned since.
        """
        self.rows.is_used[:] = False
        for slot, z in enumerate(Z):
            self._put(slot, z, self.rows.row_of(z), sqrt(self.process.variance_at(z)))
        self.base.set(*base)
        self.own.set(*own)
        self.refresh()

    @clear_error()
    def refresh(self) -> None:
        """Q, Γ and α computed anew from the points and the information."""
        self._last, self._since_refresh = None, 0
        used = np.flatnonzero(self.rows.is_used)
        among, size = np.ix_(used, used), len(used)
        Z = self.rows.Z[used]
        K = self.process.among(Z) + self.nugget * np.eye(size)
        W = symmetric.full(self.base.precision) + symmetric.full(self.own.precision)
        h = self.base.precision_mean + self.own.precision_mean
        R, targets = factored(W[among], h[used])
        B = linalg.cho_factor(np.eye(size) + R.T @ K @ R, lower=True)
        found = R @ linalg.cho_solve(B, np.hstack([R.T, targets]))
        inverse = linalg.cho_solve(linalg.cho_factor(K, lower=True), np.eye(size))
        self._Q[:], self._gamma[:] = 0.0, 0.0
        self._Q[among], self._gamma[among] = inverse, found[:, :size]
        self._gamma[self.slots :, used] = -found[:, size:].T

    def settle(self) -> None:
        """What was learned becomes a part of what was known before."""
        self.base.matrix += self.own.matrix
        self.own.matrix[:] = 0.0
        self.log_evidence = 0.0

    def own_observations(self) -> PseudoObservations | None:
        """What was learned, as a factor holds it; None if that is nothing."""
        W = symmetric.full(self.own.precision)
        used = np.flatnonzero(W.any(axis=0))
        if not used.size:
            return None
        Z, W = self.rows.Z[used], W[np.ix_(used, used)]
        h = self.own.precision_mean[used] + W @ self.process.mean(Z)
        R, targets = factored(W, h)
        return PseudoObservations(Z, R[None], targets[None], self.nugget)
