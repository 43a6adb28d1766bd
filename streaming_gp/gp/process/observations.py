"""Pseudo-observations of a function, by which factors speak of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

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
    :param precision_factor: R, [G, M, M], or its diagonal [G, M] where every point is observed by
        itself; G = 1 where all latent functions share it.
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
        return self.square @ np.swapaxes(self.square, -1, -2)

    @property
    def precision_mean(self) -> np.ndarray:
        """``R s`` [G, M, C]."""
        if self.is_diagonal:
            return self.precision_factor[:, :, None] * self.pseudo_targets
        return self.precision_factor @ self.pseudo_targets

    @property
    def square(self) -> np.ndarray:
        """R as matrices [G, M, M]."""
        R = self.precision_factor
        return R[:, :, None] * np.eye(R.shape[1]) if self.is_diagonal else R

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
        R, targets, M = self.precision_factor, self.pseudo_targets, len(self.Z)
        if self.Z.ndim != 2 or R.ndim not in (2, 3):
            return False
        if self.is_diagonal:
            return R.shape[1:] == (M,) and targets.ndim == 3 and targets.shape[:2] == R.shape
        return _share_groups(M, square=R, others=[targets])

    @property
    def is_diagonal(self) -> bool:
        """Whether R is held as its diagonal: every point is observed by itself, or not at all."""
        return self.precision_factor.ndim == 2

    @cached_property
    def is_triangular(self) -> bool:
        """Whether R is a lower triangle."""
        return not np.any(np.triu(self.square, 1))

    def weighted(self, group: int, B: np.ndarray) -> np.ndarray:
        """``Rᵀ B`` for the R of one group and B [M, N]: a new array."""
        R = self.precision_factor[group]
        if self.is_diagonal:
            return np.asarray(R[:, None] * B)
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


@storable
@dataclass(frozen=True, eq=False)
class DataObservations:
    """The likelihood of a batch itself, each datum at its own input: ``Π_n p(y_n | f_n)^w_n``.

    With Gaussian noise it is exact, and its noise is read off ε whenever it is asked for. Any other
    likelihood is as Gaussian as its sites say, which are those of one ε; the data stay with them,
    so that another ε has sites of its own. Whoever holds it holds the data.

    :param Z: The inputs [N, D].
    :param Y: The observations [N, P], NaN where one of several outputs was not observed.
    :param weights: w [N] in (0, 1]: below one where what the batch says has faded.
    :param precision_mean: λ of the sites ``exp(λ f − ½ τ f²)``, [N, L]; L = 0 with Gaussian noise.
    :param precision: τ of the sites, [N, L], with the weights in it.
    :param num_groups: G, the number of groups of latent functions: those of a group share a kernel.
    """

    Z: np.ndarray
    Y: np.ndarray
    weights: np.ndarray
    precision_mean: np.ndarray
    precision: np.ndarray
    num_groups: int
    nugget: ClassVar[float] = 0.0

    @property
    def is_gaussian(self) -> bool:
        """Whether the noise is Gaussian, and so the sites are whatever ε says."""
        return self.precision.shape[1] == 0

    @property
    def variables(self) -> object:
        """The same for the same data alone."""
        return self.Z.tobytes(), self.Y.tobytes()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Input columns D, groups G, and columns C of a group: the same for all of one process."""
        num_latent = (self.Y if self.is_gaussian else self.precision).shape[1]
        return self.Z.shape[1], self.num_groups, num_latent // self.num_groups

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Every array in it."""
        return self.Z, self.Y, self.weights, self.precision_mean, self.precision

    @property
    def has_matching_shapes(self) -> bool:
        """Whether the arrays are of the same N data."""
        N, matrices = len(self.Z), (self.Z, self.Y, self.precision_mean, self.precision)
        return (
            all(one.ndim == 2 and len(one) == N for one in matrices)
            and self.weights.shape == (N,)
            and self.precision.shape == self.precision_mean.shape
            and self.sizes[2] >= 1
            and ((self.sizes[2] == 1 and self.is_gaussian) or not self.is_missing.any())
        )

    @property
    def is_missing(self) -> np.ndarray:
        """Which entries of Y were not observed [N, P]."""
        return np.isnan(self.Y)

    @property
    def precision_factor(self) -> np.ndarray:
        """The root of the sites' precision, or of the weights: [G, N]."""
        of_each = self.weights[:, None] if self.is_gaussian else self.precision
        return np.sqrt(np.broadcast_to(of_each.T, (of_each.shape[1], len(self.Z))))

    def rows(self, some: Any) -> DataObservations:
        """Some of the data."""
        return replace(
            self, Z=self.Z[some], Y=self.Y[some], weights=self.weights[some],
            precision_mean=self.precision_mean[some], precision=self.precision[some],
        )  # fmt: skip

    def observed(self, noise_precision: np.ndarray | None) -> PseudoObservations:
        """As pseudo-observations at one ε.

        :param noise_precision: ``1/σ²`` [N, L] of Gaussian noise at that ε; None if it is not.
        """
        mean, precision = self.precision_mean, self.precision
        if noise_precision is not None:
            precision = np.where(self.is_missing, 0.0, self.weights[:, None] * noise_precision)
            mean = precision * np.where(self.is_missing, 0.0, self.Y)
        groups = len(self.Z), self.num_groups, -1
        mean, precision = (np.reshape(part, groups).swapaxes(0, 1) for part in (mean, precision))
        root = np.sqrt(precision[:, :, 0])
        column = root[:, :, None]
        targets = np.divide(mean, column, where=column > 0.0, out=np.zeros_like(mean))
        return PseudoObservations(self.Z, root, targets, nugget=0.0)

    def __pow__(self, power: float) -> DataObservations:
        """``t(f)^power``.

        :raises InvalidDataError: for a negative power.
        """
        if power < 0.0:
            raise InvalidDataError(f"data take no negative power, got {power}")
        return replace(
            self, weights=power * self.weights,
            precision_mean=power * self.precision_mean, precision=power * self.precision,
        )  # fmt: skip


