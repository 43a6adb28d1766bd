"""The factors of a Gaussian process: pseudo-observations of f, times a factor of ε."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from scipy.linalg import block_diag

from streaming_gp import expfam
from streaming_gp.gp.process.pseudo_observations import (
    Observations,
    PseudoObservations,
    product_by_points,
)
from streaming_gp.serialization import storable

_NOTHING = PseudoObservations(np.zeros((0, 0)), np.zeros((1, 0, 0)), np.zeros((1, 0, 1)), 0.0)
"""Stands in where a factor speaks of ε alone."""


@storable
@dataclass(frozen=True, eq=False)
class PseudoPointFactor:
    """An approximate likelihood ``t_b(f, ε)``: pseudo-observations of f times a factor of ε.

    :param pseudo_observations: What it says of f; one member, unless factors at different Z were
        multiplied, and none if that was forgotten.
    :param hyperparameters: The factor of ε, or None where ε is a point.
    :param log_scale: The log of the constant in front, in nats.
    """

    pseudo_observations: tuple[Observations, ...]
    hyperparameters: expfam.Factor | None = None
    log_scale: float = 0.0

    @property
    def Z(self) -> np.ndarray:
        """Pseudo-inputs [M, D]; [0, 0] if it says nothing of f."""
        return np.concatenate([one.Z for one in self._of_function])

    @property
    def precision(self) -> np.ndarray:
        """Of u, [G, M, M]."""
        blocks = [one.precision for one in self._of_function]
        return np.stack([block_diag(*group) for group in zip(*blocks, strict=True)])

    @property
    def precision_mean(self) -> np.ndarray:
        """Precision times mean of u, [G, M, C]."""
        return np.concatenate([one.precision_mean for one in self._of_function], axis=1)

    @property
    def _of_function(self) -> tuple[Observations, ...]:
        return self.pseudo_observations or (_NOTHING,)

    @property
    def num_bytes(self) -> int:
        """Size of its arrays."""
        arrays = sum(array.nbytes for one in self.pseudo_observations for array in one.arrays)
        return arrays + (0 if self.hyperparameters is None else self.hyperparameters.num_bytes)

    def as_arrays(self) -> PseudoPointFactor:
        """The same factor with the factor of ε held in NumPy arrays, as all else is already."""
        if self.hyperparameters is None:
            return self
        return replace(self, hyperparameters=self.hyperparameters.as_arrays())

    def __mul__(self, other: PseudoPointFactor) -> PseudoPointFactor:
        """The product; pseudo-observations of the same points become one."""
        observations, constant = product_by_points(
            (*self.pseudo_observations, *other.pseudo_observations)
        )
        hyperparameters = product_of_epsilon(self.hyperparameters, other.hyperparameters)
        log_scale = self.log_scale + other.log_scale + constant
        return PseudoPointFactor(observations, hyperparameters, log_scale)

    def __pow__(self, power: float) -> PseudoPointFactor:
        """``t_b^power``; the power must not be negative."""
        hyperparameters = None if self.hyperparameters is None else self.hyperparameters**power
        observations = tuple(one**power for one in self.pseudo_observations)
        return PseudoPointFactor(observations, hyperparameters, power * self.log_scale)

    def saying_less_of_epsilon(self, power: float) -> PseudoPointFactor:
        """The same of f, and of ε only to this power."""
        assert self.hyperparameters is not None
        return replace(self, hyperparameters=self.hyperparameters**power)

    def faded(self, power: float) -> PseudoPointFactor:
        """The same of ε, and of f only to this power; to the power 0 nothing of f."""
        if power == 0.0:
            return PseudoPointFactor((), self.hyperparameters)
        return replace(self**power, hyperparameters=self.hyperparameters)


def product_of_epsilon(*factors: expfam.Factor | None) -> expfam.Factor | None:
    """The product of those that are there."""
    present = [factor for factor in factors if factor is not None]
    return reduce(lambda a, b: a * b, present) if present else None
