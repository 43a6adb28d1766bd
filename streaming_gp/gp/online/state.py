"""A Gaussian process on at most so many points, updated one observation at a time.

With ``u = f(Z)`` + nugget noise, ``K = k(Z, Z) + nugget``, and information about u counted from its
prior mean, ``t(u) = exp(−½ uᵀ W u + hᵀ u)``:

- ``Q = K⁻¹``, ``Γ = (K + W⁻¹)⁻¹`` and ``α = (I + W K)⁻¹ h``;
- mean ``m(x) + k(x, Z) α``, covariance ``k(x, x') − k(x, Z) Γ k(Z, x')``.

An observation adds one point; beyond the budget the point goes that matters least. What is left is
the exact marginal of the others, as in Csató & Opper (2002, "Sparse on-line Gaussian processes"):
``p(u_j | u)`` is integrated out of both parts of the information, of the base that was known before
and of what was learned since. All changes are of rank one or two. Q, an inverse, is held as its
entries say what a point loses and how others stand for it.

What a point matters is the KL divergence by which the posterior changes without it, times its
relevance: the largest prior correlation with an input that came t observations ago, times
``exp(−t / memory)``. A stream that moves on leaves points behind that no input comes near.

All here are functions of values: :func:`project` and :func:`moments` predict and write nothing;
:func:`observe` gives the next state. It writes over the arrays of the state before, which nobody
may use any more: whoever wants to keep that state has a copy (:func:`copied`).

Matrices are symmetric, and their lower triangle counts (:mod:`streaming_gp.numerics.symmetric`).
They have a row for each of ``budget + 1`` slots, zero where it is empty, and one more for each of
the C functions that share the kernel: information is ``[[W, −h], [−hᵀ, ·]]``, that of ``(u, 1)``,
and Γ has −α there, as what changes W changes h with it, and what changes Γ changes α.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import exp, inf, isfinite, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from streaming_gp.errors import NumericalError
from streaming_gp.gp.process.observations import PseudoObservations, factored
from streaming_gp.numerics import symmetric
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.runtime import Kernel

MOST_ROUNDING = 0.01
"""Of a variance below zero, as a part of nugget or noise: beyond, inverses are computed again."""
REFRESH, DELICATE = 2, 1e-3
"""Where the noise is so small a part of the prior's variance, rounding grows with every change:
inverses are also computed again after so many observations for each point."""
SMALLEST_VARIANCE = 1e-12
"""Of a prediction, as a part of the prior's: rounding below is cut off."""
FURTHEST_BELOW = 0.5
"""Of a variance below zero, as a part of the prior's: rounding alone leaves it nearer to zero."""


class OnlinePrior(NamedTuple):
    """The prior of f and the noise, at one value of ε, and how many points are held.

    :param kernel: The covariance function.
    :param mean: The mean [N, C] at inputs [N, D].
    :param columns: The number C of functions that share the kernel.
    :param noise: The variance of the Gaussian noise, in squared units of f.
    :param nugget: The variance of the points' white noise, less than that of the observations.
    :param budget: The largest number of points.
    :param memory: The number of observations in which relevance falls e-fold; infinite for never.
    """

    kernel: Kernel
    mean: Callable[[np.ndarray], np.ndarray]
    columns: int
    noise: float
    nugget: float
    budget: int
    memory: float

    @property
    def slots(self) -> int:
        """The number of places for points: one more than the budget."""
        return self.budget + 1

    @property
    def precision(self) -> float:
        """Of an observation of u: the nugget is a part of the noise."""
        return 1.0 / (self.noise - self.nugget)

    def among(self, Z: np.ndarray) -> np.ndarray:
        """Covariances [R, R] of f at points [R, D]; white noise is on the diagonal alone."""
        K = self.kernel.covariance(Z, Z)
        np.fill_diagonal(K, self.kernel.variance(Z))
        return K


class OnlineState(NamedTuple):
    """All that the next step needs; see the module for the matrices [slots + C, slots + C].

    :param Z: The points [slots + C, D], in slots.
    :param is_used: Which slots hold one [slots + C].
    :param relevance: Of the points [slots + C].
    :param scale: Prior standard deviations of f at the points [slots + C].
    :param Q: The prior precision of u.
    :param gamma: Γ and −α.
    :param base: The information that was known before.
    :param own: The information that was learned since.
    :param log_evidence: Sum of ``log p(y | past)`` over what was learned since, in nats.
    :param age: The number of observations since the inverses were computed.
    """

    Z: np.ndarray
    is_used: np.ndarray
    relevance: np.ndarray
    scale: np.ndarray
    Q: np.ndarray
    gamma: np.ndarray
    base: np.ndarray
    own: np.ndarray
    log_evidence: float = 0.0
    age: int = 0


