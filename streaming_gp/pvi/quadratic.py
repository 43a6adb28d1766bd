"""Factors of hyperparameters: Gaussian in form, perhaps improper, so quadratic in logarithm."""

from __future__ import annotations

import numpy as np

from streaming_gp.expfam import Factor


def slope_and_precision(factor: Factor, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient [H] of a factor's logarithm at these hyperparameters [H], and minus its Hessian
    [H, H].
    """
    precision_mean, precision = factor.natural
    return precision_mean - precision @ numbers, precision


def bounded_newton_step(
    numbers: np.ndarray, gradient: np.ndarray, precision: np.ndarray, bound: float
) -> np.ndarray:
    """Uphill along each eigenvector of the curvature, whose sign does not matter: by Newton's
    method, but by no more than the bound.
    """
    unit = np.maximum(1.0, 0.5 * numbers)
    curvature, directions = np.linalg.eigh(unit[:, None] * precision * unit)
    slope = directions.T @ (unit * gradient)
    steepest = np.maximum(np.abs(curvature), np.abs(slope) / bound)
    steps = np.divide(slope, steepest, out=np.zeros_like(slope), where=steepest > 0.0)
    return unit * (directions @ steps)
