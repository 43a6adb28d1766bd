"""Inputs under a cavity at one ε, in NumPy, and where points start among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.problem import NUGGET, Place
from streaming_gp.gp.process.dense import SMALLEST_VARIANCE, DenseProcess, refuse_far_below_zero


class Start(NamedTuple):
    """Where points are.

    :param Z: The points [M, D].
    :param nugget: The variance of their white noise.
    :param shared_nugget: The part of it that earlier points have as well.
    """

    Z: np.ndarray
    nugget: float
    shared_nugget: float = 0.0


class Inputs(NamedTuple):
    """Inputs under the cavity.

    :param X: [N, D].
    :param V: Their projection [G, R, N].
    :param mean: Of f [G, N, C].
    :param variance: Of f [G, N].
    """

    X: np.ndarray
    V: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


class Places:
    """Inputs under a cavity.

    :param cavity: The cavity at one ε.
    """

    def __init__(self, cavity: DenseProcess) -> None:
        self.cavity = cavity

    def at(self, X: np.ndarray) -> Inputs:
        """Inputs [N, D] under the cavity.

        :raises NumericalError: as :meth:`.DenseProcess.marginals`.
        """
        V, prior = self.cavity.project(X), self.cavity.prior.variance(X)
        variance = prior - np.einsum("grn,grn->gn", V, V)
        refuse_far_below_zero(variance, prior)
        least = SMALLEST_VARIANCE * prior
        return Inputs(X, V, self.cavity.mean(X, V), np.maximum(variance, least))

    def covariance(self, one: Inputs, other: Inputs) -> np.ndarray:
        """Covariances [G, N, K] of f; white noise is shared by no two sets of inputs."""
        prior = self.cavity.prior.covariance(one.X, other.X)
        return prior - stacks.product(stacks.transposed(one.V), other.V)

    def start(
        self,
        inputs: Inputs,
        place: Place,
        site_weights: Callable[[], np.ndarray],
        num_present: int = 0,
    ) -> Start:
        """Points at chosen inputs; averages over groups say what they explain.

        :param site_weights: As of :class:`.Candidates`.
        :param num_present: Likewise.
        :raises NumericalError: if the cavity covariance is not finite.
        """
        variance = np.mean(inputs.variance, axis=0)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        everything = np.arange(len(variance))

        def between(some: np.ndarray, others: np.ndarray) -> np.ndarray:
            found = self.covariance(_some(inputs, some), _some(inputs, others))
            return np.asarray(np.mean(found, axis=0))

        candidates = Candidates(
            inputs.X,
            variance,
            lambda some: between(everything, some),
            lambda some: between(some, some),
            site_weights,
            num_present,
        )
        return Start(place(candidates), float(NUGGET * np.mean(variance)))


def _some(inputs: Inputs, rows: np.ndarray) -> Inputs:
    X, V, mean, variance = inputs
    return Inputs(X[rows], V[:, :, rows], mean[:, rows], variance[:, rows])
