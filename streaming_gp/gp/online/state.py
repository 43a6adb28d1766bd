"""A Gaussian process on at most so many points, updated one observation at a time.

With points Z, ``u = f(Z)`` + nugget noise, ``K = cov(u)``, and ``q(u) = N(μ, S)``:

- ``q = K⁻¹ k(Z, x)``, and the novelty ``ν = k(x, x) − k(x, Z) q`` that is left of f(x) given u;
- mean ``m(x) + qᵀ (μ − m(Z))``, variance ``ν + qᵀ S q``.

Neither is a difference of large numbers but for ν. An observation adds one point, and conditions
``q(u)`` on it; beyond the budget a point goes, which leaves the exact marginal of the others
(Csató & Opper 2002; Van Vaerenbergh, Lázaro-Gredilla & Santamaría 2012, "Kernel recursive
least-squares tracker for time-varying regression"). K is held as a square root of its inverse,
``MᵀM = K⁻¹``: a point that comes is one row of M more, and a point that goes is a reflection that
leaves it in one row, which goes too. A reflection rounds no more than it must, so that nothing is
ever computed anew: every step costs the same.

What a point matters are the nats that an observation there would add to the others,
``½ log(1 + 1 / (σ² (K⁻¹)_jj))`` for the least noise of an output, times its relevance: the largest
prior correlation with an input that came t observations ago, times ``exp(−t / memory)``. A stream
that moves on leaves points behind that no input comes near.

Where the world has changed, f becomes ``√(1 − c) f + √c g``, with g a new draw from the prior
(:func:`forget`): ``S ← (1 − c) S + c K``. That is the exact posterior under the prior covariance
``k(x, x') √(1 − c)`` between before and after.

Arrays have a place for each of ``budget + 1`` slots, zero where it is empty. Of K and S the lower
triangle counts (:mod:`streaming_gp.numerics.symmetric`). :func:`observe` and :func:`forget` change
a state in place, and do not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import exp, inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.linalg import blas

from streaming_gp.errors import NumericalError
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.structure import lost_digits
from streaming_gp.numerics import symmetric
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.runtime import Kernel

SMALLEST_VARIANCE = 1e-12
"""Of a prediction, as a part of the prior's: rounding below is cut off."""
FURTHEST_BELOW = 0.5
"""Of a variance below zero, as a part of the prior's: rounding alone leaves it nearer to zero."""
LARGEST = 1e150
"""Of an error whose square is a number."""
NOTHING = 1e-9
"""A part of a variance by which a direction is better known, below which nothing was learned."""


class OnlinePrior(NamedTuple):
    """The prior of f and the noise, at one value of ε, and how many points are held.

    :param kernel: The covariance function, which all columns share.
    :param mean: The mean [N, C] at inputs [N, D].
    :param columns: The C outputs that it speaks of, by number.
    :param noise: The variances [G] of the Gaussian noise, in squared units of f.
    :param group: Which of these each column has [C].
    :param nugget: The variance of the points' white noise, less than that of the observations.
    :param budget: The largest number of points.
    :param memory: The number of observations in which relevance falls e-fold; infinite for never.
    :param most_variance: The largest prior variance whose rounding is less than the noise.
    """

    kernel: Kernel
    mean: Callable[[np.ndarray], np.ndarray]
    columns: np.ndarray
    noise: np.ndarray
    group: np.ndarray
    nugget: float
    budget: int
    memory: float
    most_variance: float = inf

    def among(self, Z: np.ndarray) -> np.ndarray:
        """Covariances [R, R] of u at points [R, D]; white noise is on the diagonal alone."""
        K = self.kernel.covariance(Z, Z)
        np.fill_diagonal(K, self.kernel.variance(Z) + self.nugget)
        return K


