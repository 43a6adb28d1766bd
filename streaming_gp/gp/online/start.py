"""Where one point at a time starts: a process of any size on at most so many points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from scipy import linalg

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.export import constrained_value, describe_kernel
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.points import NUGGET
from streaming_gp.gp.fit.projection import least_lost
from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.online.state import OnlinePrior, OnlineState, positive_covariances, state_on
from streaming_gp.gp.outputs import PairKernel
from streaming_gp.gp.process.observations import (
    ConditionalPseudoObservations,
    PseudoObservations,
)
from streaming_gp.gp.process.prior import PriorAt, latent_kernels
from streaming_gp.gp.process.process import Process
from streaming_gp.runtime import Kernel, kernel_of

LEAST_NOISE = 2.0 * NUGGET
"""As a part of the prior's variance: inverses are held, and with less noise rounding would decide
what they say. A smaller noise is taken to be this one."""


def online_state(
    local: LocalModel,
    epsilon: np.ndarray,
    process: Process,
    budget: int,
    memory: float,
    own: PseudoObservations | None = None,
) -> tuple[OnlinePrior, OnlineState]:
    """The process at ε on at most ``budget`` points: as it is if it fits, else its marginal there.

    :param local: The model.
    :param epsilon: ε, [E].
    :param process: All that is known before.
    :param budget: The largest number of points.
    :param memory: The number of observations in which the relevance of a point falls e-fold.
    :param own: What was learned one point at a time and is not in ``process``.
    :raises InvalidDataError: if the model cannot learn one point at a time; names what came and
        what was wanted.
    :raises NumericalError: if the covariance of the points is not positive.
    """
    _refuse_unsupported(local, process)
    at_epsilon = PriorAt(local.prior, epsilon[None])
    members = list(at_epsilon.observed(process.compact.pseudo_observations)[0])  # type: ignore[arg-type]
    everything = [*members, *([] if own is None else [own])]
    nothing = np.zeros((0, local.input_dim))
    Z = np.concatenate([nothing, *(one.Z for one in everything)])
    prior = prior_at(local, epsilon, budget, memory)
    if len(Z):
        prior.kernel.centre(Z[0])  # distances keep their digits there
    variance = float(np.mean(prior.kernel.variance(Z if len(Z) else np.zeros((1, Z.shape[1])))))
    noise = max(prior.noise, LEAST_NOISE * variance)
    added = noise - prior.noise
    # One variance of white noise for all points only changes whose noise is whose: an observation
    # ``s = Rᵀ(f + e) + noise`` may give a part δ of its noise to e while ``I − δ RᵀR`` is positive.
    rooms = [one.nugget + added + 0.5 / max(_largest_precision(one), 1e-300) for one in everything]
    nugget = min(NUGGET * variance, 0.5 * noise, *rooms)
    prior = prior._replace(noise=noise, nugget=nugget)
    with positive_covariances():
        parts = [_information(one, nugget - added, prior) for one in everything]
        num_base = sum(len(one.Z) for one in members)
        base = _stacked(parts[: len(members)], 0, len(Z), prior.columns)
        rest = _stacked(parts[len(members) :], num_base, len(Z), prior.columns)
        return prior, state_on(prior, *_within(prior, Z, base, rest))


def _refuse_unsupported(local: LocalModel, process: Process) -> None:
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
        if isinstance(one, ConditionalPseudoObservations):
            raise InvalidDataError(
                f"one point at a time wants factors that stand alone, got {type(one).__name__}"
            )


# ---- the prior ----


def prior_at(local: LocalModel, epsilon: np.ndarray, budget: int, memory: float) -> OnlinePrior:
    """Prior and noise of a model at ε [E], in NumPy where there is a form of them.

    :raises InvalidDataError: if the noise depends on the input.
    """
    compiled = PriorAt(local.prior, epsilon[None])
    with local.parameters.substituted(tf.constant(epsilon, tf.float64)):
        noise = _noise(local.likelihood)
        (kernel,) = latent_kernels(local.gp.kernel)
        try:
            in_numpy = kernel_of(describe_kernel(kernel, local.input_dim))
        except InvalidDataError:
            in_numpy = _CompiledKernel(compiled)
        mean = _constant_mean(local.gp.mean_function, local.gp.num_latent)
    mean = mean or (lambda X: compiled.mean(X)[0])
    return OnlinePrior(in_numpy, mean, local.gp.num_latent, noise, 0.0, budget, memory)


class _CompiledKernel(Kernel):
    """Any GPflow kernel, at one ε."""

    def __init__(self, prior: PriorAt) -> None:
        self._prior = prior

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self._prior.variance(X)[0]

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """The inputs [N, D]."""
        return X

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self._prior.covariance(one, other)[0]


def _constant_mean(function: Any, num_latent: int) -> Callable[[np.ndarray], np.ndarray] | None:
    if type(function) is gpflow.functions.Zero:
        value = np.zeros(num_latent)
    elif type(function) is gpflow.functions.Constant:
        value = np.broadcast_to(constrained_value(function.c).ravel(), [num_latent])
    else:
        return None
    return lambda X: np.zeros((len(X), num_latent)) + value


def _noise(likelihood: Any) -> float:
    for value, power in ((likelihood.variance, 1), (likelihood.scale, 2)):
        if isinstance(value, gpflow.Parameter) and constrained_value(value).size == 1:
            return float(constrained_value(value).item() ** power)
    raise InvalidDataError("one point at a time wants noise of one variance, got a function of x")


# ---- information ----


class _Information(NamedTuple):
    """W [R, R] and h [R, C] about u counted from its prior mean."""

    W: np.ndarray
    h: np.ndarray


def _largest_precision(one: PseudoObservations) -> float:
    return float(np.linalg.norm(one.square[0], 2) ** 2)


def _information(one: PseudoObservations, nugget: float, prior: OnlinePrior) -> _Information:
    """Information of a member on points of this nugget: ``W = R (I − δ RᵀR)⁻¹ Rᵀ``.

    :param nugget: That of the points, less what was added to the noise.
    """
    R = one.square[0]
    centred = one.pseudo_targets[0] - R.T @ prior.mean(one.Z)
    noise = np.eye(len(R)) - (nugget - one.nugget) * (R.T @ R)
    solved = R @ linalg.cho_solve(linalg.cho_factor(noise), np.hstack([R.T, centred]))
    return _Information(solved[:, : len(R)], solved[:, len(R) :])


def _stacked(parts: Sequence[_Information], start: int, size: int, columns: int) -> _Information:
    """Parts one after another from ``start``, among ``size`` points."""
    W, h = np.zeros((size, size)), np.zeros((size, columns))
    for part in parts:
        mine = slice(start, start + len(part.W))
        W[mine, mine], h[mine] = part
        start = mine.stop
    return _Information(W, h)


def _within(
    prior: OnlinePrior, Z: np.ndarray, base: _Information, own: _Information
) -> tuple[np.ndarray, _Information, _Information]:
    """Points and information as they are, or on the points that matter most."""
    if len(Z) <= prior.budget:
        return Z, base, own
    K = prior.among(Z) + prior.nugget * np.eye(len(Z))
    together = _Information(base.W + own.W, base.h + own.h)
    kept = least_lost(K[None], [together.W], len(Z) - prior.budget)
    weights = linalg.solve(K[np.ix_(kept, kept)], K[kept], assume_a="pos").T
    conditional = K - weights @ K[kept]
    conditional[kept], conditional[:, kept] = 0.0, 0.0
    base_kept = _marginal(base, weights, conditional)
    all_kept = _marginal(together, weights, conditional)
    own_kept = _Information(all_kept.W - base_kept.W, all_kept.h - base_kept.h)
    return Z[kept], base_kept, own_kept


def _marginal(
    information: _Information, weights: np.ndarray, conditional: np.ndarray
) -> _Information:
    """Information about the kept points, for ``u = weights u_kept + N(0, conditional)``."""
    W, h = information
    size = len(conditional)
    solved = linalg.solve(np.eye(size) + W @ conditional, np.hstack([W, h]))
    return _Information(weights.T @ solved[:, :size] @ weights, weights.T @ solved[:, size:])
