"""Predictions of an exported Gaussian process, with NumPy and SciPy alone.

With u = f(Z), R block diagonal and ``B = I + Rᵀ k(Z, Z) R = L Lᵀ``, all at one ε,

- ``V = L⁻¹ Rᵀ k(Z, x)``
- mean ``m(x) + Vᵀ L⁻¹ (s − Rᵀ m(Z))``
- variance ``k(x, x) − Σ V²``

and predictions are the moments of the equal mixture over the values of ε.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.inputs import as_float64, as_real_array
from streaming_gp.runtime import exported
from streaming_gp.runtime.exported import Draw, ExportedGP
from streaming_gp.runtime.kernels import kernel_of
from streaming_gp.runtime.likelihoods import moments_of
from streaming_gp.runtime.mean_functions import mean_function_of
from streaming_gp.serialization import PathLike

CHUNK_ELEMENTS = 2**22
"""The largest number of elements that an intermediate array of a prediction should have."""

MOST_ROUNDING = 0.5
"""How far variances may lie below zero, as a part of the prior's."""

Moments = tuple[np.ndarray, np.ndarray]


def load(path: PathLike) -> Predictor:
    """The predictor that a file holds.

    :param path: A file that ``StreamingGP.export`` wrote.
    :raises FileFormatError: if the file is missing, damaged, foreign, of another version, or holds
        what this version has no NumPy form of.
    """
    content = exported.read(path)
    try:
        return Predictor(content)
    except (InvalidDataError, KeyError, IndexError) as error:
        raise FileFormatError(f"{path} holds no valid predictor: {error}") from error


class Predictor:
    """A trained Gaussian process that can be asked, but learns no more.

    :param content: What ``StreamingGP.export`` wrote.
    """

    def __init__(self, content: ExportedGP) -> None:
        self._components = [_Component(content, draw) for draw in content.draws]
        self._input_dim = content.Z.shape[1]
        self._widest = max(1, content.Z.size * len(content.precision_factor))

    def predict_f(self, X: Any) -> Moments:
        """Mean and variance [N, P] of f, integrated over q(ε); as ``StreamingGP.predict_f``.

        :param X: The inputs [N, D].
        :raises InvalidDataError: if X is not a finite matrix of D columns.
        :raises NumericalError: if they are so large that covariances overflow.
        """
        return self._in_chunks(X, _Component.f)

    def predict_y(self, X: Any) -> Moments:
        """Mean and variance [N, P] of new observations; as ``StreamingGP.predict_y``.

        :param X: The inputs [N, D].
        :raises InvalidDataError: if X is not a finite matrix of D columns, or there is no NumPy
            form of the model's likelihood; there is one of Gaussian noise of constant variance, and
            of the Bernoulli likelihood with the probit link.
        """
        return self._in_chunks(X, _Component.y)

    def _in_chunks(self, X: Any, moments: MomentsAt) -> Moments:
        inputs = self._inputs(X)
        chunk = max(1, CHUNK_ELEMENTS // self._widest)
        starts = range(0, max(1, len(inputs)), chunk)
        pieces = [self._mixture(inputs[start : start + chunk], moments) for start in starts]
        mean, variance = map(np.concatenate, zip(*pieces, strict=True))
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise NumericalError(
                "predictions are not finite, as covariances overflow: wanted smaller inputs, got "
                f"some of size {np.abs(inputs).max():.3g}"
            )
        return mean, variance

    def _mixture(self, X: np.ndarray, moments: MomentsAt) -> Moments:
        """Moments of the equal mixture over ε."""
        each = [moments(component, X) for component in self._components]
        means, variances = map(np.stack, zip(*each, strict=True))
        mean = means.mean(axis=0)
        return mean, np.mean(variances + np.square(means - mean), axis=0)

    def _inputs(self, X: Any) -> np.ndarray:
        inputs = as_real_array("X", X)
        if inputs.ndim != 2 or 0 in inputs.shape or inputs.shape[1] != self._input_dim:
            raise InvalidDataError(
                f"X must have shape [N, {self._input_dim}] with N ≥ 1, got {list(inputs.shape)}"
            )
        inputs = as_float64("X", inputs)
        if not np.isfinite(inputs).all():
            raise InvalidDataError("X must hold finite real numbers, but some are not finite")
        return inputs


class _Component:
    """The Gaussian process at one ε."""

    def __init__(self, content: ExportedGP, draw: Draw) -> None:
        self.kernels = [kernel_of(kernel) for kernel in draw.kernels]
        for kernel in self.kernels:
            kernel.centre(content.Z[0])
        self.with_Z = [kernel.bind(content.Z) for kernel in self.kernels]
        self.mean_function = mean_function_of(draw.mean_function)
        self.factor_transposed = np.swapaxes(content.precision_factor, -1, -2)
        self.draw = draw

    def f(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, L] of f."""
        V, white = self._project(X), self.draw.white
        num_latent = len(white) * white.shape[-1]
        known = np.swapaxes(V, -1, -2) @ white  # [G, N, C]
        mean = self.mean_function(X) + np.swapaxes(known, 0, 1).reshape(len(X), num_latent)
        prior = np.stack([kernel.variance(X) for kernel in self.kernels])
        left = prior - np.add.reduce(V * V, axis=-2)
        if (left < -MOST_ROUNDING * prior).any():
            raise NumericalError("covariances with inputs so large are wrong: wanted smaller ones")
        return mean, np.broadcast_to(np.maximum(left, 1e-12 * prior).T, mean.shape)

    def y(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, P] of observations."""
        return moments_of(self.draw.likelihood, *self.f(X))

    def _project(self, X: np.ndarray) -> np.ndarray:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [G, R, N]."""
        G, n, M, _ = self.factor_transposed.shape
        covariance = np.stack([k(X) for k in self.with_Z]).reshape(-1, n, M, len(X))
        seen = (self.factor_transposed @ covariance).reshape(G, n * M, len(X))
        pairs = zip(self.draw.chol, seen, strict=True)
        solved = [solve_triangular(L, b, lower=True, check_finite=False) for L, b in pairs]
        return np.stack(solved)


MomentsAt = Callable[[_Component, np.ndarray], Moments]