@dataclass(eq=False)
class OnlineState:
    """All that the next step needs, for slots = budget + 1.

    :param Z: The points [slots, D].
    :param is_used: Which slots hold one [slots].
    :param name: The slot that each point had in the base, −1 for one that came later [slots].
    :param relevance: Of the points [slots].
    :param scale: Prior standard deviations of f at the points [slots].
    :param root: M [slots, slots].
    :param precision: The diagonal of K⁻¹ [slots].
    :param K: The prior covariance of u [slots, slots].
    :param S: Its posterior covariance for each noise variance [slots, slots, G], each as
        :mod:`streaming_gp.numerics.symmetric` has it.
    :param U: Its posterior mean less the prior's [slots, C].
    :param kept: What is left of the correlation of f with what it was at the base [G].
    :param seen: What was observed at points that came since [slots, C].
    :param weight: The precision with which that speaks of u [slots, G]; zero at other points.
    :param is_whole: Whether ``seen`` is all that was learned: no point went, and nothing was
        forgotten.
    :param log_evidence: Sum of ``log p(y | past)`` over what was learned since, in nats.
    :param base: What was known before; None if that is this state itself.
    """

    Z: np.ndarray
    is_used: np.ndarray
    name: np.ndarray
    relevance: np.ndarray
    scale: np.ndarray
    root: np.ndarray
    precision: np.ndarray
    K: np.ndarray
    S: np.ndarray
    U: np.ndarray
    kept: np.ndarray
    seen: np.ndarray
    weight: np.ndarray
    is_whole: bool = True
    log_evidence: float = 0.0
    base: OnlineState | None = None

    def copy(self) -> OnlineState:
        """The same in arrays of its own, but for the base, which nothing changes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = value.copy(order="K")
        return OnlineState(**values)


class Projection(NamedTuple):
    """The state about one input.

    :param x: The input [D].
    :param k: ``k(Z, x)`` [slots].
    :param q: ``K⁻¹ k`` [slots].
    :param s: ``S q`` for each noise variance [G, slots].
    :param novelty: The variance of f(x) given u.
    :param prior_variance: The prior variance of f(x).
    :param prior_mean: The prior mean [C] of f(x).
    :param mean: The mean [C] of f(x).
    :param variance: The variance of f(x) for each noise variance [G].
    """

    x: np.ndarray
    k: np.ndarray
    q: np.ndarray
    s: np.ndarray
    novelty: float
    prior_variance: float
    prior_mean: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def project(prior: OnlinePrior, state: OnlineState, x: np.ndarray) -> Projection:
    """The state about x [D]; nothing is written.

    :raises NumericalError: if x is so large that covariances overflow, or lose their digits.
    """
    k = prior.kernel.covariance_with(state.Z, x) * state.is_used
    own, prior_mean = float(prior.kernel.variance(x[None])[0]), prior.mean(x[None])[0]
    white = blas.dgemv(1.0, state.root.T, k, trans=1)  # BLAS itself does not let go of Python
    q, left = blas.dgemv(1.0, state.root.T, white), own - blas.ddot(white, white)
    if not (isfinite(left) and left > -FURTHEST_BELOW * own):
        raise NumericalError("covariances overflow: wanted smaller inputs")
    if own > prior.most_variance:
        raise NumericalError(lost_digits(x))
    novelty, s = max(left, 0.0), np.empty((state.S.shape[-1], len(q)))
    for group, row in enumerate(s):
        row[:] = symmetric.times(state.S[:, :, group], q)
    variance = np.maximum(novelty + blas.dgemv(1.0, s.T, q, trans=1), SMALLEST_VARIANCE * own)
    mean = prior_mean + blas.dgemv(1.0, state.U.T, q)
    return Projection(x.copy(), k, q, s, novelty, own, prior_mean, mean, variance)


def log_densities(residual: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """``log N(residual; 0, variance)`` of each."""
    return np.asarray(-0.5 * (np.log(variance) + LOG_TWO_PI + residual * residual / variance))


# ---- learn ----


def log_densities_of(prior: OnlinePrior, at: Projection, y: np.ndarray) -> np.ndarray:
    """``log p(y | past)`` of each entry of an observation [C], in nats.

    :param at: The state about its input.
    :raises NumericalError: if it overflows.
    """
    residual = y - at.mean
    if not residual @ residual < LARGEST**2:
        raise NumericalError("densities overflow: wanted smaller targets")
    return log_densities(residual, at.variance + prior.noise)


def observe(prior: OnlinePrior, state: OnlineState, at: Projection, y: np.ndarray) -> None:
    """Condition on ``y = f(x) + noise`` [C].

    :param at: The state about x.
    """
    of_y = at.variance + prior.noise
    residual = y - at.mean
    correlation = np.abs(at.k) / (sqrt(at.prior_variance) * state.scale)
    state.relevance *= exp(-1.0 / prior.memory)
    np.maximum(state.relevance, correlation, out=state.relevance)
    slot, novelty = int(state.is_used.argmin()), at.novelty + prior.nugget
    precision = state.precision + at.q * at.q / novelty
    precision[slot] = 1.0 / novelty
    least = _least(prior, state, precision, slot)
    is_added = least != slot
    gains = at.s
    if is_added:
        gains = gains.copy()
        gains[:, slot] = at.variance + prior.nugget
        state.U[slot] = at.mean - at.prior_mean
        symmetric.put(state.S, slot, gains.T)
    for group, (gain, variance) in enumerate(zip(gains, of_y.tolist(), strict=True)):
        symmetric.add_outer(state.S[:, :, group], -1.0 / variance, gain)
    state.U += gains.T * (residual / of_y)
    if is_added:
        _add(prior, state, at, slot, novelty)
        state.precision = precision
        state.seen[slot], state.weight[slot] = y, 1.0 / (prior.noise - prior.nugget)
        if least >= 0:
            _remove(state, least)
    state.is_whole = state.is_whole and least < 0


def _least(prior: OnlinePrior, state: OnlineState, precision: np.ndarray, slot: int) -> int:
    """The slot of the point that matters least after a new one, which is among them; −1 where
    there is room for all.

    :param precision: The diagonal of K⁻¹ with the new point [slots].
    :param slot: Of the new point.
    """
    if np.count_nonzero(state.is_used) < prior.budget:
        return -1
    matters = np.log1p(1.0 / (min(prior.noise.tolist()) * precision))
    of_new = matters[slot]  # its relevance is one
    matters *= state.relevance
    matters[slot] = of_new
    return int(matters.argmin())


def _add(prior: OnlinePrior, state: OnlineState, at: Projection, slot: int, novelty: float) -> None:
    """A point at x in an empty slot, but for its part of q(u) and of the precision."""
    state.Z[slot], state.is_used[slot], state.name[slot] = at.x, True, -1
    state.relevance[slot], state.scale[slot] = 1.0, sqrt(at.prior_variance)
    symmetric.put(state.K, slot, at.k)
    state.K[slot, slot] = at.prior_variance + prior.nugget
    state.root[slot] = at.q / -sqrt(novelty)
    state.root[slot, slot] = 1.0 / sqrt(novelty)


def _remove(state: OnlineState, j: int) -> None:
    """Leave the marginal of all points but j: one reflection brings column j of M into its row."""
    root, column = state.root, state.root[:, j].copy()
    length = blas.dnrm2(column)
    onto = blas.dgemv(1.0, root.T, column)  # column j of K⁻¹
    sign = 1.0 if column[j] >= 0.0 else -1.0
    scale = 1.0 / (length * (length + abs(column[j])))
    across = onto + sign * length * root[j]
    column[j] += sign * length
    blas.dger(-scale, across, column, a=root.T, overwrite_a=1)
    root[j] = 0.0
    root[:, j] = 0.0
    state.precision -= onto * onto / onto[j]
    state.precision[j] = 0.0
    symmetric.clear(state.K, j)
    symmetric.clear(state.S, j)
    state.U[j], state.weight[j], state.relevance[j], state.is_used[j] = 0.0, 0.0, 0.0, False


def forget(prior: OnlinePrior, state: OnlineState, group: int, size: float) -> None:
    """Let f have become ``√(1 − c) f + √c g``, where g is a new draw from the prior.

    :param group: Of the columns that have changed.
    :param size: c in [0, 1].
    """
    state.S[:, :, group] *= 1.0 - size
    state.S[:, :, group] += size * state.K
    state.U[:, prior.group == group] *= sqrt(1.0 - size)
    state.kept[group] *= sqrt(1.0 - size)
    state.is_whole = False


# ---- as a whole ----


def state_on(prior: OnlinePrior, Z: np.ndarray, S: np.ndarray, U: np.ndarray) -> OnlineState:
    """The state on these points [M, D], which is its own base.

    :param S: The covariances of u [G, M, M].
    :param U: The mean of u less the prior's [M, C].
    :raises NumericalError: if the covariance of the points is not positive.
    """
    M, slots = len(Z), prior.budget + 1
    points, scale, root = np.zeros((slots, Z.shape[1])), np.ones(slots), np.zeros((slots, slots))
    K, covariances = symmetric.zeros(slots), symmetric.zeros(slots, len(prior.noise))
    mean, is_used = np.zeros((slots, len(prior.columns))), np.arange(slots) < M
    if M:
        among = prior.among(Z)
        with positive_covariances():
            chol = linalg.cholesky(among, lower=True)
        root[:M, :M] = linalg.solve_triangular(chol, np.eye(M), lower=True)
        points[:M], scale[:M], K[:M, :M] = Z, np.sqrt(prior.kernel.variance(Z)), among
        covariances[:M, :M] = np.moveaxis(S, 0, -1)
        mean[:M] = U
    precision = np.einsum("ij,ij->j", root, root)
    nothing, groups = np.zeros(0), len(prior.noise)
    state = OnlineState(
        points,
        is_used,
        nothing,
        is_used.astype(float),
        scale,
        root,
        precision,
        K,
        covariances,
        mean,
        nothing,
        np.zeros_like(mean),
        np.zeros((slots, groups)),
    )
    settle(state)
    return state


def settle(state: OnlineState) -> None:
    """Let what was learned be a part of what was known before."""
    state.name = np.where(state.is_used, np.arange(len(state.Z)), -1)
    state.kept, state.log_evidence, state.base = np.ones(state.S.shape[-1]), 0.0, None
    state.weight[:], state.is_whole = 0.0, True
    state.base = state.copy()


def own_observations(prior: OnlinePrior, state: OnlineState) -> PseudoObservations | None:
    """What was learned since the base, as pseudo-observations at the points; None if nothing was.

    With ``q(u) = N(μ, S)``, and ``N(μ_b, S_b = L Lᵀ)`` what the base says of the same points now,
    the directions of ``L⁻¹ S L⁻ᵀ = V diag(a) Vᵀ`` in which a < 1 were learned:
    ``R = L⁻ᵀ V diag(d)`` with ``d² = 1/a − 1``.
    """
    if state.is_whole:
        return _seen(prior, state)
    used = np.flatnonzero(state.is_used)
    Z, means = state.Z[used], prior.mean(state.Z[used])
    covariances, shifts = _of_base(prior, state, used)
    roots, targets = [], []
    for group, S_base in enumerate(covariances):
        mine = prior.group == group
        with positive_covariances():
            L = linalg.cholesky(S_base, lower=True)
        own = symmetric.full(state.S[:, :, group][np.ix_(used, used)])
        half = linalg.solve_triangular(L, own, lower=True)
        values, V = linalg.eigh(linalg.solve_triangular(L, half.T, lower=True))
        is_learned = values < 1.0 - NOTHING
        d = np.sqrt(np.where(is_learned, 1.0 / np.where(is_learned, values, 1.0) - 1.0, 0.0))
        R = linalg.solve_triangular(L, V * d, lower=True, trans=1)
        shift = (state.U[used] - shifts)[:, mine]
        white = V.T @ linalg.solve_triangular(L, shift, lower=True)
        shown = np.divide(1.0 + d * d, d, where=is_learned, out=np.zeros_like(d))[:, None] * white
        roots.append(R)
        targets.append(R.T @ (shifts + means)[:, mine] + shown)
    if not np.any(roots):
        return None
    return PseudoObservations(Z, np.stack(roots), np.stack(targets), prior.nugget)


def _seen(prior: OnlinePrior, state: OnlineState) -> PseudoObservations | None:
    """What was learned where each observation has a point of its own."""
    own = np.flatnonzero(state.weight[:, 0])
    if not own.size:
        return None
    R = np.sqrt(state.weight[own].T)
    seen = [state.seen[own][:, prior.group == group] for group in range(len(R))]
    return PseudoObservations(state.Z[own], R, R[:, :, None] * np.stack(seen), prior.nugget)


def _of_base(
    prior: OnlinePrior, state: OnlineState, used: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """What the base says of the points now: covariances [M, M] of u, and its mean [M, C] less the
    prior's.
    """
    base = state.base
    assert base is not None
    Z, old = state.Z[used], np.flatnonzero(base.is_used)
    names, K = state.name[used], prior.among(state.Z[used])
    is_old = names >= 0
    weights = np.zeros((len(used), len(base.name)))
    weights[is_old, names[is_old]] = 1.0
    novelty = np.zeros_like(K)
    if not is_old.all():
        new = ~is_old
        between = np.zeros((int(new.sum()), len(base.name)))
        between[:, old] = prior.kernel.covariance(Z[new], base.Z[old])
        white = between @ base.root.T
        weights[new] = white @ base.root
        novelty[np.ix_(new, new)] = K[np.ix_(new, new)] - white @ white.T
    covariances = []
    for group, left in enumerate(state.kept**2):
        known = novelty + weights @ symmetric.full(base.S[:, :, group]) @ weights.T
        covariances.append(left * known + (1.0 - left) * K)
    return covariances, state.kept[prior.group] * (weights @ base.U)


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
