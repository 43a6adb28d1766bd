"""Some coordinates of a Gaussian: its marginal there, and factors of them among all."""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal

Family = type[MeanFieldNormal] | type[Normal]


def require_blocks(q: Any) -> None:
    """Refuse families whose coordinates cannot be told apart.

    :raises InvalidDataError: naming what came.
    """
    if not isinstance(q, (MeanFieldNormal, Normal)):
        raise InvalidDataError(
            f"wanted Gaussians with a mean field or a full covariance, got a {type(q).__name__}"
        )


def marginal(q: Any, coordinates: np.ndarray) -> Any:
    """q of these coordinates [B] alone."""
    if isinstance(q, MeanFieldNormal):
        return MeanFieldNormal(*(np.asarray(eta)[coordinates] for eta in q.natural))
    covariance = np.asarray(q.covariance)[np.ix_(coordinates, coordinates)]
    mean = np.asarray(q.mean)[coordinates]
    return Normal.from_mean_covariance(mean, covariance).as_arrays()


def embedded(factor: Factor, coordinates: np.ndarray, size: int) -> Factor:
    """A factor of these coordinates [B] as one of all D, that does not depend on the others."""
    by_mean, precision = (np.asarray(eta) for eta in factor.natural)
    all_by_mean = np.zeros(size, by_mean.dtype)
    all_by_mean[coordinates] = by_mean
    all_precision = np.zeros([size] * precision.ndim, precision.dtype)
    all_precision[np.ix_(*[coordinates] * precision.ndim)] = precision
    return Factor(factor.family, (all_by_mean, all_precision), float(factor.log_scale))
