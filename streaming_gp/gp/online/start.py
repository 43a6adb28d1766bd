"""Where one point at a time starts: a process of any size on at most so many points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import linalg

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.export import describe_kernel, describe_mean_function
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.points import NUGGET
from streaming_gp.gp.fit.projection import least_lost
from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.online.state import (
    OnlinePrior,
    OnlineState,
    positive_covariances,
    state_on,
)
from streaming_gp.gp.outputs import PairKernel
from streaming_gp.gp.process.observations import (
    ConditionalPseudoObservations,
    DataObservations,
    PseudoObservations,
    factored,
)
from streaming_gp.gp.process.prior import PriorAt, depends_on_differences, latent_kernels
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.structure import ROUNDING, lost_digits
from streaming_gp.runtime import Kernel, kernel_of
from streaming_gp.runtime.predictor import mean_function_of

LEAST_NOISE = 2.0 * NUGGET
"""As a part of the prior's variance: with less noise rounding would decide what points say. A
smaller noise is taken to be this one."""
MOST_ROWS = 2000
"""Of more rows of data it starts from the newest, and from as many of the others at random."""
PROBES = 50
"""Inputs at which noise that is a function must be the same."""


def online_parts(
    local: LocalModel,
    epsilon: np.ndarray,
    process: Process,
    budget: int,
    memory: float,
    own: Sequence[PseudoObservations | None] | None = None,
) -> tuple[tuple[OnlinePrior, OnlineState], ...]:
    """The process at ε on at most ``budget`` points: as it is if it fits, else its marginal there.

    :param local: The model.
    :param epsilon: ε, [E].
    :param process: All that is known before.
    :param budget: The largest number of points.
    :param memory: The number of observations in which the relevance of a point falls e-fold.
    :param own: For each part what was learned one point at a time and is not in ``process``.
    :returns: a part for each kernel.
    :raises InvalidDataError: if the model cannot learn one point at a time; names what came and
        what was wanted.
    :raises NumericalError: if the covariance of the points is not positive.
    """
    _refuse_unsupported(local, process)
    at_epsilon = PriorAt(local.prior, epsilon[None])
    observations = _newest(process.compact.pseudo_observations)
    members = list(at_epsilon.observed(observations)[0])
    nothing = np.zeros((0, local.input_dim))
    Z = np.concatenate([nothing, *(one.Z for one in members)])
    priors = _priors(local, epsilon, budget, memory, Z)
    own = [None] * len(priors) if own is None else own
    if len(own) != len(priors):
        raise InvalidDataError(f"wanted a model of {len(own)} kernels, got {len(priors)}")
    num_groups = local.gp.num_groups
    parts = []
    for prior, learned in zip(priors, own, strict=True):
        groups = slice(0, 1) if num_groups == 1 else prior.columns
        mine = [
            replace(
                one,
                precision_factor=one.precision_factor[groups],
                pseudo_targets=one.pseudo_targets[groups],
            )
            for one in members
        ]
        parts.append(_part(prior, mine, learned, local.input_dim))
    return tuple(parts)


def _refuse_unsupported(local: LocalModel, process: Process) -> None:
    if not is_conjugate(local.likelihood):
        raise InvalidDataError(
            f"one point at a time wants Gaussian noise, got {type(local.likelihood).__name__}"
        )
    if isinstance(local.gp.kernel, PairKernel):
        raise InvalidDataError(
            "one point at a time wants functions that are not mixed, got a mixture of functions"
        )
    for one in process.pseudo_observations:
        if isinstance(one, ConditionalPseudoObservations):
            raise InvalidDataError(
                f"one point at a time wants factors that stand alone, got {type(one).__name__}"
            )


def _newest(observations: Sequence[Any]) -> list[Any]:
    """Observations of which data rows are at most so many: half of them the newest."""
    data = [one for one in observations if isinstance(one, DataObservations)]
    sizes = [len(one.Z) for one in data]
    total = sum(sizes)
    if total <= MOST_ROWS:
        return list(observations)
    half = MOST_ROWS // 2
    earlier = np.random.default_rng(0).choice(total - half, MOST_ROWS - half, replace=False)
    is_kept = np.arange(total) >= total - half
    is_kept[earlier] = True
    rows = iter(np.split(is_kept, np.cumsum(sizes)[:-1]))
    kept = [
        one.rows(next(rows)) if isinstance(one, DataObservations) else one for one in observations
    ]
    return [one for one in kept if len(one.Z)]


# ---- the prior ----


def _priors(
    local: LocalModel, epsilon: np.ndarray, budget: int, memory: float, Z: np.ndarray
) -> list[OnlinePrior]:
    """Prior and noise of a model at ε [E] for each kernel, in NumPy where there is a form of them.

    :param Z: Inputs [R, D] of the data.
    :raises InvalidDataError: if the noise depends on the input, or a covariance has lost its
        digits.
    """
    compiled, number = PriorAt(local.prior, epsilon[None]), local.gp.num_latent
    inputs = Z if len(Z) else np.zeros((1, local.input_dim))
    probes = inputs[np.linspace(0, len(inputs) - 1, PROBES).astype(int)]
    noise = _noise(local, compiled, probes)
    with local.parameters.substituted(tf.constant(epsilon, tf.float64)):
        kernels = latent_kernels(local.gp.kernel)
        in_numpy = [_in_numpy(one, place, compiled, local) for place, one in enumerate(kernels)]
        mean = _mean(local.gp.mean_function, compiled)
    columns = [np.arange(number)] if len(kernels) == 1 else np.arange(number)[:, None]
    found = []
    for kernel, numpy_kernel, mine in zip(kernels, in_numpy, columns, strict=True):
        variances = numpy_kernel.variance(inputs)
        variance, group = float(np.mean(variances)), np.zeros(len(mine), int)
        own = noise[mine[:1]]
        if local.gp.num_groups > 1:
            own, group = noise[mine], np.arange(len(mine))
        most = np.inf if depends_on_differences(kernel) else float(own.min()) / ROUNDING
        if variances.max() > most:
            raise InvalidDataError(lost_digits(inputs[int(np.argmax(variances))]))
        least = np.maximum(own, LEAST_NOISE * variance)
        mine_alone = partial(_some, mean, number, slice(None) if len(kernels) == 1 else mine)
        added = float((least - own).max())
        found.append(
            OnlinePrior(numpy_kernel, mine_alone, mine, least, group, added, budget, memory, most)
        )
    return found


def _in_numpy(kernel: Any, place: int, compiled: PriorAt, local: LocalModel) -> Kernel:
    try:
        return kernel_of(describe_kernel(kernel, local.input_dim))
    except InvalidDataError:
        return _CompiledKernel(compiled, place)


class _CompiledKernel(Kernel):
    """Any GPflow kernel, at one ε.

    :param place: Which of the model's groups has it.
    """

    is_of_differences = False  # the prior itself knows where digits are lost

    def __init__(self, prior: PriorAt, place: int) -> None:
        self._prior, self._place, self.parts = prior, place, []

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidDataError(
            "a kernel that TensorFlow computes stays in its process: wanted one that has a NumPy "
            "form, as those that can be exported"
        )

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self._prior.variance(X)[self._place]

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """The inputs [N, D]."""
        return X

    def between(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return self._prior.covariance(one, other)[self._place]

    def covariance_with(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        return self.between(X, x[None])[:, 0]


def _mean(function: Any, compiled: PriorAt) -> Callable[[np.ndarray], np.ndarray]:
    """Of inputs [N, D], which broadcasts to [N, L]; in NumPy where there is a form of it."""
    try:
        return mean_function_of(describe_mean_function(function))
    except InvalidDataError:
        return partial(_compiled_mean, compiled)


def _compiled_mean(compiled: PriorAt, X: np.ndarray) -> np.ndarray:
    """[G, N, C] → [N, G C]."""
    return np.swapaxes(compiled.mean(X), 0, 1).reshape(len(X), -1)


def _some(
    mean: Callable[[np.ndarray], np.ndarray], number: int, columns: Any, X: np.ndarray
) -> np.ndarray:
    """Some columns of a mean of so many."""
    return np.asarray((np.zeros((len(X), number)) + mean(X))[:, columns])


def _noise(local: LocalModel, compiled: PriorAt, probes: np.ndarray) -> np.ndarray:
    """The variance of the noise of each function [L].

    :raises InvalidDataError: if it depends on the input.
    """
    noise = 1.0 / np.asarray(compiled.functions.noise_precision(compiled.draws, probes))[0]
    if np.ptp(noise, axis=0).max() > 1e-9 * noise.max():
        raise InvalidDataError(
            "one point at a time wants noise of one variance for each output, got a function of x"
        )
    return np.array(noise[0])


# ---- points ----


def _part(
    prior: OnlinePrior,
    members: Sequence[PseudoObservations],
    own: PseudoObservations | None,
    num_inputs: int,
) -> tuple[OnlinePrior, OnlineState]:
    """The state that knows of the members before, and of ``own``.

    :param prior: The prior, whose nugget is what was added to the noise.
    """
    added, num_base = prior.nugget, sum(len(one.Z) for one in members)
    everything = [*members, *([] if own is None else [own])]
    if not everything:
        nugget = 0.5 * float(prior.noise.min())
        nowhere = np.zeros((0, num_inputs))
        return prior._replace(nugget=nugget), state_on(prior, nowhere, np.zeros(0), np.zeros(0))
    Z = np.concatenate([one.Z for one in everything])
    prior.kernel.centre(Z[-1])  # distances keep their digits there
    variance = float(np.mean(prior.kernel.variance(Z)))
    # One variance of white noise for all points only changes whose noise is whose: an observation
    # ``s = Rᵀ(f + e) + noise`` may give a part δ of its noise to e while ``I − δ RᵀR`` is positive.
    rooms = [one.nugget + added + 0.5 / max(_largest_precision(one), 1e-300) for one in everything]
    prior = prior._replace(nugget=min(NUGGET * variance, 0.5 * float(prior.noise.min()), *rooms))
    with positive_covariances():
        infos = [_information(prior, one, prior.nugget - added) for one in everything]
        W = _blocks(len(prior.noise), [W for W, _ in infos], len(Z))
        h = np.concatenate([h for _, h in infos], axis=1)
        K, kept = prior.among(Z), np.arange(len(Z))
        if len(Z) > prior.budget:
            kept = least_lost(K[None], [*W], len(Z) - prior.budget)
        S, U = _marginal(prior, K, W, h, kept)
        if own is None:
            return prior, state_on(prior, Z[kept], S, U)
        W_own = infos[-1][0]
        W[:, num_base:], h[:, num_base:] = 0.0, 0.0
        state = state_on(prior, Z[kept], *_marginal(prior, K, W, h, kept))
    state.S[: len(kept), : len(kept)] = np.moveaxis(S, 0, -1)
    state.U[: len(kept)] = U
    state.is_whole = own.is_diagonal and len(kept) == len(Z)
    if state.is_whole:
        mine = slice(num_base, len(Z))
        state.weight[mine] = np.einsum("grr->rg", W_own)
        by_group = own.pseudo_targets / own.precision_factor[:, :, None]
        state.seen[mine] = np.swapaxes(by_group, 0, 1).reshape(len(own.Z), -1)
    return prior, state


def _largest_precision(one: PseudoObservations) -> float:
    if one.is_diagonal:
        return float(np.max(one.precision_factor**2))
    return float(np.linalg.norm(one.square, 2, axis=(1, 2)).max() ** 2)


def _information(
    prior: OnlinePrior, one: PseudoObservations, nugget: float
) -> tuple[np.ndarray, np.ndarray]:
    """Information W [G, R, R] and h [G, R, C] of a member about u, counted from its prior mean, on
    points of this nugget: ``W = R (I − δ RᵀR)⁻¹ Rᵀ``.

    :param nugget: That of the points, less what was added to the noise.
    """
    mean, parts = prior.mean(one.Z), []
    for group, (R, targets) in enumerate(zip(one.square, one.pseudo_targets, strict=True)):
        centred = targets - R.T @ mean[:, prior.group == group]
        if one.is_diagonal:
            r = R.diagonal()[:, None]
            less = 1.0 - (nugget - one.nugget) * r * r
            parts.append((np.diag((r * r / less)[:, 0]), r * centred / less))
            continue
        noise = np.eye(len(R)) - (nugget - one.nugget) * (R.T @ R)
        solved = R @ linalg.cho_solve(linalg.cho_factor(noise), np.hstack([R.T, centred]))
        parts.append((solved[:, : len(R)], solved[:, len(R) :]))
    W, h = (np.stack(part) for part in zip(*parts, strict=True))
    return W, h


def _blocks(num_groups: int, blocks: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The block diagonal matrices [G, R, R] of these, for each group."""
    W, start = np.zeros((num_groups, size, size)), 0
    for block in blocks:
        mine = slice(start, start + block.shape[1])
        W[:, mine, mine], start = block, mine.stop
    return W


def _marginal(
    prior: OnlinePrior, K: np.ndarray, W: np.ndarray, h: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Covariances [G, M, M] of u given information, and its mean [M, C] less the prior's, at some
    of the points.
    """
    covariances, U = [], np.zeros((len(kept), len(prior.group)))
    for group, (precision, mean) in enumerate(zip(W, h, strict=True)):
        R, targets = factored(precision, mean)
        B = linalg.cholesky(np.eye(len(K)) + R.T @ K @ R, lower=True)
        both = linalg.solve_triangular(B, np.hstack([R.T @ K[:, kept], targets]), lower=True)
        V, white = both[:, : len(kept)], both[:, len(kept) :]
        covariances.append(K[np.ix_(kept, kept)] - V.T @ V)
        U[:, prior.group == group] = V.T @ white
    return np.stack(covariances), U
