"""A Gaussian process as prior × factors, as a value: prior, cavity and posterior alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain

import numpy as np
from scipy.linalg import block_diag

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.process.observations import (
    ConditionalPseudoObservations,
    DataObservations,
    Observations,
    PseudoObservations,
    apart,
    product_by_points,
    same,
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
        return np.concatenate([one.Z for one in self.pseudo_observations or (_NOTHING,)])

    @property
    def precision(self) -> np.ndarray:
        """Of u, [G, M, M].

        :raises InvalidDataError: if it holds data with Gaussian noise, whose precision ε says.
        """
        blocks = [one.precision for one in self._of_function]
        return np.stack([block_diag(*group) for group in zip(*blocks, strict=True)])

    @property
    def precision_mean(self) -> np.ndarray:
        """Precision times mean of u, [G, M, C].

        :raises InvalidDataError: as :attr:`precision`.
        """
        return np.concatenate([one.precision_mean for one in self._of_function], axis=1)

    @property
    def _of_function(self) -> tuple[Observations, ...]:
        members = self.pseudo_observations or (_NOTHING,)
        data = [one for one in members if isinstance(one, DataObservations)]
        if any(one.is_gaussian for one in data):
            raise InvalidDataError(
                "the precision of data with Gaussian noise is that of ε: wanted a factor of "
                "pseudo-observations, got the data themselves"
            )
        return tuple(
            one.observed(None) if isinstance(one, DataObservations) else one for one in members
        )

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

    @property
    def apart(self) -> PseudoPointFactor:
        """The same with a group for each latent function."""
        observations = tuple(apart(one) for one in self.pseudo_observations)
        return replace(self, pseudo_observations=observations)

    def faded(self, power: float) -> PseudoPointFactor:
        """The same of ε, and of f only to this power; to the power 0 nothing of f."""
        if power == 0.0:
            return PseudoPointFactor((), self.hyperparameters)
        return replace(self**power, hyperparameters=self.hyperparameters)


def product_of_epsilon(*factors: expfam.Factor | None) -> expfam.Factor | None:
    """The product of those that are there."""
    present = [factor for factor in factors if factor is not None]
    return reduce(lambda a, b: a * b, present) if present else None


@storable
@dataclass(frozen=True, eq=False)
class Process:
    """A prior, cavity or posterior over (f, ε) as a value of plain arrays.

    The linear algebra on it is in ``conditioning``.

    :param pseudo_observations: What it is conditioned on; nothing for the prior.
    :param hyperparameters: q(ε), or None where ε is a point kept in the GPflow parameters.
    :param log_scale: The sum of the factors' log constants, in nats.
    """

    pseudo_observations: tuple[Observations, ...] = ()
    hyperparameters: expfam.Gaussian | None = None
    log_scale: float = 0.0

    @property
    def num_pseudo_points(self) -> int:
        """Pseudo-points of all factors together, shared ones counted once."""
        return sum(len(one.Z) for one in self.compact.pseudo_observations)

    @cached_property
    def compact(self) -> Process:
        """The same process with one member for each set of points, for computing with."""
        observations, constant = product_by_points(self.pseudo_observations)
        return Process(observations, self.hyperparameters, self.log_scale + constant)

    @property
    def num_bytes(self) -> int:
        """Size of its arrays."""
        return PseudoPointFactor(self.pseudo_observations).num_bytes + (
            0 if self.hyperparameters is None else self.hyperparameters.num_bytes
        )

    @property
    def form(self) -> str:
        """The kind of distribution in words."""
        if self.hyperparameters is None:
            return "Gaussian process at a point ε"
        return f"Gaussian process with q(ε) a {self.hyperparameters.form}"

    @property
    def unit_of_epsilon(self) -> expfam.Factor | None:
        """The factor of ε that says nothing, or None where ε is a point."""
        q = self.hyperparameters
        return None if q is None else expfam.Factor(type(q), q.natural).as_arrays() ** 0.0

    def as_arrays(self) -> Process:
        """The same process with q(ε) held in NumPy arrays, as all else is already."""
        if self.hyperparameters is None:
            return self
        return replace(self, hyperparameters=self.hyperparameters.as_arrays())

    def times(self, factors: Iterable[PseudoPointFactor]) -> Process:
        """This process conditioned on the factors' pseudo-observations as well.

        :raises ImproperError: if the product of the hyperparameter factors is no distribution.
        """
        factors = list(factors)
        observations = self.pseudo_observations + tuple(
            one for factor in factors for one in factor.pseudo_observations
        )
        epsilon = [f.hyperparameters for f in factors if f.hyperparameters is not None]
        q = self.hyperparameters
        if q is not None and epsilon:
            q = q.times(epsilon).as_arrays()
        log_scale = self.log_scale + sum(factor.log_scale for factor in factors)
        return Process(observations, q, log_scale)

    def cavity(self, own: PseudoPointFactor | None) -> Process:
        """This process without one of the factors that it is the product of.

        :param own: The factor; None leaves the process as it is.
        :raises InvalidDataError: if it is not conditioned on that factor's pseudo-observations.
        :raises ImproperError: if q(ε) without it is no distribution.
        """
        return self if own is None else self.exchanged([own], [])

    def exchanged(
        self, removed: Iterable[PseudoPointFactor], added: Iterable[PseudoPointFactor]
    ) -> Process:
        """``self × Π added / Π removed``, where self is conditioned on what is removed.

        :raises InvalidDataError: if it is not.
        :raises ImproperError: if the product of the hyperparameter factors is no distribution.
        """
        removed, added = list(removed), list(added)
        kept = list(self.pseudo_observations)
        for one in (one for factor in removed for one in factor.pseudo_observations):
            kept.pop(_position(kept, one))
        kept += [one for factor in added for one in factor.pseudo_observations]
        epsilon = [f.hyperparameters for f in added if f.hyperparameters is not None]
        epsilon += [f.hyperparameters**-1.0 for f in removed if f.hyperparameters is not None]
        q = self.hyperparameters
        if q is not None and epsilon:
            q = q.times(epsilon).as_arrays()
        change = sum(f.log_scale for f in added) - sum(f.log_scale for f in removed)
        return Process(tuple(kept), q, self.log_scale + change)

    def objection_to(self, factor: object) -> str | None:
        """Why this object is no factor that the process can be multiplied by, or None if it is."""
        if not isinstance(factor, PseudoPointFactor):
            return f"wanted a factor of a {self.form}, got a {type(factor).__name__}"
        if not all(_is_sound(one) for one in factor.pseudo_observations):
            return "its pseudo-observations are not finite arrays of matching shapes"
        sizes = {one.sizes for one in (*self.pseudo_observations, *factor.pseudo_observations)}
        if len(sizes) > 1:
            return f"input columns, groups and columns of a group differ: {sorted(sizes)}"
        if not np.isfinite(factor.log_scale):
            return f"its log constant is {factor.log_scale}"
        q = self.hyperparameters
        if q is None or factor.hyperparameters is None:
            fits = q is None and factor.hyperparameters is None
            return None if fits else "only one of process and factor speaks of ε"
        return q.objection_to(factor.hyperparameters)


def observations_of(process: Process) -> tuple[PseudoObservations | DataObservations, ...]:
    """Observations that a process is conditioned on, one member for each set of points.

    :raises InvalidDataError: if members rest on one another.
    """
    observations = process.compact.pseudo_observations
    found = tuple(one for one in observations if not isinstance(one, ConditionalPseudoObservations))
    if len(found) < len(observations):
        raise InvalidDataError("wanted pseudo-observations of f alone, got conditional ones")
    return found


def plain(process: Process) -> tuple[PseudoObservations, ...]:
    """The same of a process that holds summaries alone, and no data.

    :raises InvalidDataError: if it does.
    """
    found = tuple(one for one in observations_of(process) if isinstance(one, PseudoObservations))
    if len(found) < len(process.compact.pseudo_observations):
        raise InvalidDataError("wanted pseudo-observations of few points, got data themselves")
    return found


def _position(observations: list[Observations], wanted: Observations) -> int:
    """Where a member stands among others: the object itself, or one that says the same."""
    itself = (i for i, one in enumerate(observations) if one is wanted)
    equal = (i for i, one in enumerate(observations) if same(one, wanted))
    found = next(chain(itself, equal), None)
    if found is None:
        raise InvalidDataError("a process can only be divided by a factor that it is a product of")
    return found


def _arrays_of_numbers(observations: Observations) -> Iterator[np.ndarray]:
    """Its arrays; entries that were not observed are zero."""
    for array in observations.arrays:
        is_data = isinstance(observations, DataObservations) and array is observations.Y
        yield np.where(np.isnan(array), 0.0, array) if is_data else array


def _is_sound(observations: object) -> bool:
    """Whether all arrays are finite and fit one another."""
    return (
        isinstance(observations, Observations)
        and all(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in observations.arrays)
        and observations.has_matching_shapes
        and all(np.isfinite(a).all() for a in _arrays_of_numbers(observations))
        and bool(0.0 <= observations.nugget < np.inf)
    )
