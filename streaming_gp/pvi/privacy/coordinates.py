"""Coordinates in which the change of a factor is measured, clipped and made noisy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg

from streaming_gp.expfam import Factor, MeanFieldNormal, Normal


def to_coordinates(q: Any, change: Factor) -> np.ndarray:
    """A change of natural parameters as a vector.

    For Gaussians it is measured by q, the posterior that the server has sent and knows: the pull on
    its mean in standard deviations, and the change of its precision relative to it over √2. The
    length of the vector is that of the Fisher metric. Other families are taken as they are, with
    the off-diagonal entries of symmetric matrices times √2.
    """
    if not isinstance(q, (MeanFieldNormal, Normal)):
        return np.concatenate(
            [
                _flat(np.asarray(eta), place in q.symmetric)
                for place, eta in enumerate(change.natural)
            ]
        )
    mean, (by_mean, precision) = np.asarray(q.mean), map(np.asarray, change.natural)
    if isinstance(q, MeanFieldNormal):
        sd = np.sqrt(np.asarray(q.variance))
        return np.concatenate([sd * (by_mean - precision * mean), sd**2 * precision / np.sqrt(2.0)])
    scale = np.asarray(q.scale)
    pull = scale.T @ (by_mean - precision @ mean)
    return np.concatenate([pull, _flat(scale.T @ precision @ scale, True) / np.sqrt(2.0)])


def from_coordinates(q: Any, vector: np.ndarray) -> Factor:
    """The change that :func:`to_coordinates` was called on."""
    shapes = [np.shape(eta) for eta in q.natural]
    if not isinstance(q, (MeanFieldNormal, Normal)):
        return Factor(type(q), _cut(vector, shapes, q.symmetric))
    mean, size = np.asarray(q.mean), len(q.mean)
    pull, precision = vector[:size], np.sqrt(2.0) * vector[size:]
    if isinstance(q, MeanFieldNormal):
        sd = np.sqrt(np.asarray(q.variance))
        precision = precision / sd**2
        natural = pull / sd + precision * mean, precision
    else:
        inverse = scipy.linalg.solve_triangular(np.asarray(q.scale), np.eye(size), lower=True)
        precision = inverse.T @ _square(precision, size) @ inverse
        natural = inverse.T @ pull + precision @ mean, 0.5 * (precision + precision.T)
    dtype = np.asarray(q.natural[0]).dtype
    return Factor(type(q), tuple(part.astype(dtype) for part in natural))


def _cut(
    vector: np.ndarray, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[int]
) -> tuple[np.ndarray, ...]:
    parts, start = [], 0
    for place, shape in enumerate(shapes):
        is_symmetric = place in symmetric
        triangle = shape[-1] * (shape[-1] + 1) // 2 if is_symmetric else 0
        kept = (*shape[:-2], triangle) if is_symmetric else shape
        part = vector[start : start + int(np.prod(kept))].reshape(kept)
        parts.append(_square(part, shape[-1]) if is_symmetric else part)
        start += part.size
    return tuple(parts)


def _flat(array: np.ndarray, is_symmetric: bool) -> np.ndarray:
    if not is_symmetric:
        return np.ravel(array)
    rows, columns = np.triu_indices(array.shape[-1])
    weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
    return np.ravel(array[..., rows, columns] * weights)


def _square(flat: np.ndarray, size: int) -> np.ndarray:
    """Symmetric matrices [..., D, D] of their upper triangles [..., D (D + 1) / 2]."""
    rows, columns = np.triu_indices(size)
    found = np.zeros((*flat.shape[:-1], size, size))
    found[..., rows, columns] = flat / np.where(rows == columns, 1.0, np.sqrt(2.0))
    found[..., columns, rows] = found[..., rows, columns]
    return found
