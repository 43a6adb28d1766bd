"""How far from the truth a posterior is at its points, as the data themselves show.

The variational bound counts each observation as if the points said all of f there, and so is too
sure of them where they do not. Observations ``y ≈ Dᵀ c + noise`` of whitened points c, in units of
their own noise, give the precision ``P = I + D Dᵀ`` and residuals e. If these are larger than the
noise, ``P⁻¹ D diag(e²) Dᵀ P⁻¹`` is the variance of the mean of c, and not ``P⁻¹`` (White 1980, "A
heteroskedasticity-consistent covariance matrix estimator").
"""

from __future__ import annotations

import numpy as np


def shown_error(chol: np.ndarray, design: np.ndarray, targets: np.ndarray, nugget: float) -> float:
    """The largest standard deviation of errors at points over the predicted one, without a unit.

    Near one, or below where data are few, if the points say all that there is.

    :param chol: The factor L of the points' covariance under the cavity: ``b = m + L c`` [G, M, M].
    :param design: D of the observations, in units of their noise [G, M, N].
    :param targets: The observations less their mean, likewise [G, N, C].
    :param nugget: The variance of the points' white noise.
    """
    transposed = np.swapaxes(design, 1, 2)
    inverse = np.linalg.inv(np.eye(design.shape[1]) + design @ transposed)
    weights = inverse @ design
    residual = targets - transposed @ (weights @ targets)
    squares = np.mean(residual**2, axis=2)[:, None, :]
    shown = _variances(chol, (weights * squares) @ np.swapaxes(weights, 1, 2))
    return float(np.sqrt(np.max(shown / (_variances(chol, inverse) + nugget))))


def _variances(chol: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Of f at the points [G, M], from the covariance of c [G, M, M]."""
    return np.einsum("gmi,gij,gmj->gm", chol, covariance, chol)
