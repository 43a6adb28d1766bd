"""How far from the truth a posterior is at its points, as the data themselves show.

The variational bound counts each observation as if the points said all of f there, and so is too
sure of them where they do not. Observations ``y ≈ Dᵀ c + noise`` of whitened points c, in units of
their own noise, give the precision ``P = I + D Dᵀ`` and residuals e. If these are larger than the
noise, ``P⁻¹ D diag(e²) Dᵀ P⁻¹`` is the variance of the mean of c, and not ``P⁻¹`` (White 1980, "A
heteroskedasticity-consistent covariance matrix estimator").
"""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.whitening import Points, ProjectedData, ProjectedEarlier, grouped_sites
from streaming_gp.gp.process.conditioning import GaussianProcess


def shown_error(
    gp: GaussianProcess,
    points: Points,
    data: ProjectedData,
    earlier: ProjectedEarlier | None,
    sites: Sites,
    nugget: float,
) -> float:
    """The largest standard deviation of errors at points over the predicted one, without a unit.

    Near one, or below where data are few, if the points say all that there is.

    :param data: The data as functions of the points.
    :param earlier: Earlier pseudo-observations that the points take over.
    :param sites: The sites on the data.
    :param nugget: The variance of the points' white noise.
    """
    design, targets = _observations(gp, data, earlier, sites)
    transposed = np.swapaxes(design, 1, 2)
    inverse = np.linalg.inv(np.eye(design.shape[1]) + design @ transposed)
    weights = inverse @ design
    residual = targets - transposed @ (weights @ targets)
    squares = np.mean(residual**2, axis=2)[:, None, :]
    shown = _variances(points, (weights * squares) @ np.swapaxes(weights, 1, 2))
    return float(np.sqrt(np.max(shown / (_variances(points, inverse) + nugget))))


def _variances(points: Points, covariance: np.ndarray) -> np.ndarray:
    """Of f at the points [G, M], from the covariance of c [G, M, M]."""
    chol = points.chol.numpy()
    return np.einsum("gmi,gij,gmj->gm", chol, covariance, chol)


def _observations(
    gp: GaussianProcess, data: ProjectedData, earlier: ProjectedEarlier | None, sites: Sites
) -> tuple[np.ndarray, np.ndarray]:
    """D [G, M, N] and y [G, N, C], in units of their noise: the data, then what is earlier."""
    precision, centred = (part.numpy() for part in grouped_sites(sites, data.mean, gp.num_groups))
    root = np.sqrt(precision)
    design, targets = root * data.A.numpy(), centred / np.swapaxes(root, 1, 2)
    if earlier is None:
        return design, targets
    return (
        np.concatenate([design, earlier.design.numpy()], axis=2),
        np.concatenate([targets, earlier.residual.numpy()], axis=1),
    )
