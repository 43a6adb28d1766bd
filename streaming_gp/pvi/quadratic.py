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


def bounded_precision(
    numbers: np.ndarray, gradient: np.ndarray, precision: np.ndarray, bound: float
) -> np.ndarray:
    """The positive curvature [H, H] under which a Newton step goes uphill and is bounded.

    Along each eigenvector of the precision its sign is dropped, and it is raised where the step
    would be longer than the bound.

    :param numbers: Hyperparameters [H]; one beyond 2 is measured in units of its half.
    """
    unit = np.maximum(1.0, 0.5 * numbers)
    curvature, directions = np.linalg.eigh(unit[:, None] * precision * unit)
    slope = directions.T @ (unit * gradient)
    steepest = np.maximum(np.abs(curvature), np.abs(slope) / bound)
    return (directions * steepest) @ directions.T / (unit[:, None] * unit)


def newton_step(gradient: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The shortest step [H] to the maximum; none in directions without curvature."""
    step: np.ndarray = np.linalg.lstsq(precision, gradient, rcond=None)[0]
    return step
