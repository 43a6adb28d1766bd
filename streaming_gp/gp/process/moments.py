"""Moments of latent functions at inputs, for each ε: those of groups in GPflow's order."""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.process.factorised import Factorised, refuse_far_below_zero

CHUNK_ELEMENTS = 2**24
"""The largest number of elements that an intermediate array should have."""


def marginals(process: Factorised, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance [S, N, L] of f(X) [N, D], some inputs after others to save memory."""
    chunk = max(256, CHUNK_ELEMENTS // max(1, process.size))
    pieces = [process.marginals(X[i : i + chunk]) for i in range(0, len(X), chunk)]
    mean, variance = (np.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True))
    gp = process.prior.functions.gp
    by_draw = variance.reshape(-1, gp.num_groups, len(X)).transpose(0, 2, 1)
    return _of_latents(process, mean), np.broadcast_to(by_draw, (*by_draw.shape[:2], gp.num_latent))


def joint(process: Factorised, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [S, N, L] and covariance [S, L, N, N] of f(X).

    :raises NumericalError: as :meth:`.Factorised.marginals`.
    """
    gp, V = process.prior.functions.gp, process.project(X)
    covariance = process.covariance(X, V).reshape(-1, gp.num_groups, len(X), len(X))
    variance = np.einsum("sgnn->sgn", covariance).reshape(-1, len(X))
    refuse_far_below_zero(variance, process.prior.variance(X))
    shape = len(covariance), gp.num_latent, len(X), len(X)
    return _of_latents(process, process.mean(X, V)), np.broadcast_to(covariance, shape)


def _of_latents(process: Factorised, mean: np.ndarray) -> np.ndarray:
    """Means of groups [S G, N, C] as [S, N, L]."""
    gp, (_, N, C) = process.prior.functions.gp, mean.shape
    by_draw = mean.reshape(-1, gp.num_groups, N, C).transpose(0, 2, 1, 3)
    return by_draw.reshape(-1, N, gp.num_latent)