class Projection(NamedTuple):
    """The state about one input.

    :param state: The state; inverses are computed again if they were too rough for this input.
    :param x: The input [D].
    :param k: ``k(Z, x)`` [slots + C], zero in empty slots and in the last rows.
    :param g: ``Γ k`` [slots + C], of which the last rows are ``−αᵀ k``.
    :param variance: The prior variance of f(x).
    :param mean: The prior mean [C] of f(x).
    """

    state: OnlineState
    x: np.ndarray
    k: np.ndarray
    g: np.ndarray
    variance: float
    mean: np.ndarray


class Info(NamedTuple):
    """An observation, as the process saw it before it learned.

    :param log_density: ``log p(y | past)``, in nats.
    :param residual: y less its predictive mean [C].
    :param variance: The predictive variance of y.
    """

    log_density: float
    residual: np.ndarray
    variance: float


# ---- predict ----


def project(prior: OnlinePrior, state: OnlineState, x: np.ndarray) -> Projection:
    """The state about x [D]; nothing is written.

    :raises NumericalError: if x is so large that covariances overflow.
    """
    k = prior.kernel.covariance_with(state.Z, x) * state.is_used
    variance, mean = float(prior.kernel.variance(x[None])[0]), prior.mean(x[None])[0]
    g = symmetric.times(state.gamma, k)
    if not _is_sound(variance - float(k @ g), variance):  # rounding that has grown
        state = refreshed(prior, state)
        g = symmetric.times(state.gamma, k)
        _sound(variance - float(k @ g), variance)
    return Projection(state, x.copy(), k, g, variance, mean)


