"""Pseudo-observations of a function, by which factors speak of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import eigh, lapack, solve_triangular

from streaming_gp.errors import InvalidDataError
from streaming_gp.numerics import triangular
from streaming_gp.numerics.linalg import compress_rows
from streaming_gp.serialization import storable

SMALLEST_PRECISION = 1e-14
"""In any direction, as a part of the largest: rounding below is cut off."""


@storable
@dataclass(frozen=True, eq=False)
class PseudoObservations:
    """Gaussian observations of the function: ``t(u) = exp(−½ ‖s − Rᵀu‖²)``.

    The variables are ``u = f(Z) + nugget noise``. This is positive semi-definite by construction:
    the precision of u is ``R Rᵀ``.

    :param Z: The pseudo-inputs [M, D].
    :param precision_factor: R, [G, M, M]; G = 1 where all latent functions share it.
    :param pseudo_targets: s, [G, M, C]; there are G C = L latent functions.
    :param nugget: The variance of the white noise that u adds to f(Z), in squared units of f.
    """

    Z: np.ndarray
    precision_factor: np.ndarray
    pseudo_targets: np.ndarray
    nugget: float

    @property
    def precision(self) -> np.ndarray:
        """``R Rᵀ`` [G, M, M]."""
        return self.precision_factor @ np.swapaxes(self.precision_factor, -1, -2)

    @property
    def precision_mean(self) -> np.ndarray:
        """``R s`` [G, M, C]."""
        return self.precision_factor @ self.pseudo_targets

    @property
    def variables(self) -> object:
        """The same for two pseudo-observations if and only if they observe the same u."""
        return self.nugget, self.Z.tobytes()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Input columns D, groups G, and columns C of a group: the same for all of one process."""
        return self.Z.shape[1], *self.pseudo_targets.shape[::2]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Every array in it."""
        return self.Z, self.precision_factor, self.pseudo_targets

    @property
    def has_matching_shapes(self) -> bool:
        """Whether the arrays are of the same M points and G groups."""
        return self.Z.ndim == 2 and _share_groups(
            len(self.Z), square=self.precision_factor, others=[self.pseudo_targets]
        )

    @cached_property
    def is_diagonal(self) -> bool:
        """Whether R is: every point is observed by itself, or not at all."""
        R = self.precision_factor
        return np.count_nonzero(R) == np.count_nonzero(np.diagonal(R, axis1=1, axis2=2))

    @cached_property
    def is_triangular(self) -> bool:
        """Whether R is a lower triangle."""
        return not np.any(np.triu(self.precision_factor, 1))

    def weighted(self, group: int, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for the R of one group and B [M, N]: a new array."""
        R = self.precision_factor[group]
        if self.is_diagonal:
            return R.diagonal()[:, None] * B
        return triangular.product(R, B, transposed=True) if self.is_triangular else R.T @ B

    def __pow__(self, power: float) -> PseudoObservations:
        """``t(u)^power``.

        :param power: A number that is not negative.
        :raises InvalidDataError: for a negative power, which no real R stands for.
        """
        if power < 0.0:
            raise InvalidDataError(f"pseudo-observations take no negative power, got {power}")
        weight = np.sqrt(power)
        return PseudoObservations(
            self.Z, weight * self.precision_factor, weight * self.pseudo_targets, self.nugget
        )


