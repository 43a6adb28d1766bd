"""Predictions of an exported Gaussian process, with NumPy and SciPy alone.

With u = f(Z), R block diagonal and ``B = I + Rᵀ k(Z, Z) R = L Lᵀ``, all at one ε,

- ``V = L⁻¹ Rᵀ k(Z, x)``
- mean ``m(x) + Vᵀ L⁻¹ (s − Rᵀ m(Z))``
- variance ``k(x, x) − Σ V²``

and predictions are the moments of the equal mixture over the values of ε.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtr

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.inputs import as_float64, as_real_array
from streaming_gp.runtime.kernels import Description, Parameters, kernel_of, of_name
from streaming_gp.serialization import PathLike

CHUNK_ELEMENTS = 2**22
"""The largest number of elements that an intermediate array of a prediction should have."""
SMALLEST_VARIANCE, MOST_ROUNDING = 1e-12, 0.5
"""As parts of the prior variance: rounding of a variance below the one is cut off, and below zero
it is less than the other."""
PROBIT_JITTER = 1e-3
"""GPflow's probit link keeps this distance from 0 and 1."""

Moments = tuple[np.ndarray, np.ndarray]

# ---- the file ----


@dataclass(frozen=True, eq=False)
class Draw:
    """The model at one ε.

    :param kernels: One kernel if all latent functions share it, else one for each.
    :param mean_function: The mean function.
    :param likelihood: The likelihood.
    :param chol: L [G, R, R], the lower factor of ``B = I + Rᵀ K R``.
    :param white: ``L⁻¹ (s − Rᵀ m(Z))`` [G, R, C].
    """

    kernels: tuple[Description, ...]
    mean_function: Description
    likelihood: Description
    chol: np.ndarray
    white: np.ndarray


@dataclass(frozen=True, eq=False)
class ExportedGP:
    """A process that is conditioned on pseudo-observations, at each of S values of ε.

    :param Z: The pseudo-inputs [R, D].
    :param precision_factor: The blocks of the block diagonal R, one after another: [G, M, M], or
        [G, M] for one that is diagonal.
    :param draws: The model at each ε.
    """

    Z: np.ndarray
    precision_factor: tuple[np.ndarray, ...]
    draws: tuple[Draw, ...]


KIND = "predictor"
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in (Description, Draw, ExportedGP)}


