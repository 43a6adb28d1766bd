"""Predictions of an exported Gaussian process, with NumPy and SciPy alone.

With u = f(Z), R block diagonal and ``B = I + Rᵀ k(Z, Z) R = L Lᵀ``, all at one ε,

- ``V = L⁻¹ Rᵀ k(Z, x)``
- mean ``m(x) + Vᵀ L⁻¹ (s − Rᵀ m(Z))``
- variance ``k(x, x) − Σ V²``;

L and what it solves are computed when a file is loaded, for each ε, which takes the cube of the
number of points. Where each prediction conditions on near rows, these are the prior of
:mod:`.near`. Predictions are the moments of the equal mixture over the values of ε.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtr

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.inputs import as_float64, as_real_array
from streaming_gp.numerics import triangular
from streaming_gp.runtime.kernels import Description, Parameters, kernel_of, of_name
from streaming_gp.runtime.near import AT_ONCE, Neighbors, Rows, solved
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
    :param precision_factor: The blocks of the block diagonal R, one after another: [G, M, M], or
        [G, M] for one that is diagonal.
    :param targets: s [G, R, C].
    :param nugget: The variance of the white noise that the points add to f [R].
    :param near: What is conditioned on where it is near, if anything is.
    """

    kernels: tuple[Description, ...]
    mean_function: Description
    likelihood: Description
    precision_factor: tuple[np.ndarray, ...]
    targets: np.ndarray
    nugget: np.ndarray
    near: Rows | None = None


@dataclass(frozen=True, eq=False)
class ExportedGP:
    """A process that is conditioned on pseudo-observations, at each of S values of ε.

    :param Z: The pseudo-inputs that are conditioned on as a whole [R, D].
    :param draws: The model at each ε.
    :param near: Sets of inputs [n, D] of :attr:`Draw.near`.
    """

    Z: np.ndarray
    draws: tuple[Draw, ...]
    near: tuple[np.ndarray, ...] = ()


def in_single_precision(content: ExportedGP) -> ExportedGP:
    """The same with observations in single precision, in half of their bytes."""

    def rounded(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32)

    def near(rows: Rows | None) -> Rows | None:
        if rows is None:
            return None
        return replace(rows, targets=rounded(rows.targets), noise=rounded(rows.noise))

    draws = tuple(
        replace(
            draw,
            precision_factor=tuple(map(rounded, draw.precision_factor)),
            targets=rounded(draw.targets),
            near=near(draw.near),
        )
        for draw in content.draws
    )
    return replace(content, draws=draws)