@storable
@dataclass(frozen=True, eq=False)
class ConditionalPseudoObservations:
    """The factor of a batch where earlier points are frozen: ``q(b | a) = N(c + A η, W Wᵀ)``.

    b = f(Z) + nugget noise, a stands for all earlier points, and η ~ N(0, I) for their deviation
    from the mean: ``a = m + S η`` (PVI 2018, eq. 89).

    :param Z: The pseudo-inputs [M, D].
    :param intercept: c, [G, M, C].
    :param slope: A, [G, M, R] for R earlier points.
    :param scale: W, [G, M, M].
    :param nugget: The variance of the white noise that b adds to f(Z), in squared units of f.
    """

    Z: np.ndarray
    intercept: np.ndarray
    slope: np.ndarray
    scale: np.ndarray
    nugget: float

    @property
    def precision(self) -> np.ndarray:
        """``(W Wᵀ)⁻¹``, of b given the earlier points [G, M, M]."""
        inverse = np.linalg.solve(self.scale, np.eye(len(self.Z))[None])
        return np.swapaxes(inverse, -1, -2) @ inverse

    @property
    def precision_mean(self) -> np.ndarray:
        """``(W Wᵀ)⁻¹ c`` [G, M, C]."""
        return self.precision @ self.intercept

    @property
    def variables(self) -> object:
        """All of these have variables of their own."""
        return id(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Input columns D, groups G, and columns C of a group: the same for all of one process."""
        return self.Z.shape[1], *self.intercept.shape[::2]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Every array in it."""
        return self.Z, self.intercept, self.slope, self.scale

    @property
    def has_matching_shapes(self) -> bool:
        """Whether the arrays are of the same M points and G groups."""
        return self.Z.ndim == 2 and _share_groups(
            len(self.Z), square=self.scale, others=[self.intercept, self.slope]
        )

    def __pow__(self, power: float) -> ConditionalPseudoObservations:
        raise InvalidDataError("conditional pseudo-points cannot be damped")


Observations = PseudoObservations | ConditionalPseudoObservations
"""Pseudo-observations of either kind."""


def _share_groups(M: int, square: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    """Whether the shapes are [G, M, M] for ``square`` and [G, M, ·] for the others."""
    rows = (*square.shape[:1], M)
    return square.shape == (*rows, M) and all(a.ndim == 3 and a.shape[:2] == rows for a in others)


def same(one: Observations, other: Observations) -> bool:
    """Whether both say the same, bit for bit: they may have travelled and be two objects."""
    if one is other:
        return True
    return (
        type(one) is type(other)
        and one.nugget == other.nugget
        and all(
            np.array_equal(mine, yours)
            for mine, yours in zip(one.arrays, other.arrays, strict=True)
        )
    )


def factored(W: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R [M, M] and s [M, C] with ``W = R Rᵀ`` and ``h = R s``, for information (W, h) about u.

    R is a lower triangle where W is positive, beyond rounding.

    :param W: [M, M]; its lower triangle counts.
    :param h: [M, C].
    """
    R, failed = lapack.dpotrf(W, lower=1, clean=1)
    diagonal = R.diagonal()
    if not failed and diagonal.min() ** 2 > SMALLEST_PRECISION * diagonal.max() ** 2:
        return R, solve_triangular(R, h, lower=True)
    values, vectors = eigh(W, lower=True)
    roots = np.sqrt(np.where(values > SMALLEST_PRECISION * values[-1], values, 0.0))[:, None]
    targets = np.divide(vectors.T @ h, roots, where=roots > 0.0, out=np.zeros_like(h))
    return vectors * roots.T, targets


def product(factors: Sequence[PseudoObservations]) -> tuple[PseudoObservations, float]:
    """The product of pseudo-observations of the same u, and the log of the constant left over."""
    first = factors[0]
    if len(factors) == 1:
        return first, 0.0
    rows = np.concatenate([np.swapaxes(t.precision_factor, -1, -2) for t in factors], axis=-2)
    targets = np.concatenate([t.pseudo_targets for t in factors], axis=-2)
    fewer_rows, fewer_targets = compress_rows(rows, targets)
    constant = -0.5 * (np.sum(targets**2) - np.sum(fewer_targets**2))
    factor = np.swapaxes(fewer_rows, -1, -2)
    return PseudoObservations(first.Z, factor, fewer_targets, first.nugget), float(constant)


def product_by_points(
    observations: Iterable[Observations],
) -> tuple[tuple[Observations, ...], float]:
    """The same product with one member for each set of points, and the log constant left over."""
    groups: dict[object, list[Any]] = {}
    for one in observations:
        groups.setdefault(one.variables, []).append(one)
    found = [product(group) for group in groups.values()]
    return tuple(one for one, _ in found), sum(constant for _, constant in found)