def concatenated(parts: Sequence[DataObservations]) -> DataObservations:
    """The data of several, one after another."""
    names = "Z", "Y", "weights", "precision_mean", "precision"
    arrays = {name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    return replace(parts[0], **arrays)


Observations = PseudoObservations | ConditionalPseudoObservations | DataObservations
"""Observations of any kind."""


def apart(one: Observations) -> Observations:
    """The same with a group for each latent function, so that each may be observed elsewhere."""
    _, groups, columns = one.sizes
    if columns == 1:
        return one
    if isinstance(one, DataObservations):
        return replace(one, num_groups=columns)
    if isinstance(one, ConditionalPseudoObservations) or groups > 1:
        raise InvalidDataError(
            "entries of Y that are missing want factors that stand alone, got "
            f"{type(one).__name__} of {groups} groups"
        )
    factor = np.repeat(one.precision_factor, columns, axis=0)
    targets = np.ascontiguousarray(np.transpose(one.pseudo_targets, (2, 1, 0)))
    return replace(one, precision_factor=factor, pseudo_targets=targets)


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
            np.array_equal(mine, yours, equal_nan=True)
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


def product(factors: Sequence[Any]) -> tuple[Any, float]:
    """The product of pseudo-observations of the same u, and the log of the constant left over."""
    first = factors[0]
    if len(factors) == 1:
        return first, 0.0
    if isinstance(first, DataObservations):  # the same data, each with a part of its weight
        parts = {
            name: np.sum([getattr(one, name) for one in factors], axis=0)
            for name in ("weights", "precision_mean", "precision")
        }
        return replace(first, **parts), 0.0
    rows = np.concatenate([np.swapaxes(t.square, -1, -2) for t in factors], axis=-2)
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
