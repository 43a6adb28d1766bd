"""Pseudo-observations of a function, and the factors made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.linalg import compress_rows


@dataclass(frozen=True, eq=False)
class PseudoObservations:
    """One row of a GP ledger: ``t(u) = exp(−½ ‖s − Rᵀu‖²)``, with ``u = f(Z) + nugget noise``.

    Positive semi-definite by construction: the precision of u is ``R Rᵀ``.

    :param Z: pseudo-inputs [M, D].
    :param root: R, [G, M, M]; G = 1 where all latent functions share it.
    :param targets: s, [G, M, C]; G C = L latent functions.
    :param nugget: variance of the white noise that u adds to f(Z); one number.
    """

    Z: np.ndarray
    root: np.ndarray
    targets: np.ndarray
    nugget: float

    @property
    def precision(self) -> np.ndarray:
        """``R Rᵀ`` [G, M, M]."""
        return self.root @ np.swapaxes(self.root, -1, -2)

    @property
    def precision_mean(self) -> np.ndarray:
        """``R s`` [G, M, C]."""
        return self.root @ self.targets

    @property
    def variables(self) -> object:
        """The same for two rows if and only if they observe the same u."""
        return self.nugget, self.Z.tobytes()

    def __pow__(self, power: float) -> PseudoObservations:
        weight = np.sqrt(power)
        return PseudoObservations(self.Z, weight * self.root, weight * self.targets, self.nugget)


@dataclass(frozen=True, eq=False)
class ConditionalRow:
    """One row of a ledger whose earlier rows are frozen: ``q(b | a) = N(c + A η, W Wᵀ)``.

    b = f(Z) + nugget noise, a stands for all earlier points, and η ~ N(0, I) for their deviation
    from the mean: ``a = m + S η`` (PVI 2018, eq. 89).

    :param Z: pseudo-inputs [M, D].
    :param intercept: c, [G, M, C].
    :param slope: A, [G, M, R] for R earlier points.
    :param scale: W, [G, M, M].
    :param nugget: variance of the white noise that b adds to f(Z).
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
        """Every row has variables of its own."""
        return id(self)

    def __pow__(self, power: float) -> ConditionalRow:
        raise InvalidDataError("conditional pseudo-points cannot be damped")


Row = PseudoObservations | ConditionalRow


def merged(twins: Sequence[PseudoObservations]) -> tuple[PseudoObservations, float]:
    """The product of rows on the same u as one row, and the log of the constant left over."""
    first = twins[0]
    if len(twins) == 1:
        return first, 0.0
    rows = np.concatenate([np.swapaxes(twin.root, -1, -2) for twin in twins], axis=-2)
    targets = np.concatenate([twin.targets for twin in twins], axis=-2)
    fewer_rows, fewer_targets = compress_rows(rows, targets)
    constant = -0.5 * (np.sum(targets**2) - np.sum(fewer_targets**2))
    root = np.swapaxes(fewer_rows, -1, -2)
    return PseudoObservations(first.Z, root, fewer_targets, first.nugget), float(constant)


def without_twins(rows: Iterable[Row]) -> tuple[tuple[Row, ...], float]:
    """The same product with one row for each set of points, and the log constant left over."""
    groups: dict[object, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.variables, []).append(row)
    found = [merged(group) for group in groups.values()]
    return tuple(row for row, _ in found), sum(constant for _, constant in found)


@dataclass(frozen=True, eq=False)
class PseudoPointFactor:
    """An approximate likelihood ``t_b(f, ε)``: pseudo-observations of f times a factor of ε.

    :param rows: the pseudo-observations; one row, unless factors at different Z were multiplied.
    :param hyperparameters: the factor of ε, or None where ε is a point.
    :param log_scale: log of the constant in front.
    """

    rows: tuple[Row, ...]
    hyperparameters: expfam.Factor | None = None
    log_scale: float = 0.0

    @property
    def Z(self) -> np.ndarray:
        """Pseudo-inputs [M, D]."""
        return np.concatenate([row.Z for row in self.rows])

    @property
    def precision(self) -> np.ndarray:
        """Of u, [G, M, M]."""
        blocks = [row.precision for row in self.rows]
        return np.stack([block_diag(*group) for group in zip(*blocks, strict=True)])

    @property
    def precision_mean(self) -> np.ndarray:
        """Precision times mean of u, [G, M, C]."""
        return np.concatenate([row.precision_mean for row in self.rows], axis=1)

    def __mul__(self, other: PseudoPointFactor) -> PseudoPointFactor:
        rows, constant = without_twins((*self.rows, *other.rows))
        hyperparameters = _product(self.hyperparameters, other.hyperparameters)
        log_scale = self.log_scale + other.log_scale + constant
        return PseudoPointFactor(rows, hyperparameters, log_scale)

    def __pow__(self, power: float) -> PseudoPointFactor:
        hyperparameters = None if self.hyperparameters is None else self.hyperparameters**power
        rows = tuple(row**power for row in self.rows)
        return PseudoPointFactor(rows, hyperparameters, power * self.log_scale)


def _product(*factors: expfam.Factor | None) -> expfam.Factor | None:
    present = [factor for factor in factors if factor is not None]
    return reduce(lambda a, b: a * b, present) if present else None