KIND = "predictor"
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in (Description, Draw, ExportedGP, Rows)}


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

    >>> _ = model.export("predictor.npz")
    >>> predictor = sgp.runtime.load("predictor.npz")
    >>> bool(np.allclose(predictor.predict_f(X)[0], model.predict_f(X)[0]))
    True
    """
    content = read(path)
    try:
        return Predictor(content)
    except (InvalidDataError, NumericalError, KeyError, IndexError, ValueError) as error:
        raise FileFormatError(f"{path} holds no valid predictor: {error}") from error


# ---- predictions ----


class Predictor:
    """A trained Gaussian process that can be asked, but learns no more.

    :param content: What ``StreamingGP.export`` wrote.
    """

    def __init__(self, content: ExportedGP) -> None:
        self._components = [_Component(content, draw) for draw in content.draws]
        self._input_dim = content.Z.shape[1]
        self._chunk = min(component.chunk for component in self._components)

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
        pieces = []
        for start in range(0, len(inputs), self._chunk):
            some = inputs[start : start + self._chunk]
            each = [at(component, some) for component in self._components]
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
        self.with_Z = []
        if len(content.Z):
            for kernel in self.kernels:
                kernel.centre(content.Z[0])
            self.with_Z = [kernel.bind(content.Z) for kernel in self.kernels]
        self.mean_function = mean_function_of(draw.mean_function)
        self.draw = draw
        self.chol, self.white = self._factorised(content.Z)
        self.near = None if draw.near is None else _Near(self, content.near[draw.near.inputs])
        self.chunk = max(1, CHUNK_ELEMENTS // max(1, content.Z.size * len(draw.targets)))
        if draw.near is not None:
            number = min(draw.near.number, draw.near.noise.shape[1])
            self.chunk = min(self.chunk, max(1, AT_ONCE // (number + 1) ** 2))

    def f(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, L] of f."""
        if self.near is not None:
            return self.near.f(X)
        V = self.project(X)
        prior = np.stack([kernel.variance(X) for kernel in self.kernels])
        left = prior - np.add.reduce(V * V, axis=-2)
        if (left < -MOST_ROUNDING * prior).any():
            raise NumericalError("covariances with inputs so large are wrong: wanted smaller ones")
        mean = self.mean(X, V)
        return mean, np.broadcast_to(np.maximum(left, SMALLEST_VARIANCE * prior).T, mean.shape)

    def mean(self, X: np.ndarray, V: np.ndarray) -> np.ndarray:
        """The mean [N, L] given the points that are conditioned on as a whole."""
        pairs = zip(V, self.white, strict=True)
        return self.mean_function(X) + np.concatenate([v.T @ white for v, white in pairs], axis=1)

    def y(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, P] of observations."""
        return moments_of(self.draw.likelihood, *self.f(X))

    def project(self, X: np.ndarray) -> np.ndarray:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [G, R, N]."""
        if not self.with_Z:
            return np.zeros((*self.draw.targets.shape[:2], len(X)))
        K = [k(X) for k in self.with_Z]
        of_group = (K[min(group, len(K) - 1)] for group in range(len(self.chol)))
        weighted = (self._weighted(group, one) for group, one in enumerate(of_group))
        pairs = zip(self.chol, weighted, strict=True)
        return np.stack([triangular.solve(L, one) for L, one in pairs])

    def _factorised(self, Z: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """L [R, R] and ``L⁻¹ (s − Rᵀ m(Z))`` [R, C] of each group."""
        targets, factors, solutions = self.draw.targets, [], []
        G, R, C = targets.shape
        sizes = (
            len(Z),
            sum(one.shape[1] for one in self.draw.precision_factor),
            len(self.draw.nugget),
        )
        if sizes != (R, R, R):
            raise InvalidDataError(f"targets of {R} points need as many of all else, got {sizes}")
        mean = np.broadcast_to(self.mean_function(Z), (R, G * C)).reshape(R, G, C)
        for group in range(G if R else 0):
            place = min(group, len(self.kernels) - 1)
            K = self.with_Z[place](Z)
            np.einsum("rr->r", K)[:] = self.kernels[place].variance(Z) + self.draw.nugget
            B = self._weighted(group, self._weighted(group, K).T)
            largest = float(B.diagonal().max())
            np.einsum("rr->r", B)[:] += 1.0
            factors.append(triangular.cholesky_but_for_rounding(B, largest))
            residual = targets[group] - self._weighted(group, mean[:, group])
            solutions.append(triangular.solve(factors[-1], residual))
        return factors, solutions or list(targets)

    def _weighted(self, group: int, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for B [R, N]."""
        products, start = [], 0
        for R in self.draw.precision_factor:
            piece = B[start : start + R.shape[1]]
            products.append(R[group][:, None] * piece if R.ndim == 2 else R[group].T @ piece)
            start += R.shape[1]
        return products[0] if len(products) == 1 else np.concatenate(products)


class _Near:
    """A component where each prediction conditions on near rows.

    :param whole: The process given the points that are conditioned on as a whole.
    :param Z: The rows [n, D].
    """

    def __init__(self, whole: _Component, Z: np.ndarray) -> None:
        rows = whole.draw.near
        assert rows is not None
        self._whole, self._rows, self._Z = whole, rows, Z
        self._kernels = [kernel_of(kernel) for kernel in whole.draw.kernels]
        noises = (rows.noise[min(i, len(rows.noise) - 1)] for i in range(len(self._kernels)))
        pairs = zip(self._kernels, noises, strict=True)
        self._neighbors = [Neighbors(kernel, Z, noise) for kernel, noise in pairs]
        self._far = whole.project(Z) if whole.with_Z else None
        G, C = len(rows.noise), rows.targets.shape[-1]
        means = whole.mean(Z, whole.project(Z)).reshape(len(Z), G, C)
        self._errors = rows.targets - np.swapaxes(means, 0, 1)

    def f(self, X: np.ndarray) -> Moments:
        """Mean and variance [N, L] of f."""
        rows, whole = self._rows, self._whole
        V = whole.project(X)
        number = min(rows.number, len(self._Z))
        found = [one.of(X, number) for one in self._neighbors]
        known, left = [], []
        for group, noise in enumerate(rows.noise):
            place = min(group, len(found) - 1)
            mine = found[place]
            far = None if self._far is None else (self._far[group].T[mine], V[group].T)
            kernel, errors = self._kernels[place], self._errors[group][mine]
            each = solved(kernel, X, self._Z[mine], errors, noise[mine], far)
            known.append(each[0])
            left.append(np.broadcast_to(each[1][:, None], each[0].shape))
        mean = whole.mean(X, V) + np.concatenate(known, axis=-1)
        return mean, np.concatenate(left, axis=-1)


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
    """The mean function that is described."""
    function = of_name("mean function", description.name, MEAN_FUNCTIONS)
    return partial(function, description.parameters)


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
    """Mean and variance [N, P] of y under f ~ N(mean, variance), each [N, L]."""
    likelihood = of_name("likelihood", description.name, LIKELIHOODS)
    return likelihood(description.parameters, mean, variance)