def moments(prior: OnlinePrior, at: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance [C] of f(x)."""
    is_delicate = prior.noise < DELICATE * at.variance
    least = MOST_ROUNDING * prior.noise if is_delicate else 0.0
    left = at.variance - float(at.k @ at.g)
    variance = max(left, SMALLEST_VARIANCE * at.variance, least)
    return at.mean - at.g[prior.slots :], np.full(prior.columns, variance)


# ---- learn ----


def observe(prior: OnlinePrior, at: Projection, y: np.ndarray) -> tuple[OnlineState, Info]:
    """The state conditioned on ``y = f(x) + noise`` [C]; it takes the arrays of the state before.

    :raises NumericalError: if covariances or densities overflow; the state before is as it was.
    """
    point = _Point(prior, at, y)
    is_due = at.state.age >= REFRESH * prior.budget and prior.noise < DELICATE * at.variance
    if is_due or point.rounding > MOST_ROUNDING:
        at = project(prior, refreshed(prior, at.state), at.x)
        point = _Point(prior, at, y)
        age = 0
    else:
        age = at.state.age + 1
    squared = float(point.residual @ point.residual) / point.variance
    density = _sound(-0.5 * (prior.columns * (log(point.variance) + LOG_TWO_PI) + squared))
    info = Info(density, point.residual, point.variance)

    state = at.state  # from here on nothing raises, and its arrays change
    state.relevance[:] = np.maximum(exp(-1.0 / prior.memory) * state.relevance, point.correlation)
    if np.count_nonzero(state.is_used) < prior.budget:
        _add(prior, state, point)
    else:
        least = int(np.argmin(_importance(prior, state, point)))
        if state.is_used[least]:
            _add(prior, state, point)
            _remove(state, least)
        else:
            _add_and_remove(prior, state, point)
    state.gamma[prior.slots :, prior.slots :] = 0.0  # where squares of residuals gather
    return state._replace(log_evidence=state.log_evidence + density, age=age), info


class _Point:
    """An observation as one more point.

    :ivar slot: Its slot.
    :ivar q: Q k [slots + C], −1 at the slot and zero in the last rows.
    :ivar g: Γ k [slots + C], −1 at the slot, and in the last rows the residuals.
    :ivar correlation: The prior's, of f(x) with f at each point [slots + C].
    :ivar scale: The prior standard deviation of f(x).
    :ivar rounding: How far the variances of f(x) lie below 0, as a part of what is added to them.
    :ivar novelty: The prior variance of its u given the others.
    :ivar variance: The predictive variance of y.
    :ivar centred: y less its prior mean [C].
    :ivar residual: y less its predictive mean [C].
    """

    def __init__(self, prior: OnlinePrior, at: Projection, y: np.ndarray) -> None:
        self.x, self.centred = at.x, y - at.mean
        self.q, self.g = symmetric.times(at.state.Q, at.k), at.g.copy()
        novelty = at.variance - float(at.k @ self.q)
        variance = at.variance - float(at.k @ self.g)
        self.slot = int(np.argmin(at.state.is_used))
        self.q[self.slot] = self.g[self.slot] = -1.0
        self.g[prior.slots :] += self.centred
        self.residual = self.g[prior.slots :].copy()
        self.scale = sqrt(at.variance)
        self.correlation = np.abs(at.k) / (self.scale * at.state.scale)
        self.rounding = max(-novelty / prior.nugget, -variance / prior.noise)
        self.novelty = max(novelty, 0.0) + prior.nugget
        self.variance = max(variance, 0.0) + prior.noise


def _importance(prior: OnlinePrior, state: OnlineState, point: _Point) -> np.ndarray:
    """How much each point [slots] matters after a new one, which is among them.

    The posterior loses ``KL(p(u) ‖ p(u_r) p₀(u_j | u_r))`` without point j. With ``p₀(u_j | u_r)``
    of precision Q_jj and ``p(u_j | u_r)`` of precision Q_jj + W_jj this is
    ``½ Σ_c [log(1 + W_jj / Q_jj) + (α_jc² − Γ_jj) / Q_jj]``.
    """
    slots, C, q, g = prior.slots, prior.columns, point.q[: prior.slots], point.g[: prior.slots]
    Q = state.Q.diagonal()[:slots] + q * q / point.novelty
    gamma = state.gamma.diagonal()[:slots] + g * g / point.variance
    shift = np.multiply.outer(point.residual / point.variance, g)
    alpha = state.gamma[slots:, :slots] + shift
    W = (state.base.diagonal() + state.own.diagonal())[:slots]
    W[point.slot], state.relevance[point.slot] = prior.precision, 1.0
    nats = C * np.log1p(W / Q) + (np.einsum("cm,cm->m", alpha, alpha) - C * gamma) / Q
    return 0.5 * nats * state.relevance[:slots]


def _add(prior: OnlinePrior, state: OnlineState, point: _Point) -> None:
    """A point at x, and what it observed."""
    j = point.slot
    state.Z[j], state.is_used[j] = point.x, True
    state.relevance[j], state.scale[j] = 1.0, point.scale
    symmetric.add_outer(state.Q, 1.0 / point.novelty, point.q)
    symmetric.add_outer(state.gamma, 1.0 / point.variance, point.g)
    state.own[j, j] += prior.precision
    state.own[prior.slots :, j] -= prior.precision * point.centred


def _remove(state: OnlineState, j: int) -> None:
    """Leave the marginal of all points but j."""
    Qj, gamma_j = symmetric.column(state.Q, j), symmetric.column(state.gamma, j)
    a = Qj / -Qj[j]
    a[j] = 0.0
    symmetric.add_outer(state.Q, -1.0 / Qj[j], Qj)
    symmetric.clear(state.Q, j)
    symmetric.add_outer_pair(state.gamma, a, gamma_j + 0.5 * gamma_j[j] * a)
    symmetric.clear(state.gamma, j)
    known = symmetric.column(state.base, j)
    if known[j] > 0.0:  # out of what was learned, under prior and base
        total = Qj[j] + known[j]
        under_base = (Qj + known) / -total
        under_base[j] = 0.0
        _integrate_out(state.own, j, under_base, 1.0 / total)
    else:
        _integrate_out(state.own, j, a, 1.0 / Qj[j])
    _integrate_out(state.base, j, a, 1.0 / Qj[j])
    state.is_used[j] = False


def _add_and_remove(prior: OnlinePrior, state: OnlineState, point: _Point) -> None:
    """The same as adding the point and removing it at once."""
    symmetric.add_outer(state.gamma, 1.0 / point.variance, point.q - point.g)
    observed = point.q.copy()
    observed[point.slot], observed[prior.slots :] = 0.0, -point.centred
    noise = prior.noise + point.novelty - prior.nugget
    symmetric.add_outer(state.own, 1.0 / noise, observed)


def _integrate_out(information: np.ndarray, j: int, a: np.ndarray, variance: float) -> None:
    """``∫ p(u_j | u) t(u) du_j``, for ``p(u_j | u) = N(u_j; aᵀ (u, 1), variance)``.

    With w = W_j, ``b = w + W_jj a`` and ``θ = 1 / (1 + variance W_jj)``, the Gaussian integral
    leaves ``W + a wᵀ + w aᵀ + W_jj a aᵀ − θ variance b bᵀ``. This is
    ``W + θ (W_jj a aᵀ + a wᵀ + w aᵀ − variance w wᵀ)``, a change of rank two.

    :param a: Weights [slots + C], zero at j.
    """
    w = symmetric.column(information, j)
    weight = w[j]
    if weight > 0.0:
        w[j] = 0.0
        theta = 1.0 / (1.0 + variance * weight)
        root = sqrt(theta)
        s, half = -variance * root / (1.0 + root), 0.5 * theta * weight
        symmetric.add_outer_pair(information, a + s * w, half * a + (theta - s * half) * w)
    symmetric.clear(information, j)


# ---- as a whole ----


def state_on(
    prior: OnlinePrior,
    Z: np.ndarray,
    base: tuple[np.ndarray, np.ndarray],
    own: tuple[np.ndarray, np.ndarray],
) -> OnlineState:
    """The state on these points [M, D].

    :param base: W [M, M] and h [M, C] of what was known before.
    :param own: The same of what was learned since.
    """
    M, size = len(Z), prior.slots + prior.columns
    points, scale = np.zeros((size, Z.shape[1])), np.ones(size)
    points[:M], scale[:M] = Z, np.sqrt(prior.kernel.variance(Z)) if M else 1.0
    is_used = np.arange(size) < M
    Q, gamma, before, since = (symmetric.zeros(size) for _ in range(4))
    for matrix, (W, h) in ((before, base), (since, own)):
        matrix[:M, :M], matrix[prior.slots :, :M] = W, -h.T
    relevance = is_used.astype(float)
    state = OnlineState(points, is_used, relevance, scale, Q, gamma, before, since)
    return refreshed(prior, state) if M else state


def copied(state: OnlineState) -> OnlineState:
    """The same in arrays of its own."""
    arrays: dict[str, Any] = {
        name: value.copy(order="K")
        for name, value in state._asdict().items()
        if isinstance(value, np.ndarray)
    }
    return state._replace(**arrays)


def refreshed(prior: OnlinePrior, state: OnlineState) -> OnlineState:
    """The same with Q, Γ and α computed again from the points and the information.

    :raises NumericalError: if the covariance of the points is not positive.
    """
    used = np.flatnonzero(state.is_used)
    among, size = np.ix_(used, used), len(used)
    K = prior.among(state.Z[used]) + prior.nugget * np.eye(size)
    W, h = _information(prior, state.base + state.own)
    R, targets = factored(W[among], h[used])
    with positive_covariances():
        B = linalg.cho_factor(np.eye(size) + R.T @ K @ R, lower=True)
        solved = R @ linalg.cho_solve(B, np.hstack([R.T, targets]))
        inverse = linalg.cho_solve(linalg.cho_factor(K, lower=True), np.eye(size))
    Q, gamma = symmetric.zeros(len(state.Q)), symmetric.zeros(len(state.Q))
    Q[among], gamma[among] = inverse, solved[:, :size]
    gamma[prior.slots :, used] = -solved[:, size:].T
    return state._replace(Q=Q, gamma=gamma, age=0)


def settled(state: OnlineState) -> OnlineState:
    """The same, where what was learned is a part of what was known before."""
    own = symmetric.zeros(len(state.own))
    return state._replace(base=state.base + state.own, own=own, log_evidence=0.0)


def own_observations(prior: OnlinePrior, state: OnlineState) -> PseudoObservations | None:
    """The pseudo-observations that were learned; None if there are none."""
    W, h = _information(prior, state.own)
    used = np.flatnonzero(W.any(axis=0))
    if not used.size:
        return None
    Z, W = state.Z[used], W[np.ix_(used, used)]
    R, targets = factored(W, h[used] + W @ prior.mean(Z))
    return PseudoObservations(Z, R[None], targets[None], prior.nugget)


def _information(prior: OnlinePrior, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W [slots, slots] and h [slots, C]."""
    slots = prior.slots
    return symmetric.full(matrix[:slots, :slots]), -matrix[slots:, :slots].T


# ---- inputs and targets so large that covariances are no numbers, or wrong ----


def _is_sound(value: float, prior: float = inf) -> bool:
    """Whether it is finite, and not far below zero if it is a variance.

    :param value: A log density, or the variance of f at an input before rounding is cut off.
    :param prior: The prior variance there.
    """
    return isfinite(value) and value > -FURTHEST_BELOW * prior


def _sound(value: float, prior: float = inf) -> float:
    if not _is_sound(value, prior):
        raise NumericalError("covariances or densities overflow: wanted smaller inputs and targets")
    return value


@contextmanager
def positive_covariances() -> Iterator[None]:
    """One error of ours where a covariance cannot be factorised.

    :raises NumericalError: naming what helps.
    """
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "the covariance of the points is not positive, as rounding of distances is larger than "
            "the noise: wanted inputs about zero, such as days since the first one"
        ) from error