def write(path: PathLike, content: ExportedGP) -> None:
    """Write it to a file, atomically; a file that was there is replaced.

    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    serialization.write(path, KIND, content, _CLASSES)


def read(path: PathLike) -> ExportedGP:
    """The predictor in a file of :func:`write`.

    :raises FileFormatError: if the file is missing, damaged, foreign, or of another version.
    """
    content: ExportedGP = serialization.read(path, KIND, _CLASSES, ExportedGP)
    return content


def load(path: PathLike) -> Predictor:
    """The predictor that a file holds.

    :param path: A file that ``StreamingGP.export`` wrote.
    :raises FileFormatError: if the file is missing, damaged, foreign, of another version, or holds
        what this version has no NumPy form of.

    >>> model.export("predictor.npz")
    >>> predictor = sgp.runtime.load("predictor.npz")
    >>> bool(np.allclose(predictor.predict_f(X)[0], model.predict_f(X)[0]))
    True
    """
    content = read(path)
    try:
        return Predictor(content)
    except (InvalidDataError, KeyError, IndexError) as error:
        raise FileFormatError(f"{path} holds no valid predictor: {error}") from error


# ---- predictions ----


class Predictor:
    """A trained Gaussian process that can be asked, but learns no more.

    :param content: What ``StreamingGP.export`` wrote.
    """

    def __init__(self, content: ExportedGP) -> None:
        self._components = [_Component(content, draw) for draw in content.draws]
        self._input_dim = content.Z.shape[1]
        self._widest = max(1, content.Z.size * len(content.draws[0].white))

    def predict_f(self, X: Any) -> Moments:
        """Mean and variance [N, P] of f, integrated over q(ε); as ``StreamingGP.predict_f``.

        :param X: The inputs [N, D].
        :raises InvalidDataError: if X is not a finite matrix of D columns.
        :raises NumericalError: if they are so large that covariances overflow.
        """
        return self._mixture(X, _Component.f)

    def predict_y(self, X: Any) -> Moments:
        """Mean and variance [N, P] of new observations; as ``StreamingGP.predict_y``.

        :param X: The inputs [N, D].
        :raises InvalidDataError: if X is not a finite matrix of D columns, or there is no NumPy
            form of the model's likelihood; there is one of Gaussian noise of constant variance, and
            of the Bernoulli likelihood with the probit link.
        """
        return self._mixture(X, _Component.y)

    def _mixture(self, X: Any, at: Callable[[_Component, np.ndarray], Moments]) -> Moments:
        """Moments of the equal mixture over ε, some inputs after others."""
        inputs = self._inputs(X)
        chunk = max(1, CHUNK_ELEMENTS // self._widest)
        pieces = []
        for start in range(0, len(inputs), chunk):
            each = [at(component, inputs[start : start + chunk]) for component in self._components]
            means, variances = map(np.stack, zip(*each, strict=True))
            mean = means.mean(axis=0)
            pieces.append((mean, np.mean(variances + np.square(means - mean), axis=0)))
        mean, variance = map(np.concatenate, zip(*pieces, strict=True))
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise NumericalError(
                "predictions are not finite, as covariances overflow: wanted smaller inputs, got "
                f"some of size {np.abs(inputs).max():.3g}"
            )
        return mean, variance

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
        self.blocks = content.precision_factor
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
        return mean, np.broadcast_to(np.maximum(left, SMALLEST_VARIANCE * prior).T, mean.shape)

    def y(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, P] of observations."""
        return moments_of(self.draw.likelihood, *self.f(X))

    def _project(self, X: np.ndarray) -> np.ndarray:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [G, R, N]."""
        covariance, products, start = np.stack([k(X) for k in self.with_Z]), [], 0
        for R in self.blocks:
            K = covariance[:, start : start + R.shape[1]]
            products.append(R[:, :, None] * K if R.ndim == 2 else np.swapaxes(R, -1, -2) @ K)
            start += R.shape[1]
        pairs = zip(self.draw.chol, np.concatenate(products, axis=1), strict=True)
        solved = [solve_triangular(L, b, lower=True, check_finite=False) for L, b in pairs]
        return np.stack(solved)


# ---- mean functions: from inputs [N, D] to an array that broadcasts to [N, L] ----


def _zero(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    return np.zeros((len(X), 1))


def _constant(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    return np.reshape(parameters["c"], (1, -1))


def _linear(parameters: Parameters, X: np.ndarray) -> np.ndarray:
    return X @ parameters["A"] + parameters["b"]


MEAN_FUNCTIONS: dict[str, Callable[[Parameters, np.ndarray], np.ndarray]] = {
    "Zero": _zero,
    "Constant": _constant,
    "Linear": _linear,
}
"""The mean functions that there is a NumPy form of, by the names of their classes in GPflow."""


def mean_function_of(description: Description) -> Callable[[np.ndarray], np.ndarray]:
    """The mean function that is described.

    :raises InvalidDataError: if there is no NumPy form of it.
    """
    function = of_name("mean function", description.name, MEAN_FUNCTIONS)
    return lambda X: function(description.parameters, X)


# ---- likelihoods: moments of y [N, P] from those of f [N, L] ----


def _gaussian(parameters: Parameters, mean: np.ndarray, variance: np.ndarray) -> Moments:
    return mean, variance + parameters["variance"]


def _bernoulli(parameters: Parameters, mean: np.ndarray, variance: np.ndarray) -> Moments:
    """``p(y = 1 | f) = Φ(f)``, but for the jitter."""
    inside = ndtr(mean / np.sqrt(1.0 + variance))
    p = inside * (1.0 - 2.0 * PROBIT_JITTER) + PROBIT_JITTER
    return p, p - np.square(p)


LIKELIHOODS: dict[str, Callable[[Parameters, np.ndarray, np.ndarray], Moments]] = {
    "Gaussian": _gaussian,
    "Bernoulli": _bernoulli,
}
"""The likelihoods that there is a NumPy form of, by the names of their classes in GPflow."""


def moments_of(description: Description, mean: np.ndarray, variance: np.ndarray) -> Moments:
    """Mean and variance [N, P] of y under f ~ N(mean, variance), each [N, L].

    :raises InvalidDataError: if there is no NumPy form of the likelihood.
    """
    likelihood = of_name("likelihood", description.name, LIKELIHOODS)
    return likelihood(description.parameters, mean, variance)
