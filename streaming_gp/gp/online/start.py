"""Where one point at a time starts: a process of any size on at most so many points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.fitting.problem import NUGGET
from streaming_gp.gp.fitting.thinning import least_lost
from streaming_gp.gp.online.kernel import KnownProcess, process_at
from streaming_gp.gp.online.soundness import clear_error
from streaming_gp.gp.online.state import OnlineState
from streaming_gp.gp.outputs import PairKernel
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.process import Process

LEAST_NOISE = 2.0 * NUGGET
"""As a part of the prior's variance: inverses are held, and with less noise rounding would decide
what they say. A smaller noise is taken to be this one."""


def require_supported(local: LocalModel, process: Process) -> None:
    """Refuse models that cannot learn one point at a time.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    if not is_conjugate(local.likelihood):
        raise InvalidDataError(
            f"one point at a time wants Gaussian noise, got {type(local.likelihood).__name__}"
        )
    if isinstance(local.gp.kernel, PairKernel):
        raise InvalidDataError(
            "one point at a time wants functions that share one kernel, got a mixture of functions"
        )
    if local.gp.num_groups != 1:
        raise InvalidDataError(
            "one point at a time wants functions that share one kernel and one noise variance, got "
            f"{local.gp.num_groups} functions that do not"
        )
    for one in process.pseudo_observations:
        if not isinstance(one, PseudoObservations):
            raise InvalidDataError(
                f"one point at a time wants factors that stand alone, got {type(one).__name__}"
            )


def online_state(
    local: LocalModel,
    epsilon: np.ndarray,
    process: Process,
    budget: int,
    memory: float,
    own: PseudoObservations | None = None,
) -> OnlineState:
    """The process at ε on at most ``budget`` points: as it is if it fits, else its marginal there.

    :param local: The model.
    :param epsilon: ε, [E].
    :param process: What is known before.
    :param budget: The largest number of points.
    :param memory: The number of observations in which the relevance of a point falls e-fold.
    :param own: What was learned one point at a time and is not in ``process``.
    :raises InvalidDataError: as :func:`require_supported`, or if the noise depends on the input.
    :raises NumericalError: if the covariance of the points is not positive.
    """
    require_supported(local, process)
    exact = process_at(local, epsilon)
    members: list[PseudoObservations] = list(process.compact.pseudo_observations)  # type: ignore[arg-type]
    everything = [*members, *([] if own is None else [own])]
    variance = _mean_variance(everything, exact, local.input_dim)
    known = exact._replace(noise=max(exact.noise, LEAST_NOISE * variance))
    added = known.noise - exact.noise
    nugget = _shared_nugget(everything, known, variance, added)
    columns = local.gp.num_latent
    state = OnlineState(known, budget, local.input_dim, columns, nugget, memory)
    if everything:
        Z = np.concatenate([one.Z for one in everything])
        num_base = sum(len(one.Z) for one in members)
        found = [_information(one, nugget - added, known) for one in everything]
        base = _Information(*_stacked(found[: len(members)], 0, len(Z), columns))
        rest = _Information(*_stacked(found[len(members) :], num_base, len(Z), columns))
        with clear_error():
            state.hold(*_within(budget, Z, base, rest, known, nugget))
    return state


class _Information(NamedTuple):
    """W [R, R] and h [R, C] about u counted from its prior mean."""

    W: np.ndarray
    h: np.ndarray


# ---- one nugget for all points ----


def _mean_variance(
    members: Sequence[PseudoObservations], known: KnownProcess, input_dim: int
) -> float:
    """The prior variance of f, averaged over the points."""
    Z = np.concatenate([one.Z for one in members]) if members else np.zeros((1, input_dim))
    return float(np.mean(known.kernel.variance(Z)))


def _shared_nugget(
    members: Sequence[PseudoObservations], known: KnownProcess, variance: float, added: float
) -> float:
    """One variance of white noise for all points, which only changes whose noise is whose.

    An observation ``s = Rᵀ(f + e) + noise`` may give a part δ of its noise to e as long as
    ``I − δ RᵀR`` stays positive.

    :param variance: The prior variance of f.
    :param added: What was added to the noise of all observations, those of u among them.
    """
    rooms = [one.nugget + added + 0.5 / max(_largest_precision(one), 1e-300) for one in members]
    return min(NUGGET * variance, 0.5 * known.noise, *rooms)


def _largest_precision(one: PseudoObservations) -> float:
    return float(np.linalg.norm(one.precision_factor[0], 2) ** 2)


def _information(one: PseudoObservations, nugget: float, known: KnownProcess) -> _Information:
    """What a member says of points of this nugget: ``W = R (I − δ RᵀR)⁻¹ Rᵀ``.

    :param nugget: That of the points, less what was added to the noise.
    """
    R = one.precision_factor[0]
    centred = one.pseudo_targets[0] - R.T @ known.mean(one.Z)
    noise = np.eye(len(R)) - (nugget - one.nugget) * (R.T @ R)
    found = R @ linalg.cho_solve(linalg.cho_factor(noise), np.hstack([R.T, centred]))
    return _Information(found[:, : len(R)], found[:, len(R) :])


def _stacked(
    parts: Sequence[_Information], start: int, size: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parts one after another from ``start``, among ``size`` points."""
    W, h = np.zeros((size, size)), np.zeros((size, columns))
    for part in parts:
        mine = slice(start, start + len(part.W))
        W[mine, mine], h[mine] = part
        start = mine.stop
    return W, h


# ---- fewer points ----


def _within(
    budget: int,
    Z: np.ndarray,
    base: _Information,
    own: _Information,
    known: KnownProcess,
    nugget: float,
) -> tuple[np.ndarray, _Information, _Information]:
    """Points and information as they are, or on the points that matter most."""
    if len(Z) <= budget:
        return Z, base, own
    K = known.among(Z) + nugget * np.eye(len(Z))
    together = _Information(base.W + own.W, base.h + own.h)
    kept = least_lost(K[None], [together.W], len(Z) - budget)
    weights = linalg.solve(K[np.ix_(kept, kept)], K[kept], assume_a="pos").T
    conditional = K - weights @ K[kept]
    conditional[kept], conditional[:, kept] = 0.0, 0.0
    base_kept = _marginal(base, weights, conditional)
    all_kept = _marginal(together, weights, conditional)
    own_kept = _Information(all_kept.W - base_kept.W, all_kept.h - base_kept.h)
    return Z[kept], base_kept, own_kept


def _solved(information: _Information, K: np.ndarray) -> _Information:
    """``(I + W K)⁻¹ (W, h)``."""
    size = len(K)
    found = linalg.solve(np.eye(size) + information.W @ K, np.hstack(information))
    return _Information(found[:, :size], found[:, size:])


def _marginal(
    information: _Information, weights: np.ndarray, conditional: np.ndarray
) -> _Information:
    """Information about the kept points, for ``u = weights u_kept + N(0, conditional)``."""
    found = _solved(information, conditional)
    return _Information(weights.T @ found.W @ weights, weights.T @ found.h)
